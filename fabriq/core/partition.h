// One partition of a queue, inside one request: reads what it needs through a Transaction, decides, and writes what
// changed. Deterministic; the request's time is the only clock. What each part costs does not depend on how many
// messages the queue holds.
//
// A message is *fresh* while it lies in a segment and nobody has had it; *leased* when handed out under a lease;
// *returned* when it came back; *waiting* until its delay is over; *dead* after too many deliveries; and gone when it
// is settled. Fresh messages are handed out as ranges of a segment (one LeaseRecord); whatever comes back, waits, or is
// extended by itself is copied out to stand alone, so that segments always become free within a lease.
//
//   TRY_LET(partition, Partition::open(tables, "{q:jobs:0}", queue_id));
//   TRY_LET(reply, partition.pop(request));
//   TRY(partition.save());
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fabriq/core/messages.h"
#include "fabriq/core/records.h"
#include "fabriq/core/wheel.h"
#include "zht/procedure.h"

namespace fabriq {

class Partition : private WheelSlots {
 public:
  // not_found: no such queue (or none any more); conflict: the queue of that name is another one now.
  static Result<Partition> open(zht::Transaction& tables, Bytes tag, std::uint64_t queue_id);
  // Makes it, empty. Fine when it is there already; conflict: an older queue's partition is still there.
  static Result<void> create(zht::Transaction& tables, Bytes tag, const Descriptor& descriptor);
  static Result<void> close(zht::Transaction& tables, Bytes tag, std::uint64_t queue_id);
  static Result<std::uint64_t> sweep(zht::Transaction& tables, Bytes tag, const std::vector<Bytes>& keys);

  Partition(Partition&&) = default;

  Result<PushReply> push(const PushRequest& request);
  Result<std::vector<Settled>> settle(const std::vector<Settle>& items);
  // The reply's bodies borrow from this object.
  Result<PopReply> pop(const PopRequest& request);
  Result<PopReply> peek(const PeekRequest& request);
  Result<Info> info();
  Result<std::uint64_t> redrive(std::uint64_t most);
  Result<std::uint64_t> purge();
  // Writes the states that changed. Last.
  Result<void> save();

 private:
  using Phase = AloneState::Phase;
  struct CachedLease {
    std::optional<LeaseRecord> record;
    bool changed = false;
  };

  Partition(zht::Transaction& tables, Bytes tag) : tables_(tables), keys_(tag) {}

  // partition.cc: the states, the clock, the lists
  Result<void> load_writer();
  Result<void> load_reader();
  ReaderState& change() {
    reader_changed_ = true;
    return reader_;
  }
  Result<CachedLease*> lease(std::uint64_t number);
  Result<std::optional<AloneState>> alone(std::uint64_t number);
  Result<void> put_alone(std::uint64_t number, const AloneState& state);
  Result<void> list_push(char letter, ListState& list, const std::vector<std::uint64_t>& numbers);
  std::vector<std::uint64_t> list_front(char letter, const ListState& list, std::uint64_t skip, std::uint64_t most);
  Result<void> list_pop(char letter, ListState& list);  // the front number
  Result<void> flush_lists();
  std::optional<zht::Transaction::Found> get(const std::string& key, zht::Range range = {});
  Result<void> put(const std::string& key, Bytes value, Millis ttl = {});
  Result<void> drop(const std::string& key);

  // WheelSlots
  Result<void> append(unsigned level, unsigned slot, std::string_view bytes) override;
  std::string read(unsigned level, unsigned slot, std::uint64_t offset, std::uint64_t size) override;
  Result<void> remove(unsigned level, unsigned slot) override;
  Result<void> add_timer(std::uint64_t id, std::uint64_t at);

  // pushes.cc
  struct Run {  // of messages in a request that were never seen before, or were all seen
    std::uint32_t first = 0, count = 0;
    bool repeated = false;
    std::uint64_t number = 0;  // of the first, when repeated
  };
  Result<std::vector<Run>> recognise(const PushRequest& request);
  Result<void> remember(const PushRequest& request, const std::vector<Run>& runs);
  Result<void> check_room(const PushRequest& request, std::uint64_t size);

  // deliveries.cc
  Result<void> housekeeping(std::uint64_t budget);
  Result<void> expire(std::uint64_t number, CachedLease& lease);
  Result<bool> fire(const Timer& timer);
  bool still_meant(const Timer& timer);
  Result<void> take_returned(const PopRequest& request, PopReply& reply, std::uint64_t& bytes);
  Result<void> take_fresh(const PopRequest& request, PopReply& reply, std::uint64_t& bytes);
  Result<void> leave_segment(std::uint64_t size);
  Result<void> free_segments();
  Result<void> gone_from_segment(std::uint64_t segment, std::uint32_t count);
  std::uint64_t next_event_ms() const;
  Result<std::uint64_t> oldest_ms();  // age of the message that would be handed out next; 0: none
  Receipt receipt(std::uint64_t lease, std::uint64_t first, std::uint32_t count) const;
  bool tired(std::uint64_t steps) const { return steps_ > steps || moved_bytes_ > kMaxMoved; }

  // settlement.cc
  struct Fate {  // of a message that leaves its lease without being settled
    Phase phase = Phase::ready;
    bool given_up = false;
    std::uint64_t until = 0;
  };
  Result<void> move_out(std::uint64_t lease_number, LeaseRecord& lease, std::uint32_t from, std::uint32_t to,
                        Fate fate);
  Result<void> come_back(std::uint64_t number, AloneState& state, Fate fate);
  Result<void> settle_alone(std::uint64_t number, const AloneState& state, std::uint64_t by_lease);
  Result<Settled> settle_one(const Settle& item);
  Result<Settled::Outcome> settle_pending(const Settle& item, std::uint32_t from, std::uint32_t to);
  Result<Settled::Outcome> settle_elsewhere(const Settle& item, std::uint64_t number);

  static constexpr std::uint64_t kMaxMoved = std::uint64_t{16} << 20;  // bytes copied out of segments in one request

  zht::Transaction& tables_;
  Keys keys_;
  Descriptor descriptor_;
  WriterState writer_;
  ReaderState reader_;
  bool writer_loaded_ = false, reader_loaded_ = false;
  bool writer_changed_ = false, reader_changed_ = false;  // writer: also to ring the bell
  std::uint64_t bell_ = 0;                                // version of the writer state as found
  std::uint64_t now_ = 0;                                 // queue time in ms
  std::map<std::uint64_t, CachedLease> leases_;
  std::vector<std::uint64_t> came_back_, died_;  // to be put on the lists by flush_lists()
  std::deque<std::string> bodies_;               // what a reply borrows from
  std::uint64_t steps_ = 0, moved_bytes_ = 0;
};

}  // namespace fabriq

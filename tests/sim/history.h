// What clients asked and were told, and what was committed, over a whole run; and the judgement: is there an order of all
// operations on each key that respects real time and explains every answer? Versions make the search needless: an entry's
// number says where a change stands, and a read says what it has seen, so the order is given and only has to be checked.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/ledger.h"
#include "tests/sim/sim_store.h"

namespace zht::sim {

using Micros = std::int64_t;  // of the simulation's own time

enum class Verb : std::uint8_t { lookup, insert, remove, append, cswap, watch, update, batch };
enum class Status : std::uint8_t { ok, not_found, mismatch, retry, expired, full };

struct Request {
  Verb verb = Verb::lookup;
  std::uint32_t partition = 0;
  std::string key, value;
  std::optional<std::string> expected;
  Version after = 0;  // watch: satisfied by a later version; eventual lookup: of the partition when it had this, or later
  std::uint64_t client = 0, sequence = 0, floor = 0;
  Epoch epoch{0};
  std::uint64_t ttl_ms = 0;  // insert
  bool eventual = false;     // lookup: of any member
  InstanceId to{0};          // who is asked
  bool again = false;        // it may have been sent before
  bool changes() const { return verb != Verb::lookup && verb != Verb::watch; }
};

struct Reply {
  std::uint64_t client = 0, sequence = 0;
  Epoch epoch{0};  // of the request
  Status status = Status::ok;
  std::optional<std::string> value;
  Version version = 0;
};

struct Violation {
  std::string kind, text;
};

class History {
 public:
  explicit History(std::vector<Violation>& found) : found_(found) {}

  std::size_t called(const Request& request, Micros now);
  void returned(std::size_t call, const Reply& reply, Micros now);
  // The entry was committed, somewhere; told again by every member.
  void committed(std::uint32_t partition, const EntryPtr& entry, const std::string& where);
  // The same where the entries are the ledger's: all up to `to`.
  void committed(std::uint32_t partition, const Ledger& ledger, Position to, const std::string& where);
  // A new primary's log ends with `end`.
  void promoted(std::uint32_t partition, const Ledger& ledger, Position end, const std::string& where);
  // A new primary's log: it must hold everything committed so far.
  void promoted(std::uint32_t partition, const std::vector<EntryPtr>& log, const std::string& where);
  // Durability interval: all that had this partition's acknowledged entries have lost some (losses.h). The next primary may
  // lack some; entries up to `kept` must be there all the same.
  void may_lose(std::uint32_t partition, Version kept);
  Version agreed(std::uint32_t partition, const Ledger& ledger, Position at) const;  // committed entries of the log that ends so
  // The world destroyed the partition's last copy: what becomes of it is not judged any more.
  void give_up(std::uint32_t partition) { given_up_.insert(partition); }
  bool has_lost(std::uint32_t partition) const { return lost_.contains(partition) || given_up_.contains(partition); }
  std::uint64_t lost() const { return lost_.size(); }         // partitions that did lose something so
  // All that had the partition's acknowledged entries is lost, and the view after `base` goes on with what was left: that is found
  // out at its primary's promotion. What had been acknowledged and is not there is forgotten; who asked before `now` is not
  // judged, and eventual lookups of the partition neither, for a copy that has not heard yet may show what was forgotten.
  void abandoned(std::uint32_t partition, Epoch base, Micros now);
  bool was_abandoned(std::uint32_t partition) const { return since_.contains(partition); }
  void judge();
  std::size_t calls() const { return calls_.size(); }

 private:
  struct Call {
    Request request;
    Reply reply;
    Micros began = 0, ended = -1;
    Version assigned = 0;  // of an answer that names none: it saw nothing there, and so did who asked after this version
  };
  using Key = std::pair<std::uint32_t, std::string>;
  using Identity = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // partition, client, sequence
  static Identity identity(const Request& r) { return {r.partition, r.client, r.sequence}; }
  Version position(const Call& call) const;
  void judge_call(Call& call, Version least);
  bool assign(Call& call, Version least);
  void bad(const char* kind, std::string text) { found_.push_back({kind, std::move(text)}); }

  std::vector<Violation>& found_;
  std::map<std::uint32_t, Version> may_lose_;  // by partition: after this entry
  std::set<std::uint32_t> lost_, given_up_;
  struct Cut {
    Epoch base{0};
    Version kept = 0;  // entries of `base` and before that come after this are of a log that was given up
  };
  bool of_given_up_log(std::uint32_t partition, Position at) const;
  void forget_after(std::uint32_t partition, Version kept);
  std::map<std::uint32_t, Micros> since_;           // of partitions that were abandoned, when
  std::map<std::uint32_t, Epoch> abandoning_;       // not yet led again: the view's epoch before
  std::map<std::uint32_t, std::vector<Cut>> cuts_;
  std::vector<Call> calls_;
  std::map<std::uint32_t, std::vector<EntryPtr>> log_;
  std::map<std::uint32_t, std::vector<Position>> places_;
  std::map<Identity, Micros> began_;
  std::map<std::pair<std::uint32_t, Version>, Identity> whose_;
  std::map<Identity, Version> where_;
  std::map<Key, std::map<Version, std::optional<std::string>>> states_;
};

}  // namespace zht::sim

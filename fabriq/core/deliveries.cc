// Handing messages out, and taking back those whose lease has run out.
#include <algorithm>

#include "fabriq/core/partition.h"

namespace fabriq {
namespace {

// Timer ids: of a lease, with this bit; else of a message that stands alone (its number may carry kAlone).
constexpr std::uint64_t kLeaseTimer = std::uint64_t{1} << 62;
// Leases and timers looked at per request: enough to keep up with what a request adds, and a thorough look when the
// request would go away empty.
constexpr std::uint64_t kUsualBudget = 16, kThoroughBudget = 2000;

}  // namespace

Receipt Partition::receipt(std::uint64_t lease, std::uint64_t first, std::uint32_t count) const {
  Receipt it;
  it.partition = descriptor_.partition;
  it.era = descriptor_.era;
  it.lease = lease;
  it.first = first;
  it.count = count;
  it.issued_ms = now_;
  it.tag = it.expected_tag(descriptor_.queue_id, descriptor_.secret);
  return it;
}

// Most leases have the queue's own length, so they end in the order in which they were issued: these are looked at one
// after another, each once. The others are on the wheel.
Result<void> Partition::housekeeping(std::uint64_t budget) {
  while (budget > 0 && reader_.oldest_lease < reader_.next_lease && !tired(3000)) {
    TRY_LET(cached, lease(reader_.oldest_lease));
    const bool there = cached->record && cached->record->pending > 0 && cached->record->in_order;
    if (there && cached->record->deadline > now_) break;
    if (there) TRY(expire(reader_.oldest_lease, *cached));
    change().oldest_lease++;
    budget--;
  }
  if (budget == 0 || tired(3000)) return {};
  const auto next = Wheel(reader_.wheel, *this).next();
  if (!next || *next > now_) {
    reader_.wheel.now = std::max(reader_.wheel.now, now_);
    return {};
  }
  Wheel wheel(change().wheel, *this);
  TRY(wheel.turn(
      now_, budget, [this](const Timer& timer) { return fire(timer); },
      [this](const Timer& timer) { return still_meant(timer); }));
  return {};
}

Result<void> Partition::expire(std::uint64_t number, CachedLease& cached) {
  LeaseRecord& record = *cached.record;
  cached.changed = true;
  change().expired += record.pending;
  return move_out(number, record, 0, record.count, {});
}

bool Partition::still_meant(const Timer& timer) {
  if ((timer.id & kAlone) == 0 && (timer.id & kLeaseTimer) != 0) {
    const auto cached = lease(timer.id & ~kLeaseTimer);
    return cached && (*cached)->record && (*cached)->record->pending > 0 && !(*cached)->record->in_order &&
           (*cached)->record->deadline == timer.at;
  }
  const auto state = alone(timer.id);
  return state && *state && ((*state)->phase == Phase::leased || (*state)->phase == Phase::waiting) &&
         (*state)->until == timer.at;
}

// Returns whether there is strength left for another one.
Result<bool> Partition::fire(const Timer& timer) {
  if (!still_meant(timer)) return !tired(3000);
  if ((timer.id & kAlone) == 0 && (timer.id & kLeaseTimer) != 0) {
    TRY_LET(cached, lease(timer.id & ~kLeaseTimer));
    TRY(expire(timer.id & ~kLeaseTimer, *cached));
    return !tired(3000);
  }
  TRY_LET(state, alone(timer.id));
  if (state->phase == Phase::leased) {
    change().leased--;
    reader_.expired++;
  } else {
    change().waiting--;
  }
  TRY(come_back(timer.id, *state, {}));
  return !tired(3000);
}

Result<void> Partition::take_returned(const PopRequest& request, PopReply& reply, std::uint64_t& bytes) {
  const std::uint64_t lease_ms = request.lease_ms == 0 ? descriptor_.visibility_ms : request.lease_ms;
  std::uint64_t lease_number = 0;
  while (reply.messages.size() < request.max_count && !reader_.ready_list.empty() && !tired(7000)) {
    const auto numbers = list_front('f', reader_.ready_list, 0, request.max_count - reply.messages.size());
    if (numbers.empty())
      return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()),
                  ": list of returned messages has a hole");
    for (const std::uint64_t number : numbers) {
      if (tired(7000)) return {};
      TRY_LET(state, alone(number));
      if (!state || state->phase != Phase::ready) {  // settled late, or on the list again further on
        TRY(list_pop('f', change().ready_list));
        continue;
      }
      if (!reply.messages.empty() && bytes + state->size > request.max_bytes) return {};
      const std::string key = keys_.numbered('x', descriptor_.era, number);
      auto found = get(key);
      Entry entry;
      if (found) bodies_.push_back(std::move(found->value));
      if (!found || !Entry::decode(bodies_.back(), entry))
        return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": message ", number, " has no body");
      TRY(list_pop('f', change().ready_list));
      bytes += state->size;
      reader_.returned--;
      if (state->lease != 0) {
        reader_.redelivered++;
        state->shared = true;
      }
      state->deliveries++;
      PopReply::Message message{number,           entry.pushed_ms, state->deliveries,
                                entry.attributes, entry.body,      Receipt{.count = 0}};
      if (request.at_most_once) {
        TRY(settle_alone(number, *state, 0));
      } else {
        if (lease_number == 0) lease_number = reader_.next_lease++;
        state->phase = Phase::leased;
        state->lease = lease_number;
        state->given_up = false;
        state->until = now_ + lease_ms;
        reader_.leased++;
        TRY(put_alone(number, *state));
        TRY(add_timer(number, state->until));
        message.receipt = receipt(lease_number, number, 1);
        reply.groups.push_back(message.receipt);
      }
      reply.messages.push_back(message);
    }
  }
  return {};
}

Result<void> Partition::take_fresh(const PopRequest& request, PopReply& reply, std::uint64_t& bytes) {
  const std::uint64_t lease_ms = request.lease_ms == 0 ? descriptor_.visibility_ms : request.lease_ms;
  while (reply.messages.size() < request.max_count && reader_.taken < writer_.appended && !tired(7000)) {
    const std::uint64_t wanted = std::min(request.max_count - reply.messages.size(), writer_.appended - reader_.taken);
    const std::uint64_t room = request.max_bytes > bytes ? request.max_bytes - bytes : 0;
    if (room == 0 && !reply.messages.empty()) return {};
    const std::string key = keys_.numbered('s', descriptor_.era, reader_.segment);
    const std::uint64_t hint = std::max<std::uint64_t>(wanted * (reader_.entry_size + 64), 256);
    auto found = get(key, zht::Range::bytes(reader_.offset, std::min(hint, std::max<std::uint64_t>(room, 256))));
    if (!found || found->value.empty()) {
      if (reader_.segment >= writer_.segment)
        return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": segment ", reader_.segment,
                    " ends at ", reader_.offset, ", before message ", reader_.taken);
      TRY(leave_segment(found ? found->size : 0));
      continue;
    }
    if (found->value.size() < kEntryHeader || found->value.size() < Entry::size_at(found->value)) {
      const std::uint64_t size = found->value.size() < kEntryHeader ? kEntryHeader : Entry::size_at(found->value);
      if (!reply.messages.empty() && bytes + size > request.max_bytes) return {};
      found = get(key, zht::Range::bytes(reader_.offset, size));
      if (!found || found->value.size() < size)
        return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": segment ", reader_.segment,
                    " offset ", reader_.offset, ": an entry of ", size, " bytes is cut");
    }
    bodies_.push_back(std::move(found->value));
    const Bytes read = bodies_.back();
    const std::size_t first_of_group = reply.messages.size();
    std::uint64_t size = 0;
    Entry entry;
    while (reply.messages.size() < request.max_count &&
           reader_.taken + (reply.messages.size() - first_of_group) < writer_.appended &&
           Entry::decode(read.substr(size), entry)) {
      if (!reply.messages.empty() && bytes + entry.size() > request.max_bytes) break;
      reply.messages.push_back({reader_.taken + (reply.messages.size() - first_of_group), entry.pushed_ms, 1,
                                entry.attributes, entry.body, Receipt{.count = 0}});
      size += entry.size();
      bytes += entry.size();
    }
    const auto count = static_cast<std::uint32_t>(reply.messages.size() - first_of_group);
    if (count == 0) return {};
    ReaderState& reader = change();
    if (request.at_most_once) {
      reader.acked += count;
      reader.segment_gone += count;
    } else {
      LeaseRecord record;
      record.segment = reader.segment;
      record.offset = reader.offset;
      record.size = size;
      record.first = reader.taken;
      record.count = record.pending = count;
      record.deadline = now_ + lease_ms;
      record.in_order = lease_ms == descriptor_.visibility_ms && record.deadline >= reader.last_deadline;
      const std::uint64_t number = reader.next_lease++;
      if (record.in_order)
        reader.last_deadline = record.deadline;
      else
        TRY(add_timer(kLeaseTimer | number, record.deadline));
      for (std::uint32_t i = 0; i < count; i++)
        reply.messages[first_of_group + i].receipt = receipt(number, record.first + i, 1);
      reply.groups.push_back(receipt(number, record.first, count));
      leases_[number] = {std::move(record), true};
      reader.leased += count;
    }
    reader.taken += count;
    reader.segment_taken += count;
    reader.offset += size;
    reader.entry_size = size / count;
  }
  return {};
}

// The reader goes to the next segment; `size` is that of the one it leaves.
Result<void> Partition::leave_segment(std::uint64_t size) {
  ReaderState& reader = change();
  if (reader.segment_gone == reader.segment_taken) {
    TRY(drop(keys_.numbered('s', descriptor_.era, reader.segment)));
    reader.freed += size;
  } else {
    TRY(put(keys_.numbered('k', descriptor_.era, reader.segment),
            SegmentRest{size, reader.segment_taken - reader.segment_gone}.encode()));
  }
  reader.segment++;
  reader.offset = reader.segment_taken = reader.segment_gone = 0;
  return {};
}

// Gives back at once what a drained segment holds; a small one that still grows stays, it would only be made again.
Result<void> Partition::free_segments() {
  while (reader_.segment_taken > 0 && reader_.segment_gone == reader_.segment_taken) {
    TRY(load_writer());
    if (reader_.segment == writer_.segment) {
      if (reader_.offset < writer_.segment_size || writer_.segment_size <= kSmallSegment) return {};
      writer_.segment++;
      writer_.segment_size = 0;
      writer_changed_ = true;
      return leave_segment(reader_.offset);
    }
    const auto found = get(keys_.numbered('s', descriptor_.era, reader_.segment), zht::Range::nothing());
    if (!found || reader_.offset < found->size) return {};
    TRY(leave_segment(found->size));
  }
  return {};
}

Result<void> Partition::gone_from_segment(std::uint64_t segment, std::uint32_t count) {
  if (segment == reader_.segment) {
    change().segment_gone += count;
    return {};
  }
  const std::string key = keys_.numbered('k', descriptor_.era, segment);
  const auto found = get(key);
  if (!found)
    return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": segment ", segment, " has no record");
  TRY_LET(rest, SegmentRest::decode(found->value));
  if (rest.left < count)
    return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": segment ", segment, " lost count");
  rest.left -= count;
  if (rest.left > 0) return put(key, rest.encode());
  TRY(drop(key));
  TRY(drop(keys_.numbered('s', descriptor_.era, segment)));
  change().freed += rest.size;
  return {};
}

std::uint64_t Partition::next_event_ms() const {
  std::uint64_t at = kNoEvent;
  const auto oldest = leases_.find(reader_.oldest_lease);
  if (reader_.oldest_lease < reader_.next_lease) {
    // Housekeeping stopped at a lease that still runs, or for want of budget: then at once.
    const bool runs = oldest != leases_.end() && oldest->second.record && oldest->second.record->pending > 0 &&
                      oldest->second.record->in_order;
    at = runs ? oldest->second.record->deadline : now_;
  }
  WheelState state = reader_.wheel;
  if (state.draining) return 0;
  for (unsigned level = 0; level < kWheelLevels; level++) {
    if (state.occupied[level] == 0) continue;
    const unsigned slot = static_cast<unsigned>(__builtin_ctzll(state.occupied[level]));
    const unsigned above = 6 * (level + 1);
    at = std::min(at, ((state.now >> above) << above) | (std::uint64_t{slot} << (6 * level)));
    break;
  }
  if (at == kNoEvent) return kNoEvent;
  return at > now_ ? at - now_ : 0;
}

Result<PopReply> Partition::pop(const PopRequest& asked) {
  PopRequest request = asked;
  request.max_count = std::min(request.max_count, kMaxBatch);
  request.max_bytes = std::min<std::uint64_t>(request.max_bytes, kMaxMessageSize);
  if (request.lease_ms > kMaxLeaseMillis)
    return fail(Code::invalid, "a lease of ", request.lease_ms, " ms; at most 12 h");
  TRY(load_writer());
  TRY(load_reader());
  PopReply reply;
  if (!request.items.empty()) {
    TRY_LET(settled, settle(request.items));
    reply.items = std::move(settled);
  }
  const bool something = reader_.returned > 0 || reader_.taken < writer_.appended;
  TRY(housekeeping(something ? kUsualBudget : kThoroughBudget));
  TRY(flush_lists());
  std::uint64_t bytes = 0;
  if (request.max_count > 0) {
    TRY(take_returned(request, reply, bytes));
    TRY(take_fresh(request, reply, bytes));
  } else {
    TRY_LET(oldest, oldest_ms());
    reply.oldest_ms = oldest;
  }
  TRY(free_segments());
  reply.bell = writer_changed_ ? 0 : bell_;
  reply.ready_left = writer_.appended - reader_.taken + reader_.returned;
  reply.next_event_ms = reply.ready_left > 0 ? 0 : next_event_ms();
  return reply;
}

}  // namespace fabriq

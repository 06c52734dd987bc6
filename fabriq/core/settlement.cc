// What becomes of a message after it was handed out: acknowledged, given back, its lease extended, or returned when the
// lease ran out. The rule for every one of them: a receipt counts as long as its delivery is the message's last one,
// also after the lease has run out, and never once the message was handed out again.
//
// How a receipt is judged when its message is neither in its lease nor standing alone: such a message was settled. Had
// it been handed out more than once, a note (key z) says by which lease, for a day; without a note its only lease
// settled it, so this is that same acknowledgement again. Receipts older than a day get no such benefit.
#include <algorithm>

#include "fabriq/core/partition.h"
#include "novoht/base/mutant.h"

namespace fabriq {

// Messages [from, to) of the lease that are still pending leave it and stand alone.
Result<void> Partition::move_out(std::uint64_t lease_number, LeaseRecord& record, std::uint32_t from, std::uint32_t to,
                                 Fate fate) {
  const auto found =
      get(keys_.numbered('s', descriptor_.era, record.segment), zht::Range::bytes(record.offset, record.size));
  if (!found || found->value.size() != record.size)
    return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": segment ", record.segment,
                " lacks messages of lease ", lease_number);
  Bytes rest = found->value;
  std::uint32_t moved = 0;
  for (std::uint32_t k = 0; k < to; k++) {
    Entry entry;
    if (!Entry::decode(rest, entry))
      return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": segment ", record.segment,
                  ": entry ", k, " of lease ", lease_number, " is damaged");
    const Bytes bytes = rest.substr(0, entry.size());
    rest.remove_prefix(entry.size());
    if (k < from || record.is_gone(k)) continue;
    const std::uint64_t number = record.first + k;
    TRY(put(keys_.numbered('x', descriptor_.era, number), bytes));
    AloneState state;
    state.deliveries = 1;
    state.lease = lease_number;
    state.size = bytes.size();
    change().freed -= bytes.size();  // it lies in the segment and here, until the segment goes
    reader_.leased--;
    moved_bytes_ += bytes.size();
    TRY(come_back(number, state, fate));
    if (record.count > 1) record.set_gone(k);
    record.pending--;
    moved++;
  }
  return gone_from_segment(record.segment, moved);
}

// `state` enters the phase that its fate decides; it is counted in none.
Result<void> Partition::come_back(std::uint64_t number, AloneState& state, Fate fate) {
  state.given_up = state.given_up || fate.given_up;
  state.phase = fate.phase;
  state.until = fate.until;
  const bool too_often = descriptor_.max_deliveries != 0 && state.deliveries >= descriptor_.max_deliveries;
  if (too_often && fate.phase != Phase::leased) state.phase = Phase::dead;
  switch (state.phase) {
    case Phase::ready:
      change().returned++;
      came_back_.push_back(number);
      break;
    case Phase::leased:
      change().leased++;
      TRY(add_timer(number, state.until));
      break;
    case Phase::waiting:
      change().waiting++;
      TRY(add_timer(number, state.until));
      break;
    case Phase::dead:
      change().dead++;
      died_.push_back(number);
      break;
  }
  return put_alone(number, state);
}

// The message goes. Not counted in any phase any more.
Result<void> Partition::settle_alone(std::uint64_t number, const AloneState& state, std::uint64_t by_lease) {
  TRY(drop(keys_.numbered('x', descriptor_.era, number)));
  TRY(drop(keys_.numbered('y', descriptor_.era, number)));
  change().freed += state.size;
  reader_.acked++;
  const bool others_know_it = state.shared || (state.lease != 0 && (state.lease != by_lease || state.given_up));
  if (!others_know_it) return {};
  std::string note;
  base::Writer(note).u64(by_lease);
  return put(keys_.numbered('z', descriptor_.era, number), note, Millis{kMemoryMillis + kMemoryMillis / 12});
}

// Messages [from, to) of the receipt's lease, all pending.
Result<Settled::Outcome> Partition::settle_pending(const Settle& item, std::uint32_t from, std::uint32_t to) {
  TRY_LET(cached, lease(item.receipt.lease));
  LeaseRecord& record = *cached->record;
  if (item.kind != Settle::Kind::acknowledge && (steps_ > 4000 || moved_bytes_ > kMaxMoved))
    return Settled::Outcome::busy;
  cached->changed = true;
  switch (item.kind) {
    case Settle::Kind::acknowledge:
      for (std::uint32_t k = from; k < to && record.count > 1; k++) record.set_gone(k);
      record.pending -= to - from;
      change().leased -= to - from;
      reader_.acked += to - from;
      TRY(gone_from_segment(record.segment, to - from));
      break;
    case Settle::Kind::give_back:
      writer_changed_ = true;  // rings
      TRY(move_out(item.receipt.lease, record, from, to,
                   {item.ms > 0 ? Phase::waiting : Phase::ready, true, now_ + item.ms}));
      break;
    case Settle::Kind::extend:
      if (now_ + item.ms < record.deadline) writer_changed_ = true;  // who waits for its end must look again
      if (to - from == record.count) {
        record.deadline = now_ + item.ms;
        record.in_order = false;
        TRY(add_timer((std::uint64_t{1} << 62) | item.receipt.lease, record.deadline));
      } else {
        TRY(move_out(item.receipt.lease, record, from, to, {Phase::leased, false, now_ + item.ms}));
      }
      break;
  }
  return Settled::Outcome::done;
}

Result<Settled::Outcome> Partition::settle_elsewhere(const Settle& item, std::uint64_t number) {
  TRY_LET(found, alone(number));
  if (!found) {
    if (item.kind != Settle::Kind::acknowledge) return Settled::Outcome::superseded;
    const auto note = get(keys_.numbered('z', descriptor_.era, number));
    if (note) {
      const bool mine = note->value.size() == 8 && base::load<std::uint64_t>(note->value.data()) == item.receipt.lease;
      return mine ? Settled::Outcome::already : Settled::Outcome::superseded;
    }
    return now_ - std::min(now_, item.receipt.issued_ms) <= kMemoryMillis ? Settled::Outcome::already
                                                                          : Settled::Outcome::superseded;
  }
  AloneState& state = *found;
  if (state.lease != item.receipt.lease) return Settled::Outcome::superseded;
  if (state.given_up)
    return item.kind == Settle::Kind::give_back ? Settled::Outcome::already : Settled::Outcome::superseded;
  if (item.kind == Settle::Kind::extend && state.phase == Phase::dead) return Settled::Outcome::superseded;
  if (item.kind == Settle::Kind::extend && state.phase == Phase::leased && now_ + item.ms < state.until)
    writer_changed_ = true;
  switch (state.phase) {
    case Phase::ready:
      change().returned--;
      break;
    case Phase::leased:
      change().leased--;
      break;
    case Phase::waiting:
      change().waiting--;
      break;
    case Phase::dead:
      change().dead--;
      break;
  }
  switch (item.kind) {
    case Settle::Kind::acknowledge:
      TRY(settle_alone(number, state, item.receipt.lease));
      break;
    case Settle::Kind::give_back:
      writer_changed_ = true;  // rings
      TRY(come_back(number, state, {item.ms > 0 ? Phase::waiting : Phase::ready, true, now_ + item.ms}));
      break;
    case Settle::Kind::extend:
      TRY(come_back(number, state, {Phase::leased, false, now_ + item.ms}));
      break;
  }
  return Settled::Outcome::done;
}

Result<Settled> Partition::settle_one(const Settle& item) {
  const Receipt& receipt = item.receipt;
  Settled result;
  if (receipt.partition != descriptor_.partition ||
      receipt.tag != receipt.expected_tag(descriptor_.queue_id, descriptor_.secret)) {
    result.outcome = Settled::Outcome::forged;
    return result;
  }
  if (receipt.era != descriptor_.era) {
    result.outcome = Settled::Outcome::superseded;
    return result;
  }
  TRY_LET(cached, lease(receipt.lease));
  const auto pending = [&](std::uint32_t i) -> bool {
    const std::uint64_t number = receipt.first + i;
    if (!cached->record || cached->record->pending == 0 || (number & kAlone) != 0 || number < cached->record->first)
      return false;
    const std::uint64_t k = number - cached->record->first;
    return k < cached->record->count && !cached->record->is_gone(static_cast<std::uint32_t>(k));
  };
  if constexpr (base::kMutant == base::Mutant::settle_nothing) {
    result.settled = receipt.count;
    return result;
  }
  for (std::uint32_t i = 0; i < receipt.count;) {
    auto outcome = Settled::Outcome::done;
    std::uint32_t next = i;
    if (pending(i)) {
      while (next < receipt.count && pending(next)) next++;
      const auto from = static_cast<std::uint32_t>(receipt.first + i - cached->record->first);
      TRY_LET(done, settle_pending(item, from, from + (next - i)));
      outcome = done;
    } else {
      TRY_LET(done, settle_elsewhere(item, receipt.first + i));
      outcome = done;
      next++;
    }
    if (outcome == Settled::Outcome::done || outcome == Settled::Outcome::already) result.settled += next - i;
    result.outcome = std::max(result.outcome, outcome);
    i = next;
  }
  return result;
}

Result<std::vector<Settled>> Partition::settle(const std::vector<Settle>& items) {
  TRY(load_writer());
  TRY(load_reader());
  std::vector<Settled> results;
  results.reserve(items.size());
  for (const Settle& item : items) {
    const std::uint64_t most = item.kind == Settle::Kind::extend ? kMaxLeaseMillis : kMaxDelayMillis;
    if (item.ms > most) return fail(Code::invalid, item.ms, " ms; at most ", most);
    if (item.kind == Settle::Kind::extend && item.ms == 0)
      return fail(Code::invalid, "an extension by 0 ms; at least 1");
    TRY_LET(result, settle_one(item));
    results.push_back(result);
  }
  TRY(free_segments());
  return results;
}

}  // namespace fabriq

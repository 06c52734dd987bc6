// Pushing, and recognising a push that was made before.
//
// What is remembered of a producer in this partition is one value that grows by append, 28 bytes a request: u64 first
// sequence, u32 count, u64 number of the first message, u64 highest sequence so far. It opens with a u64: sequences
// below it are forgotten. A push above the highest sequence, the usual one, needs to see the last 28 bytes only; any
// other looks through the value. It is cut back to its newest kRemembered entries when it has twice as many, and goes a
// day after the producer's last push at the earliest.
#include <algorithm>

#include "fabriq/core/partition.h"

namespace fabriq {
namespace {

constexpr std::size_t kSeenSize = 28;
constexpr std::uint32_t kRemembered = 1024;  // requests
constexpr std::size_t kLargeBody = std::size_t{64} << 10;

struct Seen {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
  std::uint64_t number = 0;
  std::uint64_t highest = 0;
};

Seen load_seen(const char* from) {
  return {base::load<std::uint64_t>(from), base::load<std::uint32_t>(from + 8), base::load<std::uint64_t>(from + 12),
          base::load<std::uint64_t>(from + 20)};
}

void put_seen(std::string& out, const Seen& seen) {
  base::Writer writer(out);
  writer.u64(seen.first);
  writer.u32(seen.count);
  writer.u64(seen.number);
  writer.u64(seen.highest);
}

}  // namespace

Result<std::vector<Partition::Run>> Partition::recognise(const PushRequest& request) {
  const auto count = static_cast<std::uint32_t>(request.messages.size());
  std::vector<Run> runs;
  if (!request.id.empty()) {
    const auto found = get(keys_.named('I', request.id));
    if (found && found->value.size() == 8)
      runs.push_back({0, 1, true, base::load<std::uint64_t>(found->value.data())});
    else
      runs.push_back({0, 1, false, 0});
    return runs;
  }
  if (request.producer.empty()) return std::vector<Run>{{0, count, false, 0}};
  const std::string key = keys_.named('P', request.producer);
  const auto tail = get(key, zht::Range::tail(1));
  if (!tail || tail->value.size() < kSeenSize) return std::vector<Run>{{0, count, false, 0}};
  const Seen last = load_seen(tail->value.data() + tail->value.size() - kSeenSize);
  if (request.sequence > last.highest) return std::vector<Run>{{0, count, false, 0}};

  const auto whole = get(key);
  const std::uint64_t forgotten = base::load<std::uint64_t>(whole->value.data());
  for (std::uint32_t i = 0; i < count; i++) {
    const std::uint64_t sequence = request.sequence + i;
    Run run{i, 1, false, 0};
    for (std::size_t at = whole->value.size(); at >= 8 + kSeenSize; at -= kSeenSize) {
      const Seen seen = load_seen(whole->value.data() + at - kSeenSize);
      if (sequence < seen.first || sequence - seen.first >= seen.count) continue;
      run.repeated = true;
      run.number = seen.number + (sequence - seen.first);
      break;
    }
    if (!run.repeated && sequence < forgotten)
      return fail(Code::conflict, "producer \"", base::escape(request.producer, 40), "\" pushed more than ",
                  kRemembered, " requests to this partition since sequence ", sequence,
                  " of it; whether that one arrived is forgotten");
    Run* before = runs.empty() ? nullptr : &runs.back();
    const bool joins = before != nullptr && before->repeated == run.repeated &&
                       (!run.repeated || before->number + before->count == run.number);
    if (joins)
      before->count++;
    else
      runs.push_back(run);
  }
  return runs;
}

// `runs` as recognise() made them, the new ones with their numbers.
Result<void> Partition::remember(const PushRequest& request, const std::vector<Run>& runs) {
  const Millis keep{2 * kMemoryMillis};
  if (!request.id.empty()) {
    std::string number;
    base::Writer(number).u64(runs[0].number);
    return put(keys_.named('I', request.id), number, keep);
  }
  const std::string key = keys_.named('P', request.producer);
  const auto tail = get(key, zht::Range::tail(1));
  const bool known = tail && tail->value.size() >= kSeenSize;
  std::uint64_t highest = known ? load_seen(tail->value.data() + tail->value.size() - kSeenSize).highest : 0;
  std::string added;
  for (const Run& run : runs) {
    if (run.repeated) continue;
    const std::uint64_t first = request.sequence + run.first;
    highest = std::max(highest, first + run.count - 1);
    put_seen(added, {first, run.count, run.number, highest});
  }
  if (!known) return put(key, std::string(8, '\0') + added, keep);
  const bool ages = tail->expires != base::kNever && tail->expires - tables_.now() < Millis{kMemoryMillis};
  if (tail->fragment_count < 2 * kRemembered && !ages) {
    steps_++;
    return tables_.append(key, added);
  }
  // Written anew: its newest entries, another two days to live.
  const auto whole = get(key);
  std::uint64_t forgotten = base::load<std::uint64_t>(whole->value.data());
  const std::size_t entries = (whole->value.size() - 8) / kSeenSize;
  const std::size_t dropped = entries > kRemembered ? entries - kRemembered : 0;
  for (std::size_t i = 0; i < dropped; i++) {
    const Seen seen = load_seen(whole->value.data() + 8 + i * kSeenSize);
    forgotten = std::max(forgotten, seen.first + seen.count);
  }
  std::string value;
  base::Writer(value).u64(forgotten);
  value.append(whole->value, 8 + dropped * kSeenSize);
  value += added;
  return put(key, value, keep);
}

Result<void> Partition::check_room(const PushRequest& request, std::uint64_t size) {
  if (descriptor_.max_bytes == 0) return {};
  const auto found = get(keys_.plain('r'), zht::Range::bytes(0, 8));
  TRY_LET(freed, ReaderState::decode_freed(found ? Bytes(found->value) : Bytes()));
  const std::uint64_t kept = writer_.stored - freed;
  if (kept + size <= descriptor_.max_bytes) return {};
  return fail(Code::no_space, "queue partition ", base::escape(keys_.tag()), " holds ", kept, " of at most ",
              descriptor_.max_bytes, " bytes, ", request.messages.size(), " more messages have ", size,
              "; pop or purge first");
}

Result<PushReply> Partition::push(const PushRequest& request) {
  if (request.messages.empty() || request.messages.size() > kMaxBatch)
    return fail(Code::invalid, request.messages.size(), " messages in one push; 1 to ", kMaxBatch);
  if (request.producer.size() > kMaxIdSize || request.id.size() > kMaxIdSize)
    return fail(Code::invalid, "producer and message ids have at most ", kMaxIdSize, " bytes");
  if (!request.id.empty() && request.messages.size() != 1)
    return fail(Code::invalid, "a message id is for one message");
  if (request.delay_ms > kMaxDelayMillis)
    return fail(Code::invalid, "a delay of ", request.delay_ms, " ms; at most a year");
  if (request.sequence + request.messages.size() < request.sequence)
    return fail(Code::invalid, "sequence ", request.sequence, " is too large");
  TRY(load_writer());
  TRY_LET(runs, recognise(request));

  std::uint64_t size = 0;
  bool any_new = false;
  for (const Run& run : runs) {
    if (run.repeated) continue;
    any_new = true;
    for (std::uint32_t i = run.first; i < run.first + run.count; i++) {
      const auto& message = request.messages[i];
      const std::uint64_t entry = kEntryHeader + message.attributes.size() + message.body.size();
      if (message.attributes.size() + message.body.size() > kMaxMessageSize)
        return fail(Code::invalid, "a message of ", message.body.size(), " bytes; at most ", kMaxMessageSize);
      size += entry;
    }
  }
  if (any_new) TRY(check_room(request, size));

  PushReply reply;
  // A large body goes into the segment from where it lies, as a fragment of its own behind its header.
  const bool apart = request.messages.size() == 1 && request.messages[0].body.size() >= kLargeBody;
  std::string entries;
  if (request.delay_ms == 0 && !apart) entries.reserve(size);
  const std::uint64_t wall = base::to_millis(tables_.now());
  for (Run& run : runs) {
    if (!run.repeated) run.number = request.delay_ms == 0 ? writer_.appended : kAlone | writer_.delayed;
    for (std::uint32_t i = 0; i < run.count; i++) {
      reply.messages.push_back({run.number + i, run.repeated});
      if (run.repeated) continue;
      const auto& message = request.messages[run.first + i];
      const Entry entry{wall, message.attributes, message.body};
      if (request.delay_ms == 0) {
        if (apart)
          entry.encode_head_to(entries);
        else
          entry.encode_to(entries);
        writer_.appended++;
        continue;
      }
      TRY(load_reader());
      std::string bytes;
      entry.encode_to(bytes);
      AloneState state;
      state.phase = Phase::waiting;
      state.until = now_ + request.delay_ms;
      state.size = bytes.size();
      TRY(put(keys_.numbered('x', descriptor_.era, run.number + i), bytes));
      TRY(put_alone(run.number + i, state));
      TRY(add_timer(run.number + i, state.until));
      change().waiting++;
      writer_.delayed++;
    }
  }
  if (!any_new) return reply;
  if (!entries.empty()) {
    if (writer_.segment_size > 0 && writer_.segment_size + size > kSegmentSize) {
      writer_.segment++;
      writer_.segment_size = 0;
    }
    const std::string key = keys_.numbered('s', descriptor_.era, writer_.segment);
    steps_++;
    TRY(tables_.append(key, entries));
    if (apart) TRY(tables_.append(key, request.messages[0].body));
    writer_.segment_size += size;
  }
  writer_.stored += size;
  writer_changed_ = true;
  if (!request.producer.empty() || !request.id.empty()) TRY(remember(request, runs));
  return reply;
}

}  // namespace fabriq

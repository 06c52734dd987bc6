#include "fabriq/core/partition.h"

#include <algorithm>

namespace fabriq {

Result<Partition> Partition::open(zht::Transaction& tables, Bytes tag, std::uint64_t queue_id) {
  Partition it(tables, tag);
  const auto found = it.get(it.keys_.plain('d'));
  if (!found) return fail(Code::not_found, "queue partition ", base::escape(tag), " does not exist");
  TRY_LET(descriptor, Descriptor::decode(found->value));
  if (descriptor.queue_id != queue_id)
    return fail(Code::conflict, "queue partition ", base::escape(tag), " belongs to a newer queue of that name");
  it.descriptor_ = descriptor;
  return it;
}

Result<void> Partition::create(zht::Transaction& tables, Bytes tag, const Descriptor& descriptor) {
  Partition it(tables, tag);
  if (const auto found = it.get(it.keys_.plain('d'))) {
    TRY_LET(present, Descriptor::decode(found->value));
    if (present.queue_id == descriptor.queue_id) return {};
    return fail(Code::conflict, "queue partition ", base::escape(tag), " still belongs to an older queue of that name");
  }
  TRY(it.put(it.keys_.plain('d'), descriptor.encode()));
  TRY(it.put(it.keys_.plain('w'), WriterState{}.encode()));
  return it.put(it.keys_.plain('r'), ReaderState{}.encode());
}

Result<void> Partition::close(zht::Transaction& tables, Bytes tag, std::uint64_t queue_id) {
  Partition it(tables, tag);
  const auto found = it.get(it.keys_.plain('d'));
  if (!found) return {};
  TRY_LET(present, Descriptor::decode(found->value));
  if (present.queue_id != queue_id) return {};
  for (const char letter : {'d', 'w', 'r'}) TRY(it.drop(it.keys_.plain(letter)));
  return {};
}

// A queue that is deleted leaves keys of every kind, a purged one those of older eras. Checked here, at the moment of
// removal, so that a slow sweeper cannot touch a queue that was made meanwhile.
Result<std::uint64_t> Partition::sweep(zht::Transaction& tables, Bytes tag, const std::vector<Bytes>& keys) {
  Partition it(tables, tag);
  std::optional<Descriptor> present;
  if (const auto found = it.get(it.keys_.plain('d'))) {
    TRY_LET(descriptor, Descriptor::decode(found->value));
    present = descriptor;
  }
  std::uint64_t count = 0;
  for (const Bytes key : keys) {
    if (!key.starts_with(tag))
      return fail(Code::invalid, "sweep: key ", base::escape(key), " is not of ", base::escape(tag));
    if (present && !it.keys_.is_garbage(key, present->era)) continue;
    TRY(it.drop(std::string(key)));
    count++;
  }
  return count;
}

std::optional<zht::Transaction::Found> Partition::get(const std::string& key, zht::Range range) {
  steps_++;
  return tables_.lookup(key, range);
}

Result<void> Partition::put(const std::string& key, Bytes value, Millis ttl) {
  steps_++;
  return tables_.insert(key, value, ttl);
}

Result<void> Partition::drop(const std::string& key) {
  steps_++;
  return tables_.remove(key);
}

Result<void> Partition::load_writer() {
  if (writer_loaded_) return {};
  const auto found = get(keys_.plain('w'));
  if (!found) return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), " has no writer state");
  TRY_LET(state, WriterState::decode(found->value));
  writer_ = state;
  bell_ = found->version;
  writer_loaded_ = true;
  return {};
}

// Queue time follows the wall clock and stands still, instead of going back, when that is set back: a lease then lasts
// longer by the real time until the next request notices, never by the size of the jump.
Result<void> Partition::load_reader() {
  if (reader_loaded_) return {};
  const auto found = get(keys_.plain('r'));
  if (!found) return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), " has no reader state");
  TRY_LET(state, ReaderState::decode(found->value));
  reader_ = state;
  reader_loaded_ = true;
  const std::uint64_t wall = base::to_millis(tables_.now());
  if (wall + reader_.skew < reader_.clock) reader_.skew = reader_.clock - wall;
  now_ = reader_.clock = wall + reader_.skew;
  return {};
}

Result<Partition::CachedLease*> Partition::lease(std::uint64_t number) {
  const auto known = leases_.find(number);
  if (known != leases_.end()) return &known->second;
  CachedLease cached;
  if (const auto found = get(keys_.numbered('l', descriptor_.era, number))) {
    TRY_LET(record, LeaseRecord::decode(found->value));
    cached.record = std::move(record);
  }
  return &leases_.emplace(number, std::move(cached)).first->second;
}

Result<std::optional<AloneState>> Partition::alone(std::uint64_t number) {
  const auto found = get(keys_.numbered('y', descriptor_.era, number));
  if (!found) return std::optional<AloneState>();
  TRY_LET(state, AloneState::decode(found->value));
  return std::optional<AloneState>(state);
}

Result<void> Partition::put_alone(std::uint64_t number, const AloneState& state) {
  return put(keys_.numbered('y', descriptor_.era, number), state.encode());
}

Result<void> Partition::list_push(char letter, ListState& list, const std::vector<std::uint64_t>& numbers) {
  for (std::size_t i = 0; i < numbers.size();) {
    if (list.written == kListPage) {
      list.last++;
      list.written = 0;
    }
    const std::size_t count = std::min<std::size_t>(numbers.size() - i, kListPage - list.written);
    steps_++;
    TRY(tables_.append(keys_.numbered(letter, descriptor_.era, list.last),
                       Bytes(reinterpret_cast<const char*>(numbers.data() + i), count * 8)));
    list.written += count;
    i += count;
  }
  return {};
}

std::vector<std::uint64_t> Partition::list_front(char letter, const ListState& list, std::uint64_t skip,
                                                 std::uint64_t most) {
  std::vector<std::uint64_t> numbers;
  const std::uint64_t at = list.read + skip;  // pages before the last are full
  std::uint64_t page = list.first + at / kListPage, offset = at % kListPage;
  while (numbers.size() < most && (page < list.last || (page == list.last && offset < list.written))) {
    const std::uint64_t wanted =
        std::min(most - numbers.size(), (page == list.last ? list.written : kListPage) - offset);
    const auto found = get(keys_.numbered(letter, descriptor_.era, page), zht::Range::bytes(offset * 8, wanted * 8));
    if (!found || found->value.size() < wanted * 8) break;
    for (std::uint64_t i = 0; i < wanted; i++)
      numbers.push_back(base::load<std::uint64_t>(found->value.data() + i * 8));
    page++;
    offset = 0;
  }
  return numbers;
}

Result<void> Partition::list_pop(char letter, ListState& list) {
  list.read++;
  const bool page_done = list.read == kListPage || (list.first == list.last && list.read == list.written);
  if (!page_done) return {};
  TRY(drop(keys_.numbered(letter, descriptor_.era, list.first)));
  list.read = 0;
  if (list.first == list.last) {
    list.last++;
    list.written = 0;
  }
  list.first++;
  return {};
}

Result<void> Partition::flush_lists() {
  if (!came_back_.empty()) TRY(list_push('f', change().ready_list, came_back_));
  if (!died_.empty()) TRY(list_push('g', change().dead_list, died_));
  came_back_.clear();
  died_.clear();
  return {};
}

Result<void> Partition::append(unsigned level, unsigned slot, std::string_view bytes) {
  steps_++;
  return tables_.append(keys_.slot(descriptor_.era, level, slot), bytes);
}

std::string Partition::read(unsigned level, unsigned slot, std::uint64_t offset, std::uint64_t size) {
  auto found = get(keys_.slot(descriptor_.era, level, slot), zht::Range::bytes(offset, size));
  return found ? std::move(found->value) : std::string();
}

Result<void> Partition::remove(unsigned level, unsigned slot) { return drop(keys_.slot(descriptor_.era, level, slot)); }

Result<void> Partition::add_timer(std::uint64_t id, std::uint64_t at) {
  // The wheel's time may trail behind; bringing it up would hide timers that are due and not yet fired.
  Wheel wheel(change().wheel, *this);
  return wheel.add({id, at});
}

Result<void> Partition::save() {
  TRY(flush_lists());
  for (const auto& [number, cached] : leases_) {
    if (!cached.changed) continue;
    const std::string key = keys_.numbered('l', descriptor_.era, number);
    if (cached.record && cached.record->pending > 0)
      TRY(put(key, cached.record->encode()));
    else
      TRY(drop(key));
  }
  if (writer_changed_) TRY(put(keys_.plain('w'), writer_.encode()));
  if (reader_changed_) TRY(put(keys_.plain('r'), reader_.encode()));
  return {};
}

Result<Info> Partition::info() {
  TRY(load_writer());
  TRY(load_reader());
  TRY(housekeeping(2000));
  TRY(flush_lists());
  Info info;
  info.ready = writer_.appended - reader_.taken + reader_.returned;
  info.leased = reader_.leased;
  info.waiting = reader_.waiting;
  info.dead = reader_.dead;
  info.bytes = writer_.stored - reader_.freed;
  info.pushed = writer_.appended + writer_.delayed;
  info.acked = reader_.acked;
  info.redelivered = reader_.redelivered;
  info.expired = reader_.expired;
  info.purged = reader_.purged;
  TRY_LET(oldest, oldest_ms());
  info.oldest_ms = oldest;
  return info;
}

Result<std::uint64_t> Partition::oldest_ms() {
  if (writer_.appended - reader_.taken + reader_.returned == 0) return std::uint64_t{0};
  TRY_LET(first, peek({descriptor_.queue_id, 1, false}));
  const std::uint64_t wall = base::to_millis(tables_.now());
  if (first.messages.empty() || first.messages[0].pushed_ms >= wall) return std::uint64_t{0};
  return wall - first.messages[0].pushed_ms;
}

Result<PopReply> Partition::peek(const PeekRequest& request) {
  TRY(load_writer());
  TRY(load_reader());
  const std::uint32_t most = std::min(request.max_count, kMaxBatch);
  PopReply reply;
  std::uint64_t bytes = 0;
  constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 20;
  const auto enough = [&] { return reply.messages.size() >= most || bytes > kMostBytes || steps_ > 8000; };
  const auto add = [&](std::uint64_t number, std::uint32_t deliveries) {
    Entry entry;
    if (!Entry::decode(bodies_.back(), entry)) return;
    bytes += bodies_.back().size();
    reply.messages.push_back({number, entry.pushed_ms, deliveries, entry.attributes, entry.body, Receipt{.count = 0}});
  };
  const ListState& list = request.dead ? reader_.dead_list : reader_.ready_list;
  for (std::uint64_t skip = 0; !enough(); skip += 64) {
    const auto numbers = list_front(request.dead ? 'g' : 'f', list, skip, 64);
    if (numbers.empty()) break;
    for (const std::uint64_t number : numbers) {
      if (enough()) break;
      TRY_LET(state, alone(number));
      if (!state || state->phase != (request.dead ? Phase::dead : Phase::ready)) continue;
      auto found = get(keys_.numbered('x', descriptor_.era, number));
      if (!found) continue;
      bodies_.push_back(std::move(found->value));
      add(number, state->deliveries);
    }
  }
  std::uint64_t segment = reader_.segment, offset = reader_.offset, number = reader_.taken;
  while (!request.dead && !enough() && number < writer_.appended) {
    const std::string key = keys_.numbered('s', descriptor_.era, segment);
    const auto header = get(key, zht::Range::bytes(offset, kEntryHeader));
    if (!header || header->value.size() < kEntryHeader) {
      if (segment >= writer_.segment) break;
      segment++;
      offset = 0;
      continue;
    }
    const std::uint64_t size = Entry::size_at(header->value);
    auto found = get(key, zht::Range::bytes(offset, size));
    if (!found) break;
    bodies_.push_back(std::move(found->value));
    add(number++, 0);
    offset += size;
  }
  return reply;
}

Result<std::uint64_t> Partition::redrive(std::uint64_t most) {
  TRY(load_writer());
  TRY(load_reader());
  std::uint64_t count = 0;
  while (count < most && !reader_.dead_list.empty() && !tired(6000)) {
    const auto numbers = list_front('g', reader_.dead_list, 0, 1);
    if (numbers.empty())
      return fail(Code::corrupt, "queue partition ", base::escape(keys_.tag()), ": dead-letter list has a hole");
    TRY(list_pop('g', change().dead_list));
    TRY_LET(state, alone(numbers[0]));
    if (!state || state->phase != Phase::dead) continue;  // settled late
    state->deliveries = 0;
    reader_.dead--;
    TRY(come_back(numbers[0], *state, {Phase::ready, true, 0}));
    count++;
  }
  if (count > 0) writer_changed_ = true;  // rings
  return count;
}

Result<std::uint64_t> Partition::purge() {
  TRY(load_writer());
  TRY(load_reader());
  const std::uint64_t count =
      writer_.appended - reader_.taken + reader_.leased + reader_.returned + reader_.waiting + reader_.dead;
  descriptor_.era++;
  TRY(put(keys_.plain('d'), descriptor_.encode()));
  writer_.segment++;
  writer_.segment_size = 0;
  writer_changed_ = true;
  ReaderState& reader = change();
  reader.freed = writer_.stored;
  reader.taken = writer_.appended;
  reader.segment = writer_.segment;
  reader.offset = reader.segment_taken = reader.segment_gone = 0;
  reader.oldest_lease = reader.next_lease;
  reader.leased = reader.returned = reader.waiting = reader.dead = 0;
  reader.purged += count;
  reader.ready_list = reader.dead_list = {};
  const std::uint64_t wheel_now = reader.wheel.now;
  reader.wheel = {};
  reader.wheel.now = wheel_now;
  return count;
}

}  // namespace fabriq

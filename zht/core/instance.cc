#include "zht/core/instance.h"

#include <algorithm>
#include <array>

#include "novoht/base/mutant.h"

namespace zht::core {

using novoht::Change;
using novoht::TableId;
using wire::Frame;
using wire::OperationView;

namespace {

TableId table_of(PartitionId partition) { return static_cast<TableId>(partition); }
std::uint32_t number_of(PartitionId partition) { return static_cast<std::uint32_t>(partition); }

// A value of an older build may have grown past what a frame holds; it is read in parts. The sizes of its fragments travel too.
bool fits_reply(const Slice& slice) { return slice.size + 4 * slice.fragments.size() <= kMaxReplyBytes; }
std::string too_long(const Slice& slice) {
  return std::to_string(slice.size) + " bytes in " + std::to_string(slice.fragments.size()) +
         " fragments do not fit a reply; ask for a range";
}

// Marks a version that is known only once the record is in the log.
constexpr Version kThisRecord = ~Version{0};

void set_version(Outcome& outcome, Version version) {
  if (outcome.version == kThisRecord) outcome.version = version;
  for (Outcome& one : outcome.outcomes) set_version(one, version);
}

}  // namespace

std::string_view name_of(Durability durability) {
  switch (durability) {
    case Durability::none: return "none";
    case Durability::interval: return "interval";
    case Durability::always: return "always";
  }
  return "unknown";
}

Result<Durability> parse_durability(std::string_view text) {
  if (text == "none") return Durability::none;
  if (text == "interval") return Durability::interval;
  if (text == "always") return Durability::always;
  return fail(Code::invalid, "durability \"", base::escape(text), "\" is not one of none, interval, always");
}

Instance::Instance(InstanceOptions options, const Procedures& procedures, std::vector<replication::View> views)
    : options_(std::move(options)), procedures_(procedures), views_(std::move(views)), epochs_(views_.size()),
      changed_at_(options_.durability == Durability::always ? 4096 : 1) {}

Instance::~Instance() = default;

Result<std::unique_ptr<Instance>> Instance::open(base::FileSystem& files, std::string folder, InstanceOptions options,
                                                 const Procedures& procedures, const MembershipTable& table) {
  std::vector<replication::View> views;
  for (const View& one : table.partitions) {
    replication::View& view = views.emplace_back();
    view.epoch = one.epoch;
    const auto member = [&](InstanceId id) {
      for (const InstanceAddress& instance : table.instances)
        if (instance.id == id) return replication::Member{id, instance.member.incarnation};
      return replication::Member{id, 0};
    };
    view.primary = member(one.primary);
    for (InstanceId id : one.sync) view.sync.push_back(member(id));
    for (InstanceId id : one.learners) view.learners.push_back(member(id));
  }
  for (const InstanceAddress& instance : table.instances)
    if (instance.id == options.id && options.incarnation == 0) options.incarnation = instance.member.incarnation;
  return open(files, std::move(folder), std::move(options), procedures, std::move(views));
}

Result<std::unique_ptr<Instance>> Instance::open(base::FileSystem& files, std::string folder, InstanceOptions options,
                                                 const Procedures& procedures, std::vector<replication::View> views) {
  if (!options.clustered) options.timing.copies = options.timing.sync_copies = 1;
  std::unique_ptr<Instance> instance(new Instance(std::move(options), procedures, std::move(views)));
  const InstanceOptions& known = instance->options_;
  ReplicatedStore::Options store;
  store.store.segment_size = known.segment_size;
  store.store.log_floor = known.log_floor;
  store.store.max_key_size = kMaxKeySize;
  store.clustered = known.clustered;
  store.incarnation = known.incarnation;
  store.outdated = known.outdated;
  store.synced_before_shown = known.durability == Durability::always;
  store.boot = known.boot;
  store.store.memory_limit = known.limits.memory;
  store.memory_most = 2 * known.limits.memory;
  store.undo_bytes = known.limits.undo;
  store.results_bytes = known.limits.results;
  store.defects = known.defects;
  TRY_LET(opened, ReplicatedStore::open(files, std::move(folder), store));
  instance->replicated_ = std::move(opened);
  instance->store_ = &instance->replicated_->tables();
  instance->results_ = &instance->replicated_->results();
  const replication::Member self{known.id, known.incarnation};
  const replication::ReplicatorOptions replication{self, instance->partitions(), known.timing, known.defects, known.observer,
                                                    known.home};
  instance->replicator_ = std::make_unique<replication::Replicator>(replication, *instance->replicated_);
  // In a cluster with the first round: from the moment a view is adopted time runs, and here it is not known.
  if (!known.clustered) instance->take_up();
  for (PartitionId held : instance->replicated_->partitions()) {
    if (number_of(held) >= instance->partitions())
      return fail(Code::invalid, "instance ", static_cast<std::uint32_t>(known.id), " holds data of partition ", number_of(held),
                  " of ", instance->partitions());
    if (!known.clustered && instance->epochs_[number_of(held)] == 0)
      return fail(Code::invalid, "instance ", static_cast<std::uint32_t>(known.id), " holds data of partition ", number_of(held),
                  ", which the membership table gives to another");
  }
  instance->transaction_ = std::make_unique<PartitionTransaction>(*instance->store_, base::WallTime{});
  return instance;
}

// The views known at the start, and what is held of other partitions.
void Instance::take_up() {
  taken_up_ = true;
  for (PartitionId held : replicated_->partitions()) (void)replicator_->get(held);
  for (std::uint32_t p = 0; p < partitions(); p++) {
    replicator_->adopt(PartitionId{p}, views_[p]);
    refresh(PartitionId{p});
  }
}

std::size_t Instance::partition_count() const {
  return static_cast<std::size_t>(std::count_if(views_.begin(), views_.end(), [&](const replication::View& view) {
    return view.primary == replicator_->self();
  }));
}

void Instance::begin_round(base::Time now, base::WallTime wall) {
  now_ = now;
  // Expiry follows the wall clock but never back: a key that was once seen expired stays so.
  wall_ = std::max(wall_, wall);
  now_ms_ = base::to_millis(wall_);
  // Members must agree on what is there, and their clocks do not: in a cluster a key is there until its primary has put its
  // removal into the log, which it does before it looks at anything.
  if (!options_.clustered && base::kMutant != base::Mutant::never_expire) store_->set_now(wall_);
  transaction_->set_now(wall_);
  results_->set_now(now_);
  changed_in_round_ = marked_ = false;
  memory_used_ = store_->used_memory();
  round_++;
  needed_ = round_needed_ = 0;
  if (!options_.clustered) return;
  replicator_->begin(now, wall);
  if (!taken_up_) take_up();
}

std::vector<replication::PeerMessage> Instance::take_peer_messages() {
  if (!marked_ && options_.clustered) {
    mark_ = replicator_->mark();
    marked_ = true;
  }
  return replicator_->take_messages();
}

// By hash only: that two keys share a place makes a reply wait that need not.
void Instance::note_change(std::span<const Change> changes) {
  if (options_.durability != Durability::always) return;
  for (const Change& change : changes) changed_at_[base::hash64(change.key) % changed_at_.size()] = round_;
  changed_until_ = needed_ = round_;
}

Result<std::unique_ptr<novoht::SyncJob>> Instance::begin_sync() {
  statistics_.syncs++;
  syncing_until_ = changed_until_;
  auto job = store_->begin_sync();
  if (!job) note_failure(job.error());
  return job;
}

void Instance::finish_sync(const Result<void>& outcome) {
  note_failure(outcome);
  store_->finish_sync(outcome);
  if (outcome) synced_ = std::max(synced_, syncing_until_);
}

Result<void> Instance::end_round(Sync sync) {
  statistics_.rounds++;
  if (!marked_ && options_.clustered) mark_ = replicator_->mark();
  marked_ = true;
  if (options_.clustered) changed_in_round_ = store_->dirty();
  note_work();
  Result<void> written;
  if (changed_in_round_) {
    // A quiet round that rests on nothing new leaves what earlier ones changed to the sync that is under way.
    const bool shown_now = sync == Sync::now && (!is_quiet() || !options_.clustered || std::max(needed_, round_needed_) > synced_);
    if (options_.durability == Durability::always && shown_now) {
      statistics_.syncs++;
      written = store_->sync();
      if (written) synced_ = changed_until_;
    } else {
      written = store_->flush();
    }
    note_failure(written);
  }
  // What is left for later is durable with the next round's mark.
  if (options_.clustered && written && sync == Sync::now) replicator_->durable(mark_, now_);
  return written;
}

void Instance::finish_round(base::Time now) {
  if (!options_.clustered) return;
  replicator_->finish(now);
  for (const replication::Released& one : replicator_->take_released()) release(one);
  if (!replicator_->failed()) look_again(replicator_->done());
}

novoht::Statistics Instance::store_statistics() const {
  novoht::Statistics statistics = store_->statistics();
  constexpr std::size_t most = std::size_t{1} << 21;  // one for each partition, and a few
  statistics.keys -= std::min<std::uint64_t>(statistics.keys, store_->scan(ReplicatedStore::kOrigins, 0, most).entries.size());
  return statistics;
}

Result<void> Instance::close() {
  if (!failure_.empty()) return fail(Code::io, "the store only reads: ", failure_);
  auto closed = replicated_->close();
  note_failure(closed);
  return closed;
}

Result<void> Instance::sync() {
  if (!failure_.empty()) return fail(Code::io, "the store only reads: ", failure_);
  auto synced = store_->sync();
  note_failure(synced);
  if (synced) synced_ = changed_until_;
  return synced;
}

void Instance::note_failure(const Result<void>& outcome) {
  if (outcome || !failure_.empty()) return;
  failure_ = outcome.error().message;
  if (options_.clustered) stop_serving();
  replicated_->distrust();
}

// Nothing may be acknowledged any more.
void Instance::stop_serving() {
  replicator_->fail();
  std::fill(epochs_.begin(), epochs_.end(), 0);
  for (std::uint32_t p = 0; p < partitions(); p++) leave(PartitionId{p});
}

// --- replication ---

void Instance::on_peer(const replication::PeerMessage& message) {
  replicator_->on_message(message);
  for (replication::ViewNews& one : replicator_->take_news()) {
    if (number_of(one.partition) >= partitions()) continue;
    refresh(one.partition);
    news_.push_back(std::move(one));
  }
}

void Instance::adopt(PartitionId partition, const replication::View& view) {
  if (number_of(partition) >= partitions() || !replication::may_follow(views_[number_of(partition)].epoch, view.epoch)) return;
  views_[number_of(partition)] = view;
  replicator_->adopt(partition, view);
  refresh(partition);
}

Result<void> Instance::take_over(PartitionId partition, Epoch epoch, replication::Position end) {
  if (number_of(partition) >= partitions()) return fail(Code::invalid, "partition ", number_of(partition), " of ", partitions());
  return replicator_->take_over(partition, views_[number_of(partition)], epoch, end);
}

// After the partition's view may have changed, or what was under way in it has ended.
void Instance::refresh(PartitionId partition) {
  replication::View& view = views_[number_of(partition)];
  const replication::Replica* const replica = replicator_->look(partition);
  if (replica != nullptr && replica->view().epoch > view.epoch) view = replica->view();
  const bool leads = replica != nullptr && replica->role() == replication::Replica::Role::primary && !replicator_->failed();
  epochs_[number_of(partition)] = leads && replica->is_alone() ? replication::number(view.epoch) : 0;
  if (leads && store_->has_expiries(table_of(partition))) expect_expiry(partition);
  if (!leads && !watchers_.empty()) leave(partition);
}

// Who waits for a key here is sent away: another leads now, or nobody.
void Instance::leave(PartitionId partition) {
  for (const Watcher& watcher : watchers_.take_all(partition)) {
    Send& send = sends_.emplace_back();
    send.to = watcher.connection;
    encode_retry(static_cast<std::uint8_t>(OpKind::callback), watcher.request, partition, send.frame);
  }
}

void Instance::hold(replication::Replica& replica, ConnectionId to, std::uint64_t request, std::uint8_t op, PartitionId partition,
                    replication::Held what, std::string frame) {
  what.token = first_token_ + waiting_.size();
  waiting_bytes_ += frame.size();
  waiting_.push_back({to, request, partition, op, true, std::move(frame)});
  statistics_.held++;
  replica.hold(what);
}

void Instance::release(const replication::Released& released) {
  Waiting& waiting = waiting_[released.token - first_token_];
  waiting.waits = false;
  if (waiting.to == kCutMark) {
    if (cut_ != nullptr && cut_->id() == waiting.request) cut_->confirm(waiting.partition, released.shown);
    for (; !waiting_.empty() && !waiting_.front().waits; first_token_++) waiting_.pop_front();
    return;
  }
  waiting_bytes_ -= waiting.frame.size();
  if (!released.shown) {
    statistics_.let_go++;
    const bool executed = !waiting.frame.empty();
    waiting.frame.clear();
    encode_retry(waiting.op, waiting.request, waiting.partition, waiting.frame, executed);
  }
  if (!sends_.empty() && sends_.back().to == waiting.to) sends_.back().frame += waiting.frame;
  else sends_.push_back({waiting.to, std::move(waiting.frame)});
  waiting.frame.clear();
  for (; !waiting_.empty() && !waiting_.front().waits; first_token_++) waiting_.pop_front();
}

void Instance::reads_key(Bytes key) {
  if (changed_until_ > synced_) needed_ = std::max(needed_, changed_at_[base::hash64(key) % changed_at_.size()]);
  if (replica_ != nullptr) hold_.need = replica_->need_of(base::hash64(key));
}

// What may be answered now although others are in the view: it says nothing of what is there.
void Instance::answer_at_once(const Frame& frame, const Error& error, std::string& out) {
  at_once_ = true;
  answer_error(frame, error, out);
}

bool Instance::may_read_eventually(replication::Replica* replica, PartitionId partition, const OperationView& operation) const {
  if (replica == nullptr || !operation.eventual || operation.kind != OpKind::lookup) return false;
  if (!replica->reads_eventually() || replicated_->unsettled(partition, operation.key)) return false;
  // A session that has seen a version is not shown what was before it.
  return operation.condition != Condition::Kind::version_after || replica->commit() >= operation.condition_version;
}

void Instance::on_replicated(ConnectionId from, const Frame& frame, const OperationView& operation, std::string& out) {
  constexpr std::size_t kMostWaiting = std::size_t{1} << 17;
  const PartitionId partition{frame.partition};
  replication::Replica* const replica = replicator_->failed() ? nullptr : replicator_->find(partition);
  if (may_read_eventually(replica, partition, operation)) {
    if (auto checked = check_operation(operation, partition); !checked) return answer_error(frame, checked.error(), out);
    return do_lookup(frame, operation, out);
  }
  const bool waits = replica != nullptr && from != ConnectionId{0} && waiting_.size() < kMostWaiting && replica->hands_over(Epoch{frame.epoch});
  if (waits)
    return hold(*replica, from, frame.request, frame.op, partition, {.need = replication::Held::never}, {});
  if (replica == nullptr || !replica->serves(Epoch{frame.epoch})) return answer_retry(frame, out);
  if (from == ConnectionId{0}) {  // a datagram's sender cannot be answered later
    const std::size_t start = wire::begin_reply(
        out, {.op = frame.op, .status = wire::kStatusStream, .request = frame.request, .epoch = frame.epoch, .partition = frame.partition});
    return wire::end_reply(out, start);
  }
  if (auto checked = check_operation(operation, partition); !checked) return answer_error(frame, checked.error(), out);
  if (waiting_.size() >= kMostWaiting || waiting_bytes_ >= options_.limits.waiting) {
    statistics_.refused_for_room++;
    const Error error = fail(Code::unavailable, waiting_.size(), " answers of ", waiting_bytes_, " bytes wait for other copies; the limits are ",
                             kMostWaiting, " and ", options_.limits.waiting);
    return answer_error(frame, error, out);
  }
  remove_expired(partition, replica);
  transaction_->set_now(replica->time());
  replica_ = replica;
  hold_ = {0, replica->end().sequence, true, {}};
  at_once_ = false;
  const std::size_t start = out.size();
  execute(from, frame, operation, out);
  transaction_->set_now(wall_);
  replica_ = nullptr;
  if (out.size() == start || at_once_) return;
  if (hold_.need > replica->commit() && replica->is_short()) {  // it rests on what may be committed later, or never
    out.resize(start);
    return encode_retry(frame.op, frame.request, partition, out, true, replica->short_words());
  }
  hold(*replica, from, frame.request, frame.op, partition, hold_, out.substr(start));
  out.resize(start);
}

std::size_t Instance::on_frames(ConnectionId from, std::span<const Frame> frames, std::string& out, std::size_t most) {
  const std::size_t had = out.size();
  std::array<novoht::TableKey, kTogether> keys;
  std::array<Bytes, kTogether> notes;
  for (std::size_t begin = 0; begin < frames.size(); begin += kTogether) {
    const auto some = frames.subspan(begin, std::min(kTogether, frames.size() - begin));
    if (some.size() > 1) {
      std::size_t count = 0;
      for (const Frame& frame : some)
        if (frame.type == wire::FrameType::request && !frame.key.empty()) {
          __builtin_prefetch(epochs_.data() + frame.partition);
          keys[count++] = {TableId{frame.partition}, frame.key};
        }
      store_->prefetch_all(std::span(keys).first(count));
    }
    for (std::size_t i = 0; i < some.size(); i++) notes[i] = prepare_note(some[i], i);
    for (std::size_t i = 0; i < some.size(); i++) {
      prepared_ = notes[i];
      take(from, some[i], out);
      if (out.size() - had >= most) return begin + i + 1;
    }
  }
  return frames.size();
}

void Instance::on_frame(ConnectionId from, const Frame& frame, std::string& out) {
  prepared_ = prepare_note(frame, 0);
  take(from, frame, out);
}

// The note of what may be an insert is written well before it is copied into the log: numbers that are read again at once, in
// wider pieces, have to wait until all writes before them have reached the cache.
Bytes Instance::prepare_note(const Frame& frame, std::size_t place) {
  if (static_cast<OpKind>(frame.op) != OpKind::insert) return {};
  encode_insert_note(notes_[place].data(), frame.client(), frame.sequence(), frame.floor(), now_ms_, frame.value.size());
  return {notes_[place].data(), kInsertNoteSize};
}

void Instance::take(ConnectionId from, const Frame& frame, std::string& out) {
  if (frame.type == wire::FrameType::goodbye) {
    results_->forget(frame.client());
    return;
  }
  if (frame.type != wire::FrameType::request)
    return answer_error(frame, fail(Code::invalid, "frame of type ", static_cast<int>(frame.type), " is not for an instance"), out);
  if (pauses() && park(from, frame, out)) [[unlikely]] return;
  statistics_.operations++;
  statistics_.by_kind[frame.op < statistics_.by_kind.size() ? frame.op : 0]++;
  if (frame.extra.empty()) return take_as(from, frame, plain_, out);
  OperationView operation;
  take_as(from, frame, operation, out);
}

// `operation`: empty, or that of a request without extra fields, which sets the same fields as this one.
void Instance::take_as(ConnectionId from, const Frame& frame, OperationView& operation, std::string& out) {
  if (auto decoded = wire::decode_operation(frame, operation); !decoded) return answer_error(frame, decoded.error(), out);
  const PartitionId partition{frame.partition};
  if (number_of(partition) >= partitions())
    return answer_error(frame, fail(Code::invalid, "partition ", frame.partition, " of ", partitions()), out);
  if (frame.epoch == 0 || frame.epoch != epochs_[frame.partition]) [[unlikely]]
    return on_replicated(from, frame, operation, out);
  if (auto checked = check_operation(operation, partition); !checked) return answer_error(frame, checked.error(), out);
  if (options_.clustered) remove_expired(partition, nullptr);
  execute(from, frame, operation, out);
}

void Instance::execute(ConnectionId from, const Frame& frame, const OperationView& operation, std::string& out) {
  switch (operation.kind) {
    case OpKind::lookup: return do_lookup(frame, operation, out);
    case OpKind::callback: return do_callback(from, frame, operation, out);
    case OpKind::scan: return do_scan(frame, operation, out);
    case OpKind::insert:
      if (operation.condition == Condition::Kind::none) return do_insert(frame, operation, out);
      [[fallthrough]];
    default: return do_change(frame, operation, out);
  }
}

Result<void> Instance::check_operation(const OperationView& operation, PartitionId partition) const {
  if (operation.kind == OpKind::scan) return {};
  if (operation.kind == OpKind::batch) {
    if (operation.operation_count == 0) return fail(Code::invalid, "batch: no operations");
    if (operation.operation_count > kMaxBatchSize)
      return fail(Code::invalid, "batch: ", operation.operation_count, " operations, the limit is ", kMaxBatchSize);
    Bytes rest = operation.operations;
    for (std::uint32_t i = 0; i < operation.operation_count; i++) {
      TRY_LET(one, wire::next_operation(rest));
      if (one.kind == OpKind::callback || one.kind == OpKind::batch || one.kind == OpKind::scan)
        return fail(Code::invalid, "batch: operation ", i, " is a callback, batch or scan");
      if (auto checked = check_operation(one, partition); !checked)
        return base::add_context("batch: operation " + std::to_string(i), checked.error());
    }
    if (!rest.empty()) return fail(Code::invalid, "batch: ", rest.size(), " bytes after its last operation");
    return {};
  }
  if (operation.key.empty() || operation.key.size() > kMaxKeySize)
    return fail(Code::invalid, "key of ", operation.key.size(), " bytes; 1 to ", kMaxKeySize, " are allowed");
  if (operation.value.size() > options_.max_value_size)
    return fail(Code::invalid, "value of ", operation.value.size(), " bytes; the limit is ", options_.max_value_size);
  if (partition_of(operation.key, partitions()) != partition)
    return fail(Code::invalid, "key \"", base::escape(operation.key), "\" is not in partition ", number_of(partition));
  return {};
}

void Instance::answer_error(const Frame& frame, const Error& error, std::string& out) const {
  const std::size_t start = wire::begin_reply(
      out, {.op = frame.op, .status = static_cast<std::uint8_t>(error.code), .request = frame.request, .epoch = frame.epoch,
            .partition = frame.partition},
      error.message);
  wire::end_reply(out, start);
}

void Instance::answer_retry(const Frame& frame, std::string& out) {
  statistics_.redirects++;
  at_once_ = true;
  encode_retry(frame.op, frame.request, PartitionId{frame.partition}, out);
}

// With the newest view known here, for the asker. `maybe`: it was executed, and perhaps it counts.
void Instance::encode_retry(std::uint8_t op, std::uint64_t request, PartitionId partition, std::string& out, bool maybe, Bytes why) {
  const replication::View& view = view_of(partition);
  const std::uint32_t flags = (view.epoch != Epoch{0} ? std::uint32_t{wire::kPresent} : 0u) | (maybe ? std::uint32_t{wire::kRetry} : 0u);
  const std::size_t start = wire::begin_reply(out, {.op = op, .status = wire::kStatusRetry, .flags = flags, .request = request,
                                                    .size = static_cast<std::uint32_t>(view.primary.instance),
                                                    .epoch = replication::number(view.epoch), .partition = number_of(partition)},
                                              why);
  wire::end_reply(out, start);
}

void Instance::answer(const Frame& frame, const Outcome& outcome, std::string& out) const {
  wire::encode_reply(out, static_cast<OpKind>(frame.op), outcome, frame.request, frame.epoch, frame.partition);
}

void Instance::answer_recorded(const Frame& frame, const Recorded& recorded, std::string& out) const {
  Outcome outcome;
  if (!recorded.outcome) {
    outcome.present = recorded.present;
    outcome.version = recorded.version;
    outcome.size = recorded.size;
    outcome.fragment_count = recorded.fragment_count;
    if (recorded.kind == OpKind::append && recorded.fragment_count > 0) outcome.fragment_index = recorded.fragment_count - 1;
  } else {
    Bytes bytes = *recorded.outcome;
    auto decoded = wire::decode_outcome(bytes);
    if (!decoded) return answer_error(frame, decoded.error(), out);
    outcome = std::move(decoded).value();
    if (!recorded.refused) set_version(outcome, recorded.version);
  }
  answer(frame, outcome, out);
}

void Instance::fill(Outcome& outcome, const Seen& seen, const Range& range) {
  outcome.present = seen.present;
  if (!seen.present) return;
  outcome.version = seen.changed ? kThisRecord : seen.version;
  outcome.size = seen.size;
  outcome.fragment_count = seen.fragment_count;
  Slice slice = slice_of(seen, range);
  if (!fits_reply(slice)) {
    outcome.code = Code::invalid;
    outcome.message = too_long(slice);
    return;
  }
  outcome.offset = slice.offset;
  outcome.fragments = std::move(slice.fragments);
  if (auto read = seen.read(slice.offset, slice.size, outcome.value); !read) {
    outcome.code = read.code();
    outcome.message = read.error().message;
  }
}

// The hot path of reads: the value goes from the store straight into the reply.
void Instance::do_lookup(const Frame& frame, const OperationView& operation, std::string& out) {
  reads_key(operation.key);
  const auto stored = store_->lookup(table_of(PartitionId{frame.partition}), operation.key);
  if (!stored) return answer_error(frame, {Code::not_found, "no key \"" + base::escape(operation.key) + "\""}, out);
  Seen seen;
  seen.present = true;
  seen.size = stored->size();
  seen.fragment_count = stored->fragment_count();
  seen.stored = *stored;
  const Slice slice = slice_of(seen, operation.range);
  if (!fits_reply(slice)) return answer_error(frame, {Code::invalid, too_long(slice)}, out);
  const std::size_t start = wire::begin_reply(out, {.op = frame.op,
                                                    .flags = wire::kPresent,
                                                    .request = frame.request,
                                                    .version = stored->version(),
                                                    .size = stored->size(),
                                                    .offset = slice.offset,
                                                    .epoch = frame.epoch,
                                                    .partition = frame.partition});
  if (auto read = stored->read(slice.offset, slice.size, out); !read) {
    out.resize(start);
    return answer_error(frame, read.error(), out);
  }
  if constexpr (base::kMutant == base::Mutant::stale_read) {
    static thread_local std::map<std::string, std::string, std::less<>> before;
    static thread_local unsigned count = 0;
    std::string& last = before[std::string(operation.key)];
    const std::string value = out.substr(out.size() - slice.size);
    if (last.size() == value.size() && ++count % 8 == 0) out.replace(out.size() - slice.size, slice.size, last);
    else last = value;
  }
  if (stored->fragment_count() == 1) return wire::end_reply(out, start);
  Outcome more;
  more.fragment_count = stored->fragment_count();
  more.fragments = slice.fragments;
  std::string extra;
  wire::encode_outcome_extra(extra, more);
  wire::end_reply(out, start, extra);
}

bool Instance::satisfied(const Condition& condition, const Seen& seen) const {
  switch (condition.kind) {
    case Condition::Kind::none: return true;
    case Condition::Kind::absent: return !seen.present;
    case Condition::Kind::present: return seen.present;
    case Condition::Kind::value: {
      const auto equal = seen.equals(condition.value);
      return equal && *equal;
    }
    case Condition::Kind::version: return seen.present && !seen.changed && seen.version == condition.version;
    // An absent key has no version of its own; one who had seen a version knows that it was removed since.
    case Condition::Kind::version_after: return seen.present ? seen.changed || seen.version > condition.version : condition.version > 0;
  }
  return false;
}

void Instance::do_callback(ConnectionId from, const Frame& frame, const OperationView& operation, std::string& out) {
  Watcher watcher;
  watcher.connection = from;
  watcher.request = frame.request;
  watcher.partition = PartitionId{frame.partition};
  watcher.key = std::string(operation.key);
  watcher.condition = {operation.condition, std::string(operation.condition_value), operation.condition_version};
  watcher.range = operation.range;
  watcher.deadline = now_ + std::chrono::milliseconds(std::min<std::uint64_t>(operation.timeout_ms, 1'000'000'000));
  if (operation.condition == Condition::Kind::none)
    return answer_error(frame, fail(Code::invalid, "callback: no condition to wait for"), out);
  reads_key(operation.key);
  // Looked at first, so that a change just before registration is not missed.
  transaction_->begin(table_of(watcher.partition), {});
  const Seen seen = transaction_->see(operation.key);
  if (satisfied(watcher.condition, seen)) {
    Outcome outcome;
    fill(outcome, seen, operation.range);
    return answer(frame, outcome, out);
  }
  if (operation.timeout_ms == 0)
    return answer_error(frame, fail(Code::timeout, "the condition on key \"", base::escape(operation.key), "\" does not hold"), out);
  if (auto added = watchers_.add(std::move(watcher)); !added) answer_error(frame, added.error(), out);
}

void Instance::do_scan(const Frame& frame, const OperationView& operation, std::string& out) {
  rests_on_all();
  // Keys may be long: a page ends when it has enough bytes, too.
  constexpr std::size_t enough = std::size_t{4} << 20, step = 128;
  const std::size_t limit = operation.limit == 0 ? 1000 : std::min<std::uint64_t>(operation.limit, 10'000);
  Outcome outcome;
  outcome.cursor = operation.cursor;
  std::size_t bytes = 0;
  do {
    auto page = store_->scan(table_of(PartitionId{frame.partition}), outcome.cursor, std::min(step, limit - outcome.entries.size()),
                             operation.key);
    outcome.cursor = page.cursor;
    for (auto& entry : page.entries) {
      bytes += entry.key.size();
      outcome.entries.push_back({std::move(entry.key), entry.version, entry.size});
    }
  } while (outcome.cursor != 0 && bytes < enough && outcome.entries.size() < limit);
  answer(frame, outcome, out);
}

Outcome Instance::refusal(Code code, std::string message, const Seen& seen) {
  Outcome outcome;
  fill(outcome, seen, seen.size <= options_.max_value_size ? Range::whole() : Range::nothing());
  outcome.code = code;
  outcome.message = std::move(message);
  return outcome;
}

base::WallTime Instance::expiry_of(const OperationView& operation) const {
  if (operation.ttl_ms == 0) return base::kNever;
  return base::from_millis(base::to_millis(transaction_->now()) + std::min<std::uint64_t>(operation.ttl_ms, kMaxTtl.count()));
}

Outcome Instance::evaluate(const OperationView& operation) {
  const auto failed = [](const Error& error) {
    Outcome outcome;
    outcome.code = error.code;
    outcome.message = error.message;
    return outcome;
  };
  const auto quoted = [&] { return "\"" + base::escape(operation.key) + "\""; };
  if (operation.kind == OpKind::batch) return evaluate_batch(operation);
  if (operation.kind == OpKind::update) return evaluate_update(operation);

  Outcome outcome;
  // A plain insert (here one of a batch) need not look at what is there.
  if (operation.kind == OpKind::insert && operation.condition == Condition::Kind::none) {
    if (auto put = transaction_->put(Change::insert(operation.key, operation.value, expiry_of(operation))); !put) return failed(put.error());
    outcome.present = true;
    outcome.version = kThisRecord;
    outcome.size = operation.value.size();
    outcome.fragment_count = 1;
    return outcome;
  }
  const Seen seen = transaction_->see(operation.key);
  if (operation.kind == OpKind::lookup) {
    if (!seen.present) return refusal(Code::not_found, "no key " + quoted(), seen);
    fill(outcome, seen, operation.range);
    return outcome;
  }
  const Condition condition{operation.condition, std::string(operation.condition_value), operation.condition_version};
  if (operation.kind == OpKind::remove && !seen.present && !operation.missing_ok)
    return refusal(Code::not_found, "no key " + quoted(), seen);
  if (!satisfied(condition, seen))
    return refusal(Code::conflict, seen.present ? "key " + quoted() + " is not as expected" : "key " + quoted() + " is absent", seen);
  switch (operation.kind) {
    case OpKind::remove:
      if (seen.present)
        if (auto put = transaction_->put(Change::remove(operation.key)); !put) return failed(put.error());
      outcome.version = seen.present ? kThisRecord : 0;
      return outcome;
    case OpKind::append: {
      const std::uint64_t size = seen.size + operation.value.size();
      if (operation.limit != 0 && size > operation.limit)
        return refusal(Code::no_space,
                       "key " + quoted() + " would grow to " + std::to_string(size) + " bytes, past the limit of " +
                           std::to_string(operation.limit),
                       seen);
      const Change change = seen.present ? Change::append(operation.key, operation.value)
                                         : Change::insert(operation.key, operation.value, expiry_of(operation));
      if (auto put = transaction_->put(change); !put) return failed(put.error());
      outcome.present = true;
      outcome.version = kThisRecord;
      outcome.size = size;
      outcome.fragment_index = seen.present ? seen.fragment_count : 0;
      outcome.fragment_count = outcome.fragment_index + 1;
      return outcome;
    }
    case OpKind::insert:
    case OpKind::cswap: {
      if (operation.kind == OpKind::cswap && operation.desired == Desired::keep) {
        fill(outcome, seen, Range::nothing());
        return outcome;
      }
      const bool remove = operation.kind == OpKind::cswap && operation.desired == Desired::remove;
      if (remove && !seen.present) return outcome;
      const Change change = remove ? Change::remove(operation.key) : Change::insert(operation.key, operation.value, expiry_of(operation));
      if (auto put = transaction_->put(change); !put) return failed(put.error());
      outcome.version = kThisRecord;
      outcome.present = !remove;
      outcome.size = remove ? 0 : operation.value.size();
      outcome.fragment_count = remove ? 0 : 1;
      return outcome;
    }
    default: return failed(fail(Code::invalid, "operation ", static_cast<int>(operation.kind), " cannot be evaluated"));
  }
}

Outcome Instance::evaluate_batch(const OperationView& operation) {
  Outcome outcome;
  Bytes rest = operation.operations;
  std::size_t answered = 0;
  for (std::uint32_t i = 0; i < operation.operation_count; i++) {
    const auto one = wire::next_operation(rest);  // was decoded once already: check_operation
    Outcome result = evaluate(*one);
    const Code code = result.code;
    answered += result.value.size();
    outcome.outcomes.push_back(std::move(result));
    if (code == Code::ok && answered <= kMaxWrittenBytes / 2) continue;
    outcome.code = code == Code::ok ? Code::no_space : code;
    outcome.failed_index = i;
    outcome.message = "batch: operation " + std::to_string(i) + ": " +
                      (code == Code::ok ? "the values read are too many bytes for one reply" : outcome.outcomes.back().message);
    return outcome;
  }
  return outcome;
}

Outcome Instance::evaluate_update(const OperationView& operation) {
  Outcome outcome;
  const auto refuse = [&](const Error& error) {
    outcome.code = error.code == Code::ok ? Code::invalid : error.code;
    outcome.message = error.message;
    outcome.value.clear();
    return outcome;
  };
  const Procedure* procedure = procedures_.find(operation.procedure);
  if (procedure == nullptr)
    return refuse(fail(Code::invalid, "no procedure \"", base::escape(operation.procedure), "\" on this node"));
  try {
    auto result = (*procedure)(*transaction_, operation.key, operation.value);
    if (transaction_->failed()) return refuse(*transaction_->failed());
    if (!result) return refuse(result.error());
    outcome.value = std::move(result).value();
  } catch (const std::exception& error) {  // a library's, inside the service's code
    return refuse(fail(Code::invalid, "procedure \"", base::escape(operation.procedure), "\" failed: ", error.what()));
  }
  outcome.version = transaction_->changes().empty() ? 0 : kThisRecord;
  return outcome;
}

bool Instance::admit(const Frame& frame, std::string& out) {
  if (frame.sequence() == 0 || frame.client() == 0) {
    answer_at_once(frame, fail(Code::invalid, "a change without the identity of its client"), out);
    return false;
  }
  if constexpr (base::kMutant == base::Mutant::refuse_changes) {
    answer_at_once(frame, fail(Code::unavailable, "a mutant refuses every change"), out);
    return false;
  }
  if (base::kMutant == base::Mutant::execute_twice) return true;
  if (replica_ != nullptr && options_.defects.has(replication::Defect::no_retry_table)) return true;
  const auto seen = results_->find(PartitionId{frame.partition}, frame.client(), frame.sequence(), frame.flags & wire::kRetry);
  switch (seen.verdict) {
    case ResultTable::Verdict::fresh: break;
    case ResultTable::Verdict::expired:
      answer_at_once(frame, fail(Code::timeout, "request ", frame.sequence(), " is too old to know whether it happened"), out);
      return false;
    case ResultTable::Verdict::full:
      statistics_.refused_for_room++;
      answer_at_once(frame, fail(Code::unavailable, "answers kept for clients that have not said that they have them take ", results_->bytes(),
                                 " bytes; the limits are ", results_->most(), " and ", ResultTable::kMaxResults, " answers of one client"), out);
      return false;
    case ResultTable::Verdict::answered:
      // A refusal counts for the epoch it was made in: what was refused by a primary that did not know yet that it was
      // deposed must not be repeated.
      if (seen.recorded->refused && seen.recorded->version != frame.epoch) break;
      statistics_.retries_answered++;
      rests_on_all();
      if (!seen.recorded->refused) {
        hold_.need = seen.recorded->version;
        hold_.reads = false;
      }
      if (!failure_.empty() && !seen.recorded->refused)
        answer_error(frame, fail(Code::timeout, "the store failed, the change may be lost: ", failure_), out);
      else
        answer_recorded(frame, *seen.recorded, out);
      return false;
  }
  if (replica_ != nullptr && replica_->is_short()) {  // nothing of it is done
    answer_at_once(frame, fail(Code::unavailable, replica_->short_words()), out);
    return false;
  }
  if (replica_ != nullptr && replica_->is_crowded()) {
    statistics_.refused_for_room++;
    answer_at_once(frame, fail(Code::unavailable, "changes of ", replicator_->tails().uncommitted, " bytes wait for other copies; the limit is ",
                               options_.timing.all_uncommitted_bytes), out);
    return false;
  }
  if (failure_.empty()) return true;
  answer_error(frame, fail(Code::io, "the store only reads: ", failure_), out);
  return false;
}

Result<void> Instance::check_memory(std::span<const Change> changes) {
  const std::uint64_t limit = options_.limits.memory;
  if (memory_used_ <= limit + limit / 4 || limit == 0) [[likely]]
    return {};
  std::uint64_t added = 0;
  bool removes = false;
  for (const Change& change : changes) {
    removes = removes || change.kind == Change::Kind::remove;
    if (change.kind != Change::Kind::remove) added += change.key.size() + change.value.size();
  }
  memory_used_ += added;
  if (added == 0 || (removes && memory_used_ <= limit + limit / 2)) return {};
  statistics_.refused_for_memory++;
  return fail(Code::no_space, "values and index take ", memory_used_, " bytes of memory here, the limit is ", limit, " (memory_limit)");
}

// What was executed is remembered: here, or by the store when it takes the entry.
Result<Version> Instance::apply(PartitionId partition, std::span<const Change> changes, Note&& note) {
  TRY(check_memory(changes));
  note_expiries(partition, changes);
  note_.clear();
  encode_note(note_, note);
  if (replica_ != nullptr) {
    std::vector<std::uint64_t> keys;
    for (const Change& change : changes) keys.push_back(base::hash64(change.key));
    TRY_LET(version, replica_->append(encode_entry(changes, note_), keys));
    hold_.need = version;
    hold_.reads = false;
    statistics_.changes++;
    return version;
  }
  if (cut_ != nullptr) cut_->before(partition, changes);
  TRY_LET(version, store_->apply(table_of(partition), changes, note_, epochs_[number_of(partition)]));
  statistics_.changes++;
  changed_in_round_ = true;
  note_change(changes);
  note.recorded.version = version;
  results_->record(partition, std::move(note));
  return version;
}

void Instance::do_insert(const Frame& frame, const OperationView& operation, std::string& out) {
  if (!admit(frame, out)) return;
  const PartitionId partition{frame.partition};
  const Change change = Change::insert(operation.key, operation.value, expiry_of(operation));
  Result<Version> version = Version{0};
  if (replica_ != nullptr) {
    Note note{frame.client(), frame.sequence(), frame.floor(), now_ms_, {}};
    note.recorded.kind = OpKind::insert;
    note.recorded.present = true;
    note.recorded.size = operation.value.size();
    note.recorded.fragment_count = 1;
    version = apply(partition, {&change, 1}, std::move(note));
  } else {
    if (auto room = check_memory({&change, 1}); !room) [[unlikely]]
      return refuse(frame, operation.kind, room.error(), out);
    if (cut_ != nullptr) [[unlikely]] cut_->before(partition, {&change, 1});
    note_expiries(partition, {&change, 1});
    version = store_->apply(table_of(partition), {&change, 1}, prepared_, epochs_[frame.partition]);
    if (version) {
      statistics_.changes++;
      changed_in_round_ = true;
      note_change({&change, 1});
      results_->record_insert(partition, frame.client(), frame.sequence(), frame.floor(), operation.value.size(), *version);
    }
  }
  if (!version) return refuse(frame, operation.kind, std::move(version).error(), out);
  if (!watchers_.empty()) notify(partition, {&change, 1}, replica_, *version);
  const std::size_t start = wire::begin_reply(out, {.op = frame.op,
                                                    .flags = wire::kPresent,
                                                    .request = frame.request,
                                                    .version = *version,
                                                    .size = operation.value.size(),
                                                    .epoch = frame.epoch,
                                                    .partition = frame.partition});
  wire::end_reply(out, start);
}

// Nothing changed. Remembered in this life, so that a copy of the request still under way cannot do otherwise.
void Instance::remember_refusal(const Frame& frame, OpKind kind, const Outcome& outcome) {
  if (options_.defects.has(replication::Defect::forget_refusals)) return;
  Note note{frame.client(), frame.sequence(), frame.floor(), now_ms_, {}};
  note.recorded.kind = kind;
  note.recorded.refused = true;
  note.recorded.version = frame.epoch;
  note.recorded.outcome = std::make_unique<std::string>();
  wire::encode_outcome(*note.recorded.outcome, outcome);
  results_->record(PartitionId{frame.partition}, std::move(note));
}

void Instance::refuse(const Frame& frame, OpKind kind, const Error& error, std::string& out) {
  // The disk failed since the last round, under the store's own housekeeping. Nothing was done, and another may do it.
  if (options_.clustered && error.code == Code::io) {
    note_failure(error);
    return answer_retry(frame, out);
  }
  // The cluster has room: whoever has it leads soon.
  if (replica_ != nullptr && error.code == Code::no_space && replica_->another_has_room()) {
    at_once_ = true;
    return encode_retry(frame.op, frame.request, PartitionId{frame.partition}, out, false, "no room where the partition is led; another takes over");
  }
  Outcome refused;
  refused.code = error.code;
  refused.message = error.message;
  remember_refusal(frame, kind, refused);
  answer(frame, refused, out);
}

void Instance::do_change(const Frame& frame, const OperationView& operation, std::string& out) {
  if (!admit(frame, out)) return;
  const PartitionId partition{frame.partition};
  const Bytes first_key = operation.key;
  transaction_->begin(table_of(partition), first_key.empty() ? Bytes() : hash_tag(first_key));
  if (operation.kind == OpKind::batch) {
    // Procedures inside a batch see the tag of the batch's first key.
    Bytes rest = operation.operations;
    transaction_->begin(table_of(partition), hash_tag(wire::next_operation(rest)->key));
  }
  if (!first_key.empty() && operation.kind != OpKind::update) reads_key(first_key);
  else rests_on_all();
  Outcome outcome = evaluate(operation);
  if (outcome.code != Code::ok || transaction_->changes().empty()) {
    set_version(outcome, 0);
    remember_refusal(frame, operation.kind, outcome);
    return answer(frame, outcome, out);
  }
  Note note{frame.client(), frame.sequence(), frame.floor(), now_ms_, {}};
  note.recorded.kind = operation.kind;
  note.recorded.present = outcome.present;
  note.recorded.size = outcome.size;
  note.recorded.fragment_count = outcome.fragment_count;
  if (operation.kind == OpKind::update || operation.kind == OpKind::batch) {
    note.recorded.outcome = std::make_unique<std::string>();
    wire::encode_outcome(*note.recorded.outcome, outcome);
  }
  const auto applied = apply(partition, transaction_->changes(), std::move(note));
  if (!applied) return refuse(frame, operation.kind, applied.error(), out);
  set_version(outcome, *applied);
  if (!watchers_.empty()) notify(partition, transaction_->changes(), replica_, *applied);
  answer(frame, outcome, out);
}

// What they are told must wait until the change is committed.
void Instance::notify(PartitionId partition, std::span<const Change> changes, replication::Replica* replica, Version version) {
  if constexpr (base::kMutant == base::Mutant::never_wake) return;
  std::vector<std::string> keys;
  for (const Change& change : changes)
    if (std::string key(change.key); watchers_.watched(key) && std::find(keys.begin(), keys.end(), key) == keys.end())
      keys.push_back(std::move(key));
  if (keys.empty()) return;
  transaction_->begin(table_of(partition), {});  // the changes are in the store now; `changes` is of no more use
  for (const std::string& key : keys) {
    const Seen seen = transaction_->see(key);
    for (const Watcher& watcher : watchers_.take(key, [&](const Watcher& one) { return satisfied(one.condition, seen); })) {
      std::string frame = news_for(watcher, seen);
      if (replica == nullptr || options_.defects.has(replication::Defect::wake_uncommitted))
        sends_bytes_ += frame.size(), sends_.push_back({watcher.connection, std::move(frame)});
      else
        hold(*replica, watcher.connection, watcher.request, static_cast<std::uint8_t>(OpKind::callback), partition,
             {0, version, false, {}}, std::move(frame));
    }
  }
}

// Thousands may wait for one key, and its value be long. Past the limit they are told to ask again: what they wait for is there, and then
// each gets it as an answer that its connection has room for.
std::string Instance::news_for(const Watcher& watcher, const Seen& seen) {
  std::string frame;
  if (waiting_bytes_ + sends_bytes_ < options_.limits.waiting) {
    Outcome outcome;
    fill(outcome, seen, watcher.range);
    frame = frame_for(watcher, outcome);
  } else {
    statistics_.refused_for_room++;
    encode_retry(static_cast<std::uint8_t>(OpKind::callback), watcher.request, watcher.partition, frame);
  }
  return frame;
}

InstanceBytes Instance::bytes() const {
  InstanceBytes bytes;
  bytes.undo = replicated_->undo_bytes();
  bytes.waiting = waiting_bytes_ + sends_bytes_;
  bytes.results = results_->bytes();
  bytes.tails = replicator_->tails().all;
  bytes.uncommitted = replicator_->tails().uncommitted;
  bytes.watchers = watchers_.bytes();
  return bytes;
}

std::string Instance::frame_for(const Watcher& watcher, const Outcome& outcome) const {
  std::string frame;
  wire::encode_reply(frame, OpKind::callback, outcome, watcher.request, replication::number(view_of(watcher.partition).epoch),
                     number_of(watcher.partition));
  return frame;
}

void Instance::on_closed(ConnectionId connection) {
  watchers_.drop(connection);
  for (Parked& one : parked_)
    if (one.from == connection) one.from = ConnectionId{0};  // nobody would hear of it
}

}  // namespace zht::core

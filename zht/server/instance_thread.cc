#include "zht/server/instance_thread.h"

#include <pthread.h>

#include <algorithm>
#include <asio/post.hpp>

#include "zht/client/session.h"
#include "zht/core/replication/peer_frame.h"
#include "zht/support/log.h"

namespace zht::server {

namespace {
constexpr int kCrowded = 16;

// Housekeeping comes in slices short enough that no request notices one: a tenth of the time while requests come, all of it that
// nobody else wants while none do.
constexpr auto kSlice = std::chrono::microseconds(50), kLongestSlice = std::chrono::microseconds(200);
constexpr int kShare = 10;

const support::Log& logger() {
  static const support::Log log("zht.instance");
  return log;
}
}  // namespace

InstanceThread::InstanceThread(Options options, base::FileSystem& files, const base::Clock& clock,
                               const Procedures& procedures, const PublishedTable& table,
                               asio::thread_pool& sync_pool)
    : options_(std::move(options)), files_(files), clock_(clock), procedures_(procedures), table_(table),
      sync_pool_(sync_pool), latencies_(std::tuple_size_v<decltype(noted_)>) {
  options_.core.maintain_budget = kSlice;
}

InstanceThread::~InstanceThread() { stop(); }

base::Result<void> InstanceThread::open() {
  TRY_LET(core, core::Instance::open(files_, options_.folder, options_.core, procedures_, std::move(options_.views)));
  core_ = std::move(core);
  const auto store = core_->store_statistics();
  logger().info("recovered", {{"instance", static_cast<std::uint32_t>(options_.core.id)},
                              {"keys", store.keys},
                              {"records", store.recovered_records},
                              {"bytes", store.recovered_bytes},
                              {"torn_bytes_cut", store.torn_bytes_cut}});
  net::FrameHandler& handler = *this;
  endpoint_ = std::make_unique<net::FrameServer>(loop_, handler, net::FrameServerLimits{.connections = options_.max_connections});
  endpoint_->guard(options_.opener);
  return {};
}

base::Result<void> InstanceThread::listen_unix(const std::string& path) { return endpoint_->listen_unix(path); }
base::Result<std::string> InstanceThread::listen_tcp(const std::string& address) { return endpoint_->listen_tcp(address); }

base::Result<void> InstanceThread::listen_udp(const std::string& address) { return endpoint_->listen_udp(address); }

void InstanceThread::run() {
  wall_ahead_ = clock_.wall().time_since_epoch() - clock_.now().time_since_epoch();
  loop_.busy_poll(options_.busy_poll);
  loop_.on_alarm([this] { on_alarm(); });
  if (plan()) loop_.set_alarm(alarm_);
  if (options_.core.durability == core::Durability::interval) loop_.every(options_.sync_interval, [this] { sync_in_background(); });
  thread_ = std::thread([this] {
    const std::string name = "instance-" + std::to_string(static_cast<std::uint32_t>(options_.core.id));
    pthread_setname_np(pthread_self(), name.c_str());
    loop_.run();
  });
}

void InstanceThread::stop() {
  if (thread_.joinable()) {
    loop_.post([this] { endpoint_->drain(std::chrono::seconds(3), [this] { loop_.stop(); }); });
    thread_.join();
    endpoint_->stop();
    local_.lock();
    stopping_ = true;
    while (caller_syncs_) {  // it needs the store
      const std::uint32_t ended = syncs_ended_.load();
      local_.unlock();
      syncs_ended_.wait(ended);
      local_.lock();
    }
    if (core_ && options_.core.durability != core::Durability::none) {
      const auto synced = core_->close();
      if (synced) synced_ = UINT64_MAX;
      else logger().error("last sync failed", {{"error", synced.error()}});
    }
  } else {
    local_.lock();
  }
  // Local requests from now on find no core.
  end_waiting(true);
  for (auto& [connection, deliver] : sinks_) deliver({});
  sinks_.clear();
  links_.clear();
  endpoint_.reset();
  core_.reset();
  end_waiting(false);
  local_.unlock();
}

void InstanceThread::report(std::function<void(InstanceReport)> deliver) {
  loop_.post([this, deliver = std::move(deliver)] {
    deliver(with_core([this] {
      return InstanceReport{core_->statistics(), core_->store_statistics(), core_->partition_count(),
                            endpoint_->connection_count(), core_->watcher_count(), core_->failure(), core_->replicator().figures(),
                            core_->bytes(), options_.core.limits, options_.core.timing, latencies_};
    }));
  });
}

void InstanceThread::sync(std::function<void(base::Result<void>)> deliver) {
  loop_.post([this, deliver = std::move(deliver)] { 
    deliver(with_core([this] {
      auto synced = core_->sync();
      if (synced) take_synced();
      return synced;
    }));
  });
}

void InstanceThread::begin_round() {
  local_.lock();
  in_round_ = true;
  const base::Time now = clock_.now();
  wall_ahead_ = clock_.wall().time_since_epoch() - now.time_since_epoch();
  core_->begin_round(now, wall_at(now));
}

std::size_t InstanceThread::on_frames(net::ConnectionNumber from, std::span<const wire::Frame> frames, std::string& out) {
  const std::size_t most = from == net::kNoConnection ? SIZE_MAX : net::kReplyBytesAtOnce, all = frames.size();
  while (!frames.empty()) {
    const auto control = std::find_if(frames.begin(), frames.end(), [](const wire::Frame& frame) {
      return frame.type == wire::FrameType::control_request || frame.type == wire::FrameType::peer;
    });
    const auto before = static_cast<std::size_t>(control - frames.begin());
    if (before > 0) {
      const std::size_t done = core_->on_frames(core::ConnectionId{from}, frames.first(before), out, most);
      if (const std::uint64_t needed = core_->take_needed(); needed > core_->synced()) {
        awaited_ = std::max(awaited_, needed);
        awaited_most_ = std::max(awaited_most_, needed);
        if (from == net::kNoConnection) datagram_waits_ = true;
        else if (std::exchange(last_from_, from) != from) crowded_ = kCrowded;
      }
      frames = frames.subspan(done);
      if (done < before) break;
    }
    if (frames.empty()) break;
    if (frames[0].type == wire::FrameType::peer) on_peer(frames[0]);
    else on_control(frames[0], out);
    frames = frames.subspan(1);
  }
  return all - frames.size();
}

// An instance answers what every client needs; the rest is the manager's.
void InstanceThread::on_control(const wire::Frame& frame, std::string& out) const {
  const auto kind = static_cast<wire::ControlKind>(frame.op);
  if (kind == wire::ControlKind::membership)
    return wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, Code::ok, {}, *table_.get());
  wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, Code::invalid,
                       kind == wire::ControlKind::hello ? "this node has no cluster secret" : "this is an instance; ask the node's manager", {});
}

void InstanceThread::on_closed(net::ConnectionNumber connection) {
  with_core([&] { core_->on_closed(core::ConnectionId{connection}); });
}

bool InstanceThread::end_round() {
  const bool later = may_sync_later();
  LocalRequest* const local = local_.take();  // what threads of this process want goes into the same write
  execute(local);
  const bool kept = close_core_round(later ? core::Instance::Sync::later : core::Instance::Sync::now);
  for (LocalRequest* one = local; one != nullptr; one = LocalQueue::next(*one)) one->kept = kept;
  LocalQueue::done(local);
  if (plan()) loop_.set_alarm(alarm_);
  in_round_ = false;
  local_.unlock();
  return kept;
}

void InstanceThread::execute(LocalRequest* requests) {
  if (options_.core.durability == core::Durability::always) (void)core_->take_needed();
  for (LocalRequest* one = requests; one != nullptr; one = LocalQueue::next(*one)) {
    one->execute(*core_);
    one->needed = std::max(one->needed, core_->take_needed());
  }
}

// Group commit that overlaps: while a sync is under way on another thread the loop goes on, serves reads, and gathers changes
// for the next one; the replies of what is not synced yet wait in the endpoint. For one connection that waits for each answer
// there is nothing to gather, and waking a thread costs as much as the sync: then it is done here, as it is where other
// instances or datagrams are concerned. Callers of this process sync what they need themselves (wait_synced()).
bool InstanceThread::may_sync_later() {
  const bool quiet = std::exchange(quiet_before_tick_, std::nullopt).value_or(core_->is_quiet());
  if (options_.core.durability != core::Durability::always || std::exchange(datagram_waits_, false)) return false;
  if (crowded_ > 0) crowded_--;
  return (syncing_ || crowded_ > 0) && quiet;
}

void InstanceThread::tick() {
  quiet_before_tick_ = core_->is_quiet();
  core_->on_tick();
  ticked_ = core_->round_began();
  if (core_->has_house_to_keep()) next_slice_ = ticked_;
  short_of_memory_ = core_->is_short_of_memory();
}

// An idle instance sleeps until the first thing that is due; what a round has begun may be due sooner.
bool InstanceThread::plan() {
  const base::Time due = core_->next_due();
  next_tick_ = std::max(due, ticked_ + core::Instance::kTick);
  const base::Time first = std::min(next_tick_, next_slice_);
  if (first >= alarm_) return false;
  alarm_ = first;
  return true;
}

void InstanceThread::on_alarm() {
  const base::Time now = clock_.now();
  bool ticks = false;
  with_core([&] {
    alarm_ = base::Time::max();
    ticks = now >= next_tick_;
  });
  if (ticks) endpoint_->run_round([this] { tick(); });
  else keep_house();
}

void InstanceThread::keep_house() {
  with_core([this] {
    if (core_ == nullptr) return;
    const base::Time begun = clock_.now();
    if (begun >= next_slice_) {
      const auto since = (begun - sliced_) / kShare;
      const bool more = core_->keep_house(std::clamp<base::Duration>(since, kSlice, kLongestSlice));
      sliced_ = clock_.now();
      next_slice_ = !more ? base::Time::max() : loop_.found_nothing() ? sliced_ : sliced_ + (sliced_ - begun) * (kShare - 1);
    }
    if (plan()) loop_.set_alarm(alarm_);
  });
}

// Ends the core's round and hands on what it sends by itself.
bool InstanceThread::close_core_round(core::Instance::Sync sync) {
  const bool was_well = core_->failure().empty(), quiet = core_->is_quiet() && !core_->is_due();
  if (!quiet) send_to_peers();  // they work while the own disk does
  if (core_->durability() != core::Durability::none && core_->dirty()) writes_.fetch_add(1, std::memory_order_relaxed);
  const auto written = core_->end_round(sync);
  if (!core_->failure().empty()) failed_ = true;
  if (!quiet || !written) {
    core_->finish_round(clock_.now());
    send_to_peers();
    if (InstanceNews news = gather_news(); options_.tell_manager && (!news.wishes.empty() || !news.views.empty()))
      options_.tell_manager(std::move(news));
  }
  if (!written) {
    if (was_well) logger().error("the store failed and only reads from now on", {{"error", written.error()}});
    give_up();
    return false;
  }
  if (!quiet) core_->finish_round(clock_.now());
  // Of short local rounds one in eight is timed, and stands for the others since.
  const bool waits = core_->changed_until() > core_->synced() && options_.core.durability == core::Durability::always;
  if (waits && unsynced_since_ == base::Time{}) unsynced_since_ = core_->round_began();
  if (in_round_ || ++local_rounds_ % 8 == 0) note_times(core_->round_began(), !waits);
  std::vector<core::Send> sends = core_->take_sends();
  if (waits) {
    if (!sends.empty()) unsynced_.push_back({core_->changed_until(), std::move(sends)});
  } else {
    take_synced();
    send_out(std::move(sends));
  }
  if (in_round_ && sync == core::Instance::Sync::later) sync_in_background();
  return true;
}

// The store failed: what waits to be shown never will be.
void InstanceThread::give_up() {
  failed_ = true;
  unsynced_.clear();
  end_waiting(false);
  if (in_round_ && endpoint_) endpoint_->give_up_waiting();
  else loop_.post([this] { if (endpoint_) endpoint_->give_up_waiting(); });  // from a caller's thread
}

// All that was changed is synced, or what was so far: that may leave now.
void InstanceThread::take_synced() {
  for (; !unsynced_.empty() && unsynced_.front().round <= core_->synced(); unsynced_.pop_front())
    send_out(std::move(unsynced_.front().sends));
  if (core_->changed_until() <= core_->synced()) unsynced_since_ = {};
  if (synced_ == core_->synced()) return;
  synced_ = core_->synced();
  end_waiting(true);
  if (awaited_most_ <= told_synced_) return;  // nobody there waits
  told_synced_ = synced_;
  if (in_round_) return endpoint_->release(told_synced_);
  loop_.post([this, synced = told_synced_] {  // from a caller's thread
    if (endpoint_) endpoint_->release(synced);
  });
}

// Of callers who do not wait: those whose time has come; not well: all.
void InstanceThread::end_waiting(bool well) {
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return well && one.round > synced_; });
  std::vector<Waiting> ended(std::make_move_iterator(first), std::make_move_iterator(waiting_.end()));
  waiting_.erase(first, waiting_.end());
  for (Waiting& one : ended) one.then(well);
  if (!well) {
    syncs_ended_++;
    syncs_ended_.notify_all();
  }
}

void InstanceThread::run_local(LocalRequest& request, std::function<void(bool)> then) {
  local_.run(request);
  if (!request.kept || request.needed <= synced_.load()) return void(request.needed = 0);
  const LocalQueue::Hold hold(local_);
  if (synced_ >= request.needed) return void(request.needed = 0);
  if (core_ == nullptr || !core_->failure().empty()) return then(false);
  waiting_.push_back({request.needed, std::move(then)});
  start_sync();
}

// Whoever finds no sync under way does one, for all who have changed something until then; those who come meanwhile wait for its
// end, and one of them does the next.
bool InstanceThread::wait_synced(std::uint64_t round) {
  while (synced_ < round) {
    const std::uint32_t ended = syncs_ended_.load();
    std::unique_ptr<novoht::SyncJob> job;
    {
      const LocalQueue::Hold hold(local_);
      if (synced_ >= round) break;
      if (core_ == nullptr || !core_->failure().empty()) return false;
      if (!syncing_) {
        auto begun = core_->begin_sync();
        if (!begun) {
          give_up();
          return false;
        }
        job = *std::move(begun);
        syncing_ = caller_syncs_ = true;
      }
    }
    if (job == nullptr) {
      syncs_ended_.wait(ended);
      continue;
    }
    const auto outcome = job->run();
    job.reset();
    const LocalQueue::Hold hold(local_);
    caller_syncs_ = false;
    end_sync(outcome);
    // Callers go on themselves; connections of the loop, and callers who do not wait, have to be thought of.
    if (awaited_most_ > synced_ || !waiting_.empty() || !unsynced_.empty()) start_sync();
  }
  return true;
}

void InstanceThread::end_sync(const base::Result<void>& outcome) {
  syncing_ = false;
  core_->finish_sync(outcome);
  if (outcome) {
    if (unsynced_since_ != base::Time{}) note_times(unsynced_since_);
    take_synced();
  } else {
    logger().error("sync failed, the store only reads from now on", {{"error", outcome.error()}});
    give_up();
  }
  syncs_ended_++;
  syncs_ended_.notify_all();
}

// By another thread; on the loop's.
void InstanceThread::on_synced(const base::Result<void>& outcome) {
  if (!core_) return;
  const bool within = in_round_;
  if (!within) {
    local_.lock();
    in_round_ = true;  // not before: whoever holds the core reads it
  }
  end_sync(outcome);
  if (outcome && options_.core.durability == core::Durability::always) start_sync();  // what came meanwhile
  if (within) return;
  in_round_ = false;
  local_.unlock();
}

void InstanceThread::send_out(std::vector<core::Send> sends) {
  for (core::Send& send : sends) {
    const auto to = static_cast<net::ConnectionNumber>(send.to);
    if (to >= kFirstLocal) {
      if (const auto sink = sinks_.find(to); sink != sinks_.end()) sink->second(std::move(send.frame));
    } else if (in_round_) {
      endpoint_->send(to, std::move(send.frame));
    } else {  // a caller's thread: connections belong to the loop's
      loop_.post([this, to, frame = std::move(send.frame)]() mutable {
        if (endpoint_) endpoint_->send(to, std::move(frame));
      });
    }
  }
}

InstanceNews InstanceThread::gather_news() { return {core_->take_wishes(), core_->take_news()}; }

void InstanceThread::send_to_peers() {
  std::vector<replication::PeerMessage> messages = core_->take_peer_messages();
  if (messages.empty()) return;
  const auto send = [this](const std::vector<replication::PeerMessage>& all) {
    for (const replication::PeerMessage& message : all) {
      const auto address = addresses_.find(message.to);
      if (address == addresses_.end()) continue;
      auto& link = links_[static_cast<std::uint32_t>(message.to)];
      if (!link) link = std::make_unique<net::PeerLink>(loop_, net::PeerLinkOptions{.opener = options_.opener});
      link->lead_to(address->second);
      wire::Gathered frames;
      replication::encode_peer(frames, message, options_.cluster);
      link->send(std::move(frames));
    }
  };
  if (in_round_) return send(messages);
  loop_.post([send, messages = std::move(messages)] { send(messages); });  // a caller's thread: links belong to the loop's
}

void InstanceThread::on_peer(const wire::Frame& frame) {
  if (replication::cluster_of(frame) != options_.cluster) return;
  const auto message = replication::decode_peer(frame, core_->partitions());
  if (!message) return logger().warn("a message that is not one", {{"error", message.error()}});
  // Of one that has just joined the manager will tell; what is said is said again.
  if (!addresses_.contains(message->from.instance)) {
    const auto instance = static_cast<std::uint32_t>(message->from.instance);
    if (strangers_.note(instance, clock_.now()))
      logger().warn("refused what an instance says that the cluster has not", {{"instance", instance}});
    return;
  }
  core_->on_peer(*message);
}

void InstanceThread::take(const ClusterNews& news) {
  if (news.sites) core_->set_sites(*news.sites);
  if (news.candidates) core_->set_candidates(*news.candidates);
  if (news.addresses) addresses_ = *news.addresses;
  for (const replication::ViewNews& one : news.views) core_->adopt(one.partition, one.view);
  for (const replication::Placed& one : news.goals)
    if (core_->view_of(one.partition).primary == core_->self()) core_->set_goal(one.partition, one.goal);
}

void InstanceThread::tell(std::shared_ptr<const ClusterNews> news) {
  loop_.post([this, news = std::move(news)] {
    if (endpoint_) endpoint_->run_round([&] { take(*news); });
  });
}

InstanceNews InstanceThread::settle(const ClusterNews& news) {
  core_->begin_round(clock_.now(), clock_.wall());
  take(news);
  core_->on_tick();
  (void)core_->take_peer_messages();  // nobody is reached yet; what matters is said again
  (void)core_->end_round();           // a failure is seen in the first round that serves
  core_->finish_round(clock_.now());
  (void)core_->take_peer_messages();
  return gather_news();
}

void InstanceThread::with_instance(const std::function<void(core::Instance&)>& look) {
  const LocalQueue::Hold hold(local_);
  if (core_) look(*core_);
}

// One look at the clock a round, however many operations were in it. Changes that wait for a sync are noted after it.
void InstanceThread::note_times(base::Time since, bool changes_too) {
  const auto& by_kind = core_->statistics().by_kind;
  if (by_kind == noted_) return;
  const auto nanos = static_cast<std::uint64_t>(std::max<std::int64_t>(0, (clock_.now() - since).count()));
  for (std::size_t kind = 0; kind < by_kind.size(); kind++) {
    const std::uint64_t more = by_kind[kind] - noted_[kind];
    if (more == 0 || (!changes_too && client::is_recorded(static_cast<OpKind>(kind)))) continue;
    latencies_[kind].add(nanos, more);
    noted_[kind] = by_kind[kind];
  }
}

// One round for callers of this process, on the thread of whoever holds the core.
void InstanceThread::local_round(LocalRequest* requests) {
  if (core_ == nullptr) return;  // stopped; `kept` stays false
  requests->expect(*core_);
  const base::Time now = clock_.now();
  core_->begin_round(now, wall_at(now));
  execute(requests);
  const bool later = options_.core.durability == core::Durability::always && core_->is_quiet();
  const bool kept = close_core_round(later ? core::Instance::Sync::later : core::Instance::Sync::now);
  if (plan()) loop_.post([this] { with_core([this] { loop_.set_alarm(alarm_); }); });
  for (LocalRequest* one = requests; one != nullptr; one = LocalQueue::next(*one)) one->kept = kept;
}

void InstanceThread::attach(net::ConnectionNumber connection, std::function<void(std::string)> deliver) {
  const LocalQueue::Hold hold(local_);
  sinks_[connection] = std::move(deliver);
}

void InstanceThread::detach(net::ConnectionNumber connection) {
  const LocalQueue::Hold hold(local_);
  sinks_.erase(connection);
  if (core_ != nullptr) core_->on_closed(core::ConnectionId{connection});
}

void InstanceThread::sync_in_background() {
  with_core([this] { start_sync(); });
}

// The sync itself runs elsewhere, so that a slow disk delays no request. The core is in hand.
void InstanceThread::start_sync() {
  if (syncing_ || stopping_ || !core_->failure().empty()) return;
  // Housekeeping may have synced what somebody waits for; it is said of a sync that was begun here.
  if (!core_->dirty() && core_->changed_until() <= core_->synced()) return;
  auto begun = core_->begin_sync();
  if (!begun) return give_up();
  syncing_ = true;
  asio::post(sync_pool_, [this, job = std::shared_ptr<novoht::SyncJob>(*std::move(begun))] {
    loop_.post([this, outcome = job->run()] { on_synced(outcome); });
  });
}

}  // namespace zht::server

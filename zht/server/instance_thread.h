// One instance at work: its core, its endpoint, its thread. Others reach it by posting to its loop.
#pragma once

#include <asio/thread_pool.hpp>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "zht/core/instance.h"
#include "zht/core/replication/balancer.h"
#include "zht/net/frame_server.h"
#include "zht/net/peer_link.h"
#include "zht/support/histogram.h"
#include "zht/server/local_queue.h"
#include "zht/server/strangers.h"

namespace zht::server {

struct InstanceReport {
  core::InstanceStatistics operations;
  novoht::Statistics store;
  std::size_t partitions = 0, connections = 0, watchers = 0;
  std::string failure;
  replication::Figures replication;
  core::InstanceBytes bytes;
  core::ByteLimits limits;
  replication::Timing timing;
  std::vector<support::CoarseHistogram> latencies;  // nanoseconds, by OpKind
};

// The membership table as clients are given it; any thread.
class PublishedTable {
 public:
  void set(std::string encoded) {
    auto fresh = std::make_shared<const std::string>(std::move(encoded));
    const std::lock_guard lock(mutex_);
    encoded_ = std::move(fresh);
  }
  std::shared_ptr<const std::string> get() const {
    const std::lock_guard lock(mutex_);
    return encoded_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const std::string> encoded_ = std::make_shared<const std::string>();
};

// What the manager has for an instance. Shared by all of a node.
struct ClusterNews {
  std::vector<replication::ViewNews> views;
  std::vector<replication::Placed> goals;
  std::optional<std::vector<replication::Candidate>> candidates;
  std::optional<std::map<InstanceId, replication::Site>> sites;
  std::optional<std::map<InstanceId, std::string>> addresses;  // host:port
};
// What an instance has for the manager.
struct InstanceNews {
  std::vector<replication::Wish> wishes;
  std::vector<replication::ViewNews> views;
};

class InstanceThread final : private net::FrameHandler {
 public:
  struct Options {
    core::InstanceOptions core;
    std::string folder;             // of its store
    std::vector<replication::View> views;  // by partition, as known at the start
    std::uint64_t cluster = 0;      // whom it listens to
    std::function<void(InstanceNews)> tell_manager;  // called on any thread, inside a round: it must only hand on
    base::Duration sync_interval = std::chrono::seconds(1);
    std::size_t max_connections = 20'000;
    base::Duration busy_poll{};     // see net::EventLoop
    security::Opener opener;        // what TCP connections prove; null: nothing
  };
  // `sync_pool` runs the syncs of durability interval. All references outlive it.
  InstanceThread(Options options, base::FileSystem& files, const base::Clock& clock, const Procedures& procedures,
                 const PublishedTable& table, asio::thread_pool& sync_pool);
  ~InstanceThread() override;

  // On the starting thread, before run(): recovers the store; takes the endpoints.
  base::Result<void> open();
  base::Result<void> listen_unix(const std::string& path);
  base::Result<std::string> listen_tcp(const std::string& address);
  base::Result<void> listen_udp(const std::string& address);

  // On the starting thread, before run(): a round without requests, after `news` was taken; what it has to say is returned.
  InstanceNews settle(const ClusterNews& news);
  void tell(std::shared_ptr<const ClusterNews> news);  // any thread
  // Runs `look` with the core in hand, between rounds; `look` must be short. Any thread.
  void with_instance(const std::function<void(core::Instance&)>& look);
  void run();   // starts the thread
  void stop();  // lets the round at hand finish, syncs (unless durability none), ends the thread; any thread
  // Asks for a report, which `deliver` gets on the instance's thread.
  void report(std::function<void(InstanceReport)> deliver);
  bool failed() const { return failed_; }  // its store; any thread
  std::uint64_t writes() const { return writes_; }  // rounds that wrote something; any thread
  bool is_short_of_memory() const { return short_of_memory_; }  // any thread
  // Syncs what was acknowledged so far; `deliver` hears on the instance's thread.
  void sync(std::function<void(base::Result<void>)> deliver);

  // For clients of this process; any thread. Executes `request` in a round, on this thread or with those of others.
  // request.kept is false when the round was lost or the instance has stopped. What has to be synced before it may be shown is
  // synced when it returns: by this thread, without the core in hand, or by another that was at it (wait_synced()).
  void run_local(LocalRequest& request) {
    local_.run(request);
    if (request.needed > synced_.load()) [[unlikely]]
      request.kept = request.kept && wait_synced(request.needed);
  }
  // The same for who has other things to do meanwhile: `then` hears when what was needed is synced, or (false) never will be; at
  // once, or later on any thread with the core in hand: it must only hand on. Not called where nothing is needed.
  void run_local(LocalRequest& request, std::function<void(bool)> then);
  // What the core sends to `connection` on its own (callbacks) goes to `deliver`, on any thread and inside a round: it must
  // only hand the frame on. An empty frame: the instance has stopped. Connection numbers from kFirstLocal on are theirs.
  static constexpr net::ConnectionNumber kFirstLocal = net::ConnectionNumber{1} << 63;
  void attach(net::ConnectionNumber connection, std::function<void(std::string)> deliver);
  void detach(net::ConnectionNumber connection);

 private:
  void begin_round() override;
  std::size_t on_frames(net::ConnectionNumber from, std::span<const wire::Frame> frames, std::string& out) override;
  void on_control(const wire::Frame& frame, std::string& out) const;
  std::uint64_t awaits() override { return std::exchange(awaited_, 0); }
  void on_closed(net::ConnectionNumber connection) override;
  bool end_round() override;
  void sync_in_background();
  void start_sync();
  void end_sync(const base::Result<void>& outcome);
  bool wait_synced(std::uint64_t round);
  void end_waiting(bool well);
  void give_up();
  void local_round(LocalRequest* requests);
  void execute(LocalRequest* requests);
  bool close_core_round(core::Instance::Sync sync = core::Instance::Sync::now);
  bool may_sync_later();
  void tick();
  // With the core in hand: looks when there is something to do next. Returns whether that is before alarm_, which is then it.
  bool plan();
  void on_alarm();
  void keep_house();
  void send_out(std::vector<core::Send> sends);
  void take_synced();
  void on_synced(const base::Result<void>& outcome);
  void on_peer(const wire::Frame& frame);
  void take(const ClusterNews& news);
  void send_to_peers();
  InstanceNews gather_news();
  void note_times(base::Time since, bool changes_too = true);
  base::WallTime wall_at(base::Time now) const { return base::WallTime(now.time_since_epoch() + wall_ahead_); }
  // Runs `work` as the core's holder; the loop's thread only, inside a round or not.
  template <class Work>
  auto with_core(Work&& work) {
    if (in_round_) return work();
    const LocalQueue::Hold hold(local_);
    return work();
  }

  Options options_;
  base::FileSystem& files_;
  const base::Clock& clock_;
  const Procedures& procedures_;
  const PublishedTable& table_;
  asio::thread_pool& sync_pool_;
  net::EventLoop loop_;
  std::unique_ptr<core::Instance> core_;
  std::unique_ptr<net::FrameServer> endpoint_;
  // Touched by whoever holds the core. An operation's time is that of its round: all its replies leave at its end.
  std::vector<support::CoarseHistogram> latencies_;
  std::array<std::uint64_t, 10> noted_{};  // operations in latencies_
  base::Duration wall_ahead_{};  // of the other clock, as of the loop's last round: one look at a clock less for every local round
  std::uint32_t local_rounds_ = 0;
  // Durability always (close_core_round()). What the core sends by itself waits with the replies.
  struct Unsynced {
    std::uint64_t round = 0;
    std::vector<core::Send> sends;
  };
  std::deque<Unsynced> unsynced_;
  std::uint64_t awaited_ = 0, awaited_most_ = 0;
  std::uint64_t told_synced_ = 0;     // to the endpoint
  std::atomic<std::uint64_t> synced_{0};     // as the core has it
  std::atomic<std::uint32_t> syncs_ended_{0};  // who waits for one waits here
  struct Waiting {
    std::uint64_t round = 0;
    std::function<void(bool)> then;
  };
  std::vector<Waiting> waiting_;
  base::Time unsynced_since_{};       // when the first round began that waits; epoch: none does
  net::ConnectionNumber last_from_ = net::kNoConnection;
  int crowded_ = 0;               // rounds, until which a sync is thought to be worth another thread
  bool datagram_waits_ = false;   // in the round at hand
  std::optional<bool> quiet_before_tick_;  // the same
  bool stopping_ = false;
  bool syncing_ = false, caller_syncs_ = false;  // one at a time: by the pool, or by a caller of this process
  std::atomic<bool> failed_{false}, short_of_memory_{false};
  std::atomic<std::uint64_t> writes_{0};
  bool in_round_ = false;  // of the loop's thread, which then holds local_
  // Touched by whoever holds the core. When the core ticked last and will next, when housekeeping goes on, and what the alarm is set to.
  base::Time ticked_{}, next_tick_ = base::Time::max(), next_slice_ = base::Time::max(), sliced_{}, alarm_ = base::Time::max();
  LocalQueue local_{[this](LocalRequest* requests) { local_round(requests); }};  // whoever holds it owns core_ and sinks_
  std::unordered_map<net::ConnectionNumber, std::function<void(std::string)>> sinks_;
  // The loop's thread alone.
  std::unordered_map<std::uint32_t, std::unique_ptr<net::PeerLink>> links_;  // by instance
  std::map<InstanceId, std::string> addresses_;
  Strangers strangers_;
  std::thread thread_;
};

}  // namespace zht::server

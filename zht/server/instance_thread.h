// One instance at work: its core, its endpoint, its thread. Others reach it by posting to its loop.
#pragma once

#include <asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "zht/core/instance.h"
#include "zht/net/frame_server.h"

namespace zht::server {

struct InstanceReport {
  core::InstanceStatistics operations;
  novoht::Statistics store;
  std::size_t partitions = 0, connections = 0, watchers = 0;
  std::string failure;
};

class InstanceThread final : private net::FrameHandler {
 public:
  struct Options {
    core::InstanceOptions core;
    std::string folder;             // of its store
    base::Duration sync_interval = std::chrono::seconds(1);
    std::size_t max_connections = 20'000;
  };
  // `sync_pool` runs the syncs of durability interval. All references outlive it.
  InstanceThread(Options options, base::FileSystem& files, const base::Clock& clock, const Procedures& procedures,
                 const core::MembershipTable& table, const std::string& encoded_table, asio::thread_pool& sync_pool);
  ~InstanceThread() override;

  // On the starting thread, before run(): recovers the store; takes the endpoints.
  base::Result<void> open();
  base::Result<void> listen_unix(const std::string& path);
  base::Result<std::string> listen_tcp(const std::string& address);

  void run();   // starts the thread
  void stop();  // lets the round at hand finish, syncs (unless durability none), ends the thread; any thread
  // Asks for a report, which `deliver` gets on the instance's thread.
  void report(std::function<void(InstanceReport)> deliver);
  // Syncs what was acknowledged so far; `deliver` hears on the instance's thread.
  void sync(std::function<void(base::Result<void>)> deliver);

 private:
  void begin_round() override;
  void on_frame(net::ConnectionNumber from, const wire::Frame& frame, std::string& out) override;
  void on_closed(net::ConnectionNumber connection) override;
  bool end_round() override;
  void sync_in_background();

  Options options_;
  base::FileSystem& files_;
  const base::Clock& clock_;
  const Procedures& procedures_;
  const core::MembershipTable& table_;
  const std::string& encoded_table_;
  asio::thread_pool& sync_pool_;
  net::EventLoop loop_;
  std::unique_ptr<core::Instance> core_;
  std::unique_ptr<net::FrameServer> endpoint_;
  bool syncing_ = false;
  std::thread thread_;
};

}  // namespace zht::server

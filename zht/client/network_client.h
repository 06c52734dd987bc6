// The Client behind zht::connect(). Synchronous calls run on the caller's thread over a connection of its own (no thread
// has to wake another: half the latency); everything else, and a synchronous call that met trouble, goes through the
// engine, which retries it under the same identity.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "zht/client.h"
#include "zht/client/datagram_channel.h"
#include "zht/client/engine.h"
#include "zht/client/session.h"

namespace zht::client {

class NetworkClient final : public Client {
 public:
  struct Source {
    std::vector<Address> seeds;  // who to ask for the membership table
    std::string local_folder;    // of the local node, when that is what this is a client of
  };
  NetworkClient(ClientOptions options, Source source, std::shared_ptr<const Table> table);
  ~NetworkClient() override;

  void submit(Operation operation, Completion completion, Millis timeout) override;
  RequestNumber start(Operation operation, Completion completion, Millis timeout) override;
  void cancel(RequestNumber request) override;
  void submit_each(std::vector<Operation> operations, EachCompletion completion, Millis timeout) override;
  std::uint32_t partition_count() const override { return partition_count_; }
  Outcome call(Operation operation, Millis timeout) override;
  std::optional<Outcome> call_or_submit(Operation operation, Completion completion, Millis timeout) override;
  std::vector<Outcome> call_all(std::vector<Operation> operations, Millis timeout) override;

  ClientCounts counts() const override;
  const Source& source() const { return source_; }

 private:
  std::unique_ptr<Pending> prepare(Operation&& operation, Completion&& completion, Millis timeout);
  Engine& engine();
  Outcome call_through_engine(std::unique_ptr<Pending> pending);
  std::optional<Outcome> call_here(std::unique_ptr<Pending>& pending);
  std::unique_ptr<Channel> open_channel(const Table::Instance& instance, base::Time deadline);
  // Over a datagram; nothing: `pending` is to go through the engine, as it is now.
  std::optional<Outcome> call_by_datagram(Pending& pending);
  struct Group;
  bool small_enough(const std::vector<std::unique_ptr<Pending>>& pendings) const;
  void send(Group& group, const std::vector<std::unique_ptr<Pending>>& pendings);
  void receive(Group& group, std::vector<std::unique_ptr<Pending>>& pendings);
  void redirected(const wire::Frame& frame);
  void want_table();
  void look_for_table();
  bool refresh_table();

  const ClientOptions options_;
  const Source source_;
  const std::uint32_t partition_count_;
  const std::size_t max_value_size_;
  Session session_;
  std::once_flag engine_once_;
  std::unique_ptr<Engine> engine_;
  std::atomic<const Engine*> engine_seen_{nullptr};  // engine_, for those who do not make it
  std::atomic<RequestNumber> requests_{0};
  std::atomic<std::uint32_t> eventual_lookups_{0};  // spreads them over the copies
  // When the table was last asked for. A client that is used asks now and then, so that it knows nodes that have joined before the
  // ones it knows are gone.
  std::atomic<std::int64_t> looked_ms_{0};

  std::mutex datagram_mutex_;
  std::map<std::uint32_t, std::vector<DatagramChannel>> datagram_channels_;  // idle; by instance id
  std::atomic<std::int64_t> no_datagrams_until_ms_{0};                       // after one that nobody answered

  // Looks for a newer table, and for a local node to start, beside the engine: both may block.
  std::mutex finder_mutex_;
  std::condition_variable finder_wanted_;
  bool table_wanted_ = false;
  std::atomic<bool> closing_{false};
  std::thread finder_;
};

}  // namespace zht::client

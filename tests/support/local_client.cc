#include "tests/support/local_client.h"

#include "zht/wire/frame.h"

namespace testing_support {

using zht::Code;
using zht::Outcome;

class LocalClient final : public zht::Client {
 public:
  LocalClient(LocalStore& store, std::uint64_t id) : store_(store), id_(id) {}
  void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
    store_.execute(std::move(operation), id_, next_.fetch_add(1), std::move(completion), timeout);
  }
  std::uint32_t partition_count() const override { return store_.partition_count_; }

 private:
  LocalStore& store_;
  const std::uint64_t id_;
  std::atomic<std::uint64_t> next_{1};
};

LocalStore::LocalStore(const zht::Procedures& procedures, std::uint32_t partition_count, zht::core::Durability durability)
    : procedures_(procedures), partition_count_(partition_count), durability_(durability) {
  open();
}

LocalStore::~LocalStore() = default;

void LocalStore::open() {
  incarnation_++;
  zht::core::InstanceAddress address;
  table_ = zht::core::lone_table({1, incarnation_}, {address}, partition_count_);
  zht::core::InstanceOptions options;
  options.durability = durability_;
  options.segment_size = 1 << 20;
  options.log_floor = 0;
  auto opened = zht::core::Instance::open(files_, "store", options, procedures_, table_);
  CHECK(opened.has_value(), opened ? std::string_view() : opened.error().message);
  instance_ = std::move(*opened);
}

std::unique_ptr<zht::Client> LocalStore::client() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t began = base::to_millis(clock_.wall()) / 4000;
  return std::make_unique<LocalClient>(*this, (began << 34) | next_client_++);
}

void LocalStore::restart(bool crash) {
  std::map<std::uint64_t, zht::Completion> lost;
  {
    const std::lock_guard lock(mutex_);
    if (!crash) instance_->sync().value();
    instance_.reset();
    if (crash) files_.kill();
    lost.swap(waiting_);
    open();
  }
  for (auto& [request, completion] : lost) {
    Outcome outcome;
    outcome.code = Code::unavailable;
    outcome.message = "the store was restarted";
    completion(std::move(outcome));
  }
}

void LocalStore::deliver_sends(Done& done) {
  for (auto& send : instance_->take_sends()) {
    const auto frame = zht::wire::next_frame(send.frame, zht::wire::kMaxFrameSize);
    const auto waiter = waiting_.find((*frame)->request);
    if (waiter == waiting_.end()) continue;
    auto outcome = zht::wire::decode_outcome(**frame);
    done.emplace_back(std::move(waiter->second), std::move(outcome).value());
    waiting_.erase(waiter);
  }
}

void LocalStore::execute(zht::Operation operation, std::uint64_t client, std::uint64_t sequence, zht::Completion completion,
                         zht::Millis timeout) {
  Done done;
  if (auto valid = zht::validate(operation, partition_count_); !valid) {
    Outcome outcome;
    outcome.code = valid.code();
    outcome.message = valid.error().message;
    return completion(std::move(outcome));
  }
  {
    const std::lock_guard lock(mutex_);
    const bool reads = operation.kind == zht::OpKind::lookup || operation.kind == zht::OpKind::callback ||
                       operation.kind == zht::OpKind::scan;
    const std::string& key = operation.kind == zht::OpKind::batch ? operation.operations.front().key : operation.key;
    const zht::PartitionId partition =
        operation.kind == zht::OpKind::scan ? operation.partition : zht::partition_of(key, partition_count_);
    std::string request, reply;
    const std::uint64_t number = next_request_++;
    zht::wire::encode_request(request, operation,
                              {.request = number,
                               .client = client,
                               .sequence = reads ? 0 : sequence,
                               .epoch = incarnation_,
                               .partition = partition,
                               .timeout_ms = operation.kind == zht::OpKind::callback ? static_cast<std::uint64_t>(timeout.count()) : 0});
    instance_->begin_round(clock_.now(), clock_.wall());
    instance_->on_frame(zht::core::ConnectionId{1}, **zht::wire::next_frame(request, zht::wire::kMaxFrameSize), reply);
    const auto written = instance_->end_round();
    if (reply.empty()) {
      waiting_.emplace(number, std::move(completion));
    } else if (!written) {
      Outcome outcome;
      outcome.code = Code::timeout;
      outcome.message = written.error().message;
      done.emplace_back(std::move(completion), std::move(outcome));
    } else {
      auto outcome = zht::wire::decode_outcome(**zht::wire::next_frame(reply, zht::wire::kMaxFrameSize));
      done.emplace_back(std::move(completion), std::move(outcome).value());
    }
    deliver_sends(done);
  }
  for (auto& [complete, outcome] : done) complete(std::move(outcome));
}

void LocalStore::advance(base::Duration by) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    clock_.advance(by);
    instance_->begin_round(clock_.now(), clock_.wall());
    instance_->on_tick();
    instance_->end_round().value();
    deliver_sends(done);
  }
  for (auto& [complete, outcome] : done) complete(std::move(outcome));
}

zht::core::InstanceStatistics LocalStore::statistics() {
  const std::lock_guard lock(mutex_);
  return instance_->statistics();
}

}  // namespace testing_support

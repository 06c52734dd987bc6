#include <condition_variable>
#include <deque>
#include <mutex>

#include "fabriq/fabriq.h"
#include "novoht/base/random.h"

namespace fabriq {
namespace {

constexpr std::uint64_t kMaxRequestBytes = std::uint64_t{4} << 20;  // of several messages in one request

Result<void> check_size(std::size_t size) {
  if (size <= kMaxMessageSize) return {};
  return fail(Code::invalid, "a message of ", size, " bytes; at most ", kMaxMessageSize,
              " (16 MiB less 64 KiB): push a reference instead");
}

}  // namespace

struct Producer::State : std::enable_shared_from_this<Producer::State> {
  State(Queue q, ProducerOptions o) : queue(std::move(q)), options(std::move(o)), lanes(queue.partitions()) {
    start = options.id.empty() ? base::entropy() : base::hash64(options.id);
    sequence = options.next_sequence;
  }

  struct Pending {
    std::uint64_t sequence = 0;
    std::string body;
    std::function<void(Result<Pushed>)> done;
  };
  struct Lane {
    std::deque<Pending> waiting;
    bool busy = false;  // a request is on its way
  };

  std::uint32_t partition_of(std::uint64_t number) const {
    return static_cast<std::uint32_t>((start + number) % queue.partitions());
  }

  // Sends what waits in lane `p`, unless its last request is unanswered. With `lock` held; released meanwhile.
  void send(std::uint32_t p, std::unique_lock<std::mutex>& lock) {
    Lane& lane = lanes[p];
    if (lane.busy || lane.waiting.empty()) return;
    auto sent = std::make_shared<std::vector<Pending>>();
    std::uint64_t bytes = 0;
    while (!lane.waiting.empty() && sent->size() < kMaxBatch) {
      const std::uint64_t size = lane.waiting.front().body.size() + kEntryHeader;
      const bool follows = sent->empty() || lane.waiting.front().sequence == sent->back().sequence + queue.partitions();
      if (!follows || (!sent->empty() && bytes + size > kMaxRequestBytes)) break;
      bytes += size;
      sent->push_back(std::move(lane.waiting.front()));
      lane.waiting.pop_front();
    }
    lane.busy = true;
    lock.unlock();
    PushRequest request;
    request.queue_id = queue.record().queue_id;
    request.producer = options.id;
    request.sequence = sent->front().sequence / queue.partitions();
    request.delay_ms = static_cast<std::uint64_t>(options.delay.count());
    std::vector<std::string> attributes;
    attributes.reserve(sent->size());
    for (const Pending& one : *sent) {
      attributes.push_back(Attributes{options.id, options.id.empty() ? 0 : one.sequence, {}}.encode());
      request.messages.push_back({attributes.back(), one.body});
    }
    queue.push_async(p, request, [self = shared_from_this(), p, sent](Result<PushReply> reply) {
      self->answered(p, *sent, std::move(reply));
    });
    lock.lock();
  }

  // The caller's own thread asks and waits when nothing else is on its way to the partition: no other thread wakes up.
  std::optional<Result<Pushed>> push_alone(Bytes body) {
    if (!check_size(body.size() + options.id.size() + 32)) return std::nullopt;
    std::uint64_t number = 0;
    std::uint32_t p = 0;
    {
      const std::lock_guard lock(mutex);
      p = partition_of(sequence);
      if (lanes[p].busy || !lanes[p].waiting.empty()) return std::nullopt;
      number = sequence++;
      lanes[p].busy = true;
      pending++;
      pending_bytes += body.size();
    }
    PushRequest request;
    request.queue_id = queue.record().queue_id;
    request.producer = options.id;
    request.sequence = number / queue.partitions();
    request.delay_ms = static_cast<std::uint64_t>(options.delay.count());
    const std::string attributes = Attributes{options.id, options.id.empty() ? 0 : number, {}}.encode();
    request.messages = {{attributes, body}};
    const zht::Outcome outcome = queue.client().call(queue.operation(p, "fabriq.push", request.encode()));
    {
      std::unique_lock lock(mutex);
      lanes[p].busy = false;
      pending--;
      pending_bytes -= body.size();
      changed.notify_all();
      send(p, lock);
    }
    if (!outcome.ok()) return queue.explain(outcome.error());
    const auto reply = PushReply::decode(outcome.value);
    if (!reply) return reply.error();
    if (reply->messages.size() != 1)
      return fail(Code::corrupt, "queue: ", reply->messages.size(), " answers to one push");
    return Pushed{queue.id_of(p, reply->messages[0].number), reply->messages[0].repeated};
  }

  void answered(std::uint32_t p, std::vector<Pending>& sent, Result<PushReply> reply) {
    if (reply && reply->messages.size() != sent.size())
      reply = fail(Code::corrupt, "queue: ", reply->messages.size(), " answers to ", sent.size(), " pushes");
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < sent.size(); i++) {
      bytes += sent[i].body.size();
      if (!sent[i].done) continue;
      if (reply)
        sent[i].done(Pushed{queue.id_of(p, reply->messages[i].number), reply->messages[i].repeated});
      else
        sent[i].done(reply.error());
    }
    std::unique_lock lock(mutex);
    lanes[p].busy = false;
    pending_bytes -= bytes;
    pending -= sent.size();
    changed.notify_all();
    send(p, lock);
  }

  const Queue queue;
  const ProducerOptions options;
  std::uint64_t start = 0;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Lane> lanes;
  std::uint64_t sequence = 0;
  std::uint64_t pending_bytes = 0, pending = 0;
};

Producer::Producer(Queue queue, ProducerOptions options)
    : state_(std::make_shared<State>(std::move(queue), std::move(options))) {}
Producer::Producer(Producer&&) noexcept = default;
Producer::~Producer() {
  if (state_) flush();
}

void Producer::push_async(std::string body, std::function<void(Result<Pushed>)> done) {
  if (auto checked = check_size(body.size() + state_->options.id.size() + 32); !checked) {
    if (done) done(check_size(body.size()) ? checked.error() : check_size(body.size()).error());
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] {
    return state_->pending == 0 ||
           (state_->pending < state_->options.max_pending && state_->pending_bytes < state_->options.max_pending_bytes);
  });
  const std::uint64_t sequence = state_->sequence++;
  const std::uint32_t p = state_->partition_of(sequence);
  state_->pending++;
  state_->pending_bytes += body.size();
  state_->lanes[p].waiting.push_back({sequence, std::move(body), std::move(done)});
  state_->send(p, lock);
}

Result<Pushed> Producer::push(Bytes body) {
  if (auto alone = state_->push_alone(body)) return std::move(*alone);
  std::optional<Result<Pushed>> answer;
  std::mutex mutex;
  std::condition_variable answered;
  push_async(std::string(body), [&](Result<Pushed> result) {
    const std::lock_guard lock(mutex);
    answer = std::move(result);
    answered.notify_one();
  });
  std::unique_lock lock(mutex);
  answered.wait(lock, [&] { return answer.has_value(); });
  return std::move(*answer);
}

std::vector<Result<Pushed>> Producer::push_all(std::vector<std::string> bodies) {
  std::vector<Result<Pushed>> results(bodies.size(), Result<Pushed>(Pushed{}));
  for (std::size_t i = 0; i < bodies.size(); i++)
    push_async(std::move(bodies[i]), [&results, i](Result<Pushed> result) { results[i] = std::move(result); });
  flush();
  return results;
}

Result<Pushed> Producer::push_named(std::string id, Bytes body) {
  TRY(check_size(body.size()));
  if (id.empty() || id.size() > kMaxIdSize)
    return fail(Code::invalid, "a message id of ", id.size(), " bytes; 1 to ", kMaxIdSize);
  const Queue& queue = state_->queue;
  PushRequest request;
  request.queue_id = queue.record().queue_id;
  request.id = id;
  request.delay_ms = static_cast<std::uint64_t>(state_->options.delay.count());
  const std::string attributes = Attributes{{}, 0, id}.encode();
  request.messages = {{attributes, body}};
  const auto p = static_cast<std::uint32_t>(base::hash64(id) % queue.partitions());
  const zht::Outcome outcome = queue.client().call(queue.operation(p, "fabriq.push", request.encode()));
  if (!outcome.ok()) return queue.explain(outcome.error());
  TRY_LET(reply, PushReply::decode(outcome.value));
  if (reply.messages.size() != 1) return fail(Code::corrupt, "queue: ", reply.messages.size(), " answers to one push");
  return Pushed{queue.id_of(p, reply.messages[0].number), reply.messages[0].repeated};
}

void Producer::flush() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->pending == 0; });
}

std::uint64_t Producer::next_sequence() const {
  const std::lock_guard lock(state_->mutex);
  return state_->sequence;
}

}  // namespace fabriq

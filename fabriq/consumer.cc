#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "fabriq/fabriq.h"
#include "novoht/base/random.h"

namespace fabriq {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using zht::Operation;
using zht::Outcome;

constexpr std::uint32_t kStay = 16;  // pops in a row from one partition while others have messages
constexpr Millis kLongestCallback{10 * 60 * 1000};
constexpr Millis kDeaf{200};
constexpr Millis kLongestWait{366ll * 24 * 3600 * 1000};

SteadyTime after(std::uint64_t ms) {
  const auto now = std::chrono::steady_clock::now();
  return ms > 365ull * 24 * 3600 * 1000 ? SteadyTime::max() : now + Millis(ms);
}

}  // namespace

// What is known of each partition. Completions of callbacks may outlive the Consumer, so they share this.
struct Consumer::State : std::enable_shared_from_this<Consumer::State> {
  State(Queue q, ConsumerOptions o) : queue(std::move(q)), options(o), lanes(queue.partitions()) {
    current = static_cast<std::uint32_t>(base::entropy() % queue.partitions());
  }

  struct Lane {
    bool known = false;  // asked at least once
    bool maybe_ready = false;
    bool armed = false;                      // a callback waits on its bell
    std::uint64_t bell = 0;                  // version last seen
    SteadyTime look_at = SteadyTime::max();  // when time alone may make a message ready
    SteadyTime deaf_until{};                 // its bell could not be listened to; not to be tried again before
    std::uint64_t oldest_ms = 0;
  };

  void learn(std::uint32_t p, const PopReply& reply) {
    const std::lock_guard lock(mutex);
    Lane& lane = lanes[p];
    lane.known = true;
    lane.maybe_ready = reply.ready_left > 0 || reply.next_event_ms == 0;
    lane.bell = reply.bell;
    lane.look_at = reply.next_event_ms == kNoEvent ? SteadyTime::max() : after(reply.next_event_ms);
    lane.oldest_ms = reply.oldest_ms;
  }

  // Asks every partition that `which` names what it has, all at once.
  Result<void> look(const std::vector<std::uint32_t>& which) {
    PopRequest request;
    request.queue_id = queue.record().queue_id;
    request.max_count = 0;
    std::vector<Operation> operations;
    for (const std::uint32_t p : which) operations.push_back(queue.operation(p, "fabriq.pop", request.encode()));
    const auto outcomes = queue.client().call_all(std::move(operations));
    for (std::size_t i = 0; i < outcomes.size(); i++) {
      if (!outcomes[i].ok()) return queue.explain(outcomes[i].error());
      TRY_LET(reply, PopReply::decode(outcomes[i].value));
      learn(which[i], reply);
    }
    return {};
  }

  // The partition to pop from; nothing: none has a message as far as is known.
  std::optional<std::uint32_t> choose() {
    const std::lock_guard lock(mutex);
    const auto now = std::chrono::steady_clock::now();
    for (Lane& lane : lanes)
      if (lane.look_at <= now) lane.maybe_ready = true;
    if (options.oldest_first) {
      std::optional<std::uint32_t> best;
      for (std::uint32_t p = 0; p < lanes.size(); p++)
        if (lanes[p].maybe_ready && (!best || lanes[p].oldest_ms > lanes[*best].oldest_ms)) best = p;
      return best;
    }
    if (lanes[current].maybe_ready && stayed < kStay) return current;
    const auto count = static_cast<std::uint32_t>(lanes.size());
    for (std::uint32_t step = 1; step <= count; step++) {
      const std::uint32_t p = (current + step) % count;
      if (!lanes[p].maybe_ready) continue;
      current = p;
      stayed = 0;
      return p;
    }
    return std::nullopt;
  }

  // Listens to the bells of the partitions that have nothing, for `patience` at most.
  void listen(Millis patience, std::unique_lock<std::mutex>& lock) {
    const auto now = std::chrono::steady_clock::now();
    for (std::uint32_t p = 0; p < lanes.size(); p++) {
      if (lanes[p].armed || lanes[p].maybe_ready || !lanes[p].known || lanes[p].deaf_until > now) continue;
      lanes[p].armed = true;
      const std::uint64_t bell = lanes[p].bell;
      lock.unlock();
      queue.client().submit(
          Operation::callback(bell_key(queue.name(), p), zht::Condition::after_version(bell), zht::Range::nothing()),
          [self = shared_from_this(), p](const Outcome& outcome) {
            const std::lock_guard held(self->mutex);
            Lane& lane = self->lanes[p];
            lane.armed = false;
            if (outcome.ok()) lane.maybe_ready = true;
            if (!outcome.ok() && outcome.code != Code::timeout) {
              // The node died, or too many listen already: look again a little later, the pop will say what is wrong.
              lane.deaf_until = std::chrono::steady_clock::now() + kDeaf;
              lane.look_at = std::min(lane.look_at, lane.deaf_until);
            }
            self->changed.notify_all();
          },
          std::min(patience, kLongestCallback));
      lock.lock();
    }
  }

  // Waits until a bell rings, a lease may end, or `until`.
  void wait(SteadyTime until) {
    std::unique_lock lock(mutex);
    listen(std::max(Millis{1}, std::chrono::ceil<Millis>(until - std::chrono::steady_clock::now())), lock);
    SteadyTime next = until;
    for (const Lane& lane : lanes) next = std::min(next, lane.look_at);
    const auto now = std::chrono::steady_clock::now();
    changed.wait_until(lock, next, [&] {
      return std::any_of(lanes.begin(), lanes.end(), [&](const Lane& lane) {
        return lane.maybe_ready || lane.look_at < next || (!lane.armed && lane.deaf_until <= now);
      });
    });
  }

  struct Answer {
    std::unique_ptr<std::string> bytes;  // what the reply's bodies lie in
    PopReply reply;
  };
  Result<Answer> ask(std::uint32_t p, std::uint32_t most, std::vector<Settle> riding) {
    PopRequest request;
    request.queue_id = queue.record().queue_id;
    request.max_count = most;
    request.max_bytes = options.max_bytes;
    request.lease_ms = static_cast<std::uint64_t>(options.lease.count());
    request.at_most_once = options.at_most_once;
    request.items = std::move(riding);
    Outcome outcome = queue.client().call(queue.operation(p, "fabriq.pop", request.encode()));
    if (!outcome.ok()) return queue.explain(outcome.error());
    Answer answer{std::make_unique<std::string>(std::move(outcome.value)), {}};
    TRY_LET(reply, PopReply::decode(*answer.bytes));
    if (reply.items.size() != request.items.size())
      return fail(Code::corrupt, "queue: ", reply.items.size(), " answers to ", request.items.size(), " settlements");
    answer.reply = std::move(reply);
    learn(p, answer.reply);
    if (++stayed == kStay && lanes.size() > 1) {
      // The others must be heard while this one keeps us busy.
      std::unique_lock lock(mutex);
      listen(kLongestCallback, lock);
    }
    return answer;
  }

  const Queue queue;
  const ConsumerOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Lane> lanes;
  std::uint32_t current = 0;
  std::uint32_t stayed = 0;
};

Consumer::Consumer(Queue queue, ConsumerOptions options) : state_(std::make_shared<State>(std::move(queue), options)) {}
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer::~Consumer() = default;

Result<Delivery> Consumer::pop(Millis wait) {
  TRY_LET(batch, pop_batch(1, wait));
  if (batch.deliveries.empty())
    return fail(Code::not_found, "queue \"", state_->queue.name(), "\" has no message ready",
                wait.count() > 0 ? "; none came in time" : "; wait for one with --wait");
  return std::move(batch.deliveries[0]);
}

Result<Consumer::Batch> Consumer::pop_batch(std::uint32_t most, Millis wait, const std::vector<Settle>& settle) {
  State& state = *state_;
  if (most < 1 || most > kMaxBatch) return fail(Code::invalid, most, " messages in one pop; 1 to ", kMaxBatch);
  if (wait > kLongestWait) wait = kLongestWait;
  const SteadyTime deadline = std::chrono::steady_clock::now() + wait;
  auto chosen = state.choose();
  if (!chosen || state.options.oldest_first) {
    std::vector<std::uint32_t> all(state.lanes.size());
    for (std::uint32_t p = 0; p < all.size(); p++) all[p] = p;
    TRY(state.look(all));
    chosen = state.choose();
  }

  // What concerns the chosen partition rides along, the rest goes before it.
  Batch batch;
  batch.settled.resize(settle.size());
  std::vector<Settle> riding, beside;
  std::vector<std::size_t> riding_at, beside_at;
  std::uint64_t messages = 0;
  for (std::size_t i = 0; i < settle.size(); i++) {
    const bool rides =
        chosen && settle[i].receipt.partition == *chosen && messages + settle[i].receipt.count <= kMaxBatch;
    (rides ? riding : beside).push_back(settle[i]);
    (rides ? riding_at : beside_at).push_back(i);
    if (rides) messages += settle[i].receipt.count;
  }
  const auto settle_now = [&](const std::vector<Settle>& items, const std::vector<std::size_t>& at) -> Result<void> {
    TRY_LET(done, state.queue.settle(items));
    for (std::size_t i = 0; i < done.size(); i++) batch.settled[at[i]] = done[i];
    return {};
  };
  if (!beside.empty()) TRY(settle_now(beside, beside_at));

  while (true) {
    if (chosen) {
      TRY_LET(answer, state.ask(*chosen, most, riding));
      std::vector<Settle> again;
      std::vector<std::size_t> again_at;
      for (std::size_t i = 0; i < riding.size(); i++) {
        batch.settled[riding_at[i]] = answer.reply.items[i];
        if (answer.reply.items[i].outcome != Settled::Outcome::busy) continue;
        again.push_back(riding[i]);
        again_at.push_back(riding_at[i]);
      }
      riding.clear();
      batch.deliveries = state.queue.deliveries_of(*chosen, answer.reply);
      batch.receipts = std::move(answer.reply.groups);
      if (!again.empty()) {
        // What was popped is out of the queue until its lease ends: it is the caller's, whatever becomes of these. They stay `busy`,
        // which says that nothing was done.
        const auto done = settle_now(again, again_at);
        if (!done && batch.deliveries.empty()) return done.error();
      }
      if (!batch.deliveries.empty()) return batch;
    } else {
      if (std::chrono::steady_clock::now() >= deadline) return batch;
      state.wait(deadline);
    }
    chosen = state.choose();
  }
}

}  // namespace fabriq

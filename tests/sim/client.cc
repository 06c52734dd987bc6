// What clients ask, and what they believe of the answers.
#include "tests/sim/world.h"

namespace zht::sim {

void Client::next() {
  if (busy_ || (!reader_ && world_.now > world_.work_until)) return;
  base::Random& random = world_.random;
  request_ = {};
  if (reader_) {
    if (todo_.empty()) {
      finished = true;
      return;
    }
    std::tie(request_.partition, request_.key) = todo_.back();
    todo_.pop_back();
  } else {
    request_.partition = static_cast<std::uint32_t>(random.below(world_.partition_count));
    const bool refusals = world_.options.emphasis == RunOptions::Emphasis::refusals;
    request_.key = refusals ? "x" : kKeys[random.below(std::size(kKeys))];
    if (random.chance(watch_bias)) request_.verb = Verb::watch;
    else if (random.chance(read_bias)) request_.verb = Verb::lookup;  // who never writes stays with a deposed primary
    else if (request_.key == "a" || request_.key == "b") request_.verb = random.chance(0.5) ? Verb::append : Verb::lookup;
    else request_.verb = std::array{Verb::lookup, Verb::lookup, Verb::insert, Verb::remove, Verb::cswap, Verb::cswap}[random.below(6)];
    request_.value = std::to_string(id_) + "." + std::to_string(sequence_ + 1) + ";";
    const auto& seen = seen_[{request_.partition, request_.key}];
    if (world_.options.instances) {
      const bool appended = request_.verb == Verb::append;
      if (appended && random.chance(0.3)) request_.verb = random.chance(0.5) ? Verb::update : Verb::batch;
      if (request_.verb == Verb::insert && random.chance(0.4)) request_.ttl_ms = 1 + random.below(400);
      if (request_.verb == Verb::lookup) request_.eventual = random.chance(0.15);
      if (request_.eventual && random.chance(0.5)) request_.after = seen.second;
    }
    if (request_.verb == Verb::cswap) request_.expected = seen.first;
    if (request_.verb == Verb::watch) request_.after = seen.second;
  }
  request_.client = static_cast<std::uint64_t>(id_);
  request_.sequence = ++sequence_;
  request_.floor = sequence_ - 1;
  busy_ = true;
  began_ = world_.now;
  call_ = world_.history.called(request_, world_.now);
  world_.result.operations++;
  post();
}

void Client::post() {
  request_.epoch = view().epoch;
  const bool anywhere = request_.eventual && world_.random.chance(0.7);
  request_.to = anywhere ? world_.any_instance() : view().primary.instance;
  world_.send(id_, home(request_.to), request_);
  request_.again = true;
  const std::uint64_t timer = ++timer_;
  world_.at(world_.now + 120 * ms + between(world_.random, 0, 60 * ms), [this, timer] {
    if (timer != timer_ || !busy_) return;
    if (is_enough()) return give_up();
    world_.send(id_, static_cast<int>(world_.random.below(kNodes)), GetViews{});
    post();
  });
}

bool Client::is_enough() const {
  if (reader_) return world_.is_destroyed(request_.partition);
  return world_.now - began_ > 2500 * ms;
}

void Client::give_up() {
  world_.result.given_up++;
  busy_ = false;
  ++timer_;
  world_.at(world_.now + 5 * ms, [this] { next(); });
}

void Client::on(const Packet& packet) {
  if (const auto* news = std::get_if<Views>(&packet))
    for (std::uint32_t p = 0; p < views.size(); p++)
      if (news->views[p].epoch > views[p].epoch) views[p] = news->views[p];
  const auto* reply = std::get_if<Reply>(&packet);
  if (reply == nullptr || !busy_ || reply->sequence != request_.sequence) return;
  if (reply->status == Status::retry || reply->status == Status::full) {
    if (reply->epoch != request_.epoch) return;
    const std::uint64_t timer = ++timer_;
    world_.send(id_, static_cast<int>(world_.random.below(kNodes)), GetViews{});
    world_.at(world_.now + between(world_.random, 2 * ms, 15 * ms), [this, timer] {
      if (timer != timer_ || !busy_) return;
      if (is_enough()) give_up();
      else post();
    });
    return;
  }
  // It was asked again in a newer epoch, where the old refusal is not remembered: only an answer from there counts.
  const bool refusal = request_.changes() && reply->status != Status::ok;
  if (refusal && reply->epoch < request_.epoch && !world_.options.defects.has(Defect::trust_old_refusal)) return;
  busy_ = false;
  ++timer_;
  world_.history.returned(call_, *reply, world_.now);
  if (world_.options.messages)
    world_.say("c%d: request %llu, verb %d on %s of %u: status %d, version %llu, asked in %llu", id_,
               static_cast<unsigned long long>(request_.sequence), static_cast<int>(request_.verb), request_.key.c_str(), request_.partition,
               static_cast<int>(reply->status), static_cast<unsigned long long>(reply->version), static_cast<unsigned long long>(reply->epoch));
  world_.answered();
  if (began_ < forgot_[request_.partition]) return world_.at(world_.now + between(world_.random, 0, 8 * ms), [this] { next(); });
  auto& seen = seen_[{request_.partition, request_.key}];
  if (!request_.changes() || reply->status == Status::mismatch) seen.first = reply->value;
  if (request_.verb == Verb::cswap && reply->status == Status::ok) seen.first = request_.value;
  seen.second = std::max(seen.second, reply->version);
  world_.at(world_.now + between(world_.random, 0, 8 * ms), [this] { next(); });
}

void Client::read_all() {
  for (std::uint32_t p = 0; p < world_.partition_count; p++)
    for (const char* key : kKeys) todo_.emplace_back(p, key);
  for (std::uint32_t p = 0; p < world_.partition_count; p++) views[p] = world_.latest(p);
  next();
}

}  // namespace zht::sim

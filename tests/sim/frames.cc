#include "tests/sim/frames.h"

#include <map>

namespace zht::sim {

using namespace std::chrono_literals;

const Procedures& procedures() {
  static const Procedures all = [] {
    Procedures made;
    made.add("push", [](Transaction& transaction, Bytes key, Bytes argument) -> Result<std::string> {
      const auto found = transaction.lookup(key, Range::whole());
      const std::string value = (found ? found->value : std::string()) + std::string(argument);
      TRY(transaction.insert(key, value, {}));
      return value;
    });
    return made;
  }();
  return all;
}

std::string stored_key(const std::string& key, std::uint32_t partition, std::uint32_t count) {
  static std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> tags;
  std::string& tag = tags[{partition, count}];
  for (int i = 0; tag.empty(); i++)
    if (std::string one = "{" + std::to_string(i) + "}"; partition_of(one, count) == PartitionId{partition}) tag = one;
  return tag + key;
}

std::string encode(const Request& asked, std::uint64_t request, std::uint32_t partition_count) {
  const std::string key = stored_key(asked.key, asked.partition, partition_count);
  const Condition expected = asked.expected ? Condition::equals(*asked.expected) : Condition::absent();
  const auto operation = [&]() -> Operation {
    switch (asked.verb) {
      case Verb::lookup: {
        Operation lookup = Operation::lookup(key);
        if (asked.eventual && asked.after > 0) lookup.condition = Condition::after_version(asked.after);
        return lookup;
      }
      case Verb::insert: return Operation::insert(key, asked.value, std::chrono::milliseconds(asked.ttl_ms));
      case Verb::remove: return Operation::remove(key);
      case Verb::append: return Operation::append(key, asked.value);
      case Verb::cswap: return Operation::cswap(key, expected, asked.value);
      case Verb::watch: return Operation::callback(key, Condition::after_version(asked.after));
      case Verb::update: return Operation::update(key, "push", asked.value);
      case Verb::batch:
        return Operation::batch({Operation::append(key, asked.value), Operation::append(stored_key("b", asked.partition, partition_count), "+"),
                                 Operation::lookup(key)});
    }
    return Operation::lookup(key);
  }();
  const bool changes = asked.changes();
  std::string frame;
  wire::encode_request(frame, operation,
                       {.request = request,
                        .client = changes ? (kWallMillis / 4000) << 34 | asked.client : 0,
                        .sequence = changes ? asked.sequence : 0,
                        .floor = changes ? asked.floor : 0,
                        .epoch = replication::number(asked.epoch),
                        .partition = PartitionId{asked.partition},
                        .timeout_ms = asked.verb == Verb::watch ? 1500u : 0u,
                        .retry = asked.again});
  if (asked.eventual) frame[8] = static_cast<char>(frame[8] | wire::kEventual);
  return frame;
}

std::optional<Reply> decode(const Request& asked, const wire::Frame& frame, std::string& what) {
  Reply reply{asked.client, asked.sequence, asked.epoch, Status::ok, {}, 0};
  if (frame.status == wire::kStatusRetry) {
    reply.status = Status::retry;
    return reply;
  }
  const auto outcome = wire::decode_outcome(frame);
  if (!outcome) {
    what = "a reply that is none: " + outcome.error().message;
    return {};
  }
  switch (outcome->code) {
    case Code::ok: break;
    case Code::not_found: reply.status = Status::not_found; break;
    case Code::conflict: reply.status = Status::mismatch; break;
    case Code::no_space:
    case Code::unavailable: reply.status = Status::full; break;
    case Code::timeout: reply.status = asked.verb == Verb::watch ? Status::retry : Status::expired; break;
    default: what = "an answer of code " + std::to_string(static_cast<int>(outcome->code)) + ": " + outcome->message; return {};
  }
  reply.version = outcome->version;
  if (asked.verb == Verb::watch && reply.status == Status::ok && !outcome->present) reply.status = Status::not_found;
  if (outcome->present && (!asked.changes() || reply.status == Status::mismatch)) reply.value = outcome->value;
  if (asked.verb == Verb::update && outcome->ok()) reply.value = outcome->value;
  if (asked.verb == Verb::batch && outcome->ok()) {
    reply.value = outcome->outcomes.at(2).value;
    reply.version = outcome->outcomes.at(2).version;
  }
  return reply;
}

}  // namespace zht::sim

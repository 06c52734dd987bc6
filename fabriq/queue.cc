#include <algorithm>
#include <charconv>

#include "fabriq/fabriq.h"
#include "novoht/base/random.h"

namespace fabriq {
namespace {

using zht::Operation;
using zht::Outcome;

constexpr int kMaxRounds = 1000;  // of work that a queue is done with piece by piece

Error no_such_queue(Bytes name) {
  return fail(Code::not_found, "no queue \"", base::escape(name), "\"; make it with: fabriq create ",
              base::escape(name));
}

std::string number_text(std::uint64_t number) {
  std::string out;
  base::Writer(out).u64(number);
  return out;
}

Descriptor descriptor_of(const QueueRecord& record, std::uint32_t partition) {
  Descriptor it;
  it.queue_id = record.queue_id;
  it.era = 1;
  it.partition = partition;
  it.visibility_ms = record.visibility_ms;
  it.max_deliveries = record.max_deliveries;
  it.max_bytes = record.max_bytes == 0 ? 0 : std::max<std::uint64_t>(record.max_bytes / record.partitions, 1);
  it.secret = record.secret;
  return it;
}

struct Found {
  QueueRecord record;
  zht::Version version = 0;
};

Result<std::optional<Found>> find(zht::Client& client, Bytes name) {
  auto value = client.lookup(queue_key(name));
  if (!value && value.code() == Code::not_found) return std::optional<Found>();
  if (!value) return value.error();
  TRY_LET(record, QueueRecord::decode(value->value));
  return std::optional<Found>(Found{record, value->version});
}

Result<void> all_ok(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes)
    if (!outcome.ok()) return outcome.error();
  return {};
}

// Every step may be repeated, by whoever meets a queue that is being made.
Result<void> finish_create(zht::Client& client, Bytes name, const Found& found) {
  std::vector<Operation> operations;
  for (std::uint32_t p = 0; p < found.record.partitions; p++)
    operations.push_back(
        Operation::update(partition_tag(name, p), "fabriq.open", descriptor_of(found.record, p).encode()));
  TRY(all_ok(client.call_all(std::move(operations))));
  QueueRecord ready = found.record;
  ready.phase = QueueRecord::Phase::ready;
  TRY(client.cswap(queue_key(name), zht::Condition::at_version(found.version), ready.encode()));  // or another did
  return {};
}

// Removes what nobody can reach any more: all keys of a partition that is closed, else those of earlier eras.
Result<void> sweep(zht::Client& client, Bytes name, std::uint32_t partition) {
  const std::string tag = partition_tag(name, partition);
  std::uint64_t cursor = 0;
  do {
    const Outcome page =
        client.call(Operation::scan(zht::partition_of(tag, client.partition_count()), cursor, tag, 2000));
    if (!page.ok()) return page.error();
    std::string keys;
    for (const zht::ScanEntry& entry : page.entries) base::Writer(keys).str(entry.key);
    if (!keys.empty()) TRY(client.update(tag, "fabriq.sweep", keys));
    cursor = page.cursor;
  } while (cursor != 0);
  return {};
}

Result<void> finish_destroy(zht::Client& client, Bytes name, const Found& found) {
  std::vector<Operation> operations;
  for (std::uint32_t p = 0; p < found.record.partitions; p++)
    operations.push_back(Operation::update(partition_tag(name, p), "fabriq.close", number_text(found.record.queue_id)));
  TRY(all_ok(client.call_all(std::move(operations))));
  for (std::uint32_t p = 0; p < found.record.partitions; p++) TRY(sweep(client, name, p));
  TRY(client.cswap_remove(queue_key(name), zht::Condition::at_version(found.version)));
  return {};
}

}  // namespace

double QueueInfo::imbalance() const {
  std::uint64_t most = 0;
  for (const Info& info : partitions) most = std::max(most, info.pushed);
  if (total.pushed == 0) return 0;
  const double even = static_cast<double>(total.pushed) / static_cast<double>(partitions.size());
  return (static_cast<double>(most) - even) / even;
}

Result<Queue> Queue::create(zht::Client& client, std::string_view name, const QueueOptions& options) {
  TRY(check_name(name));
  if (options.partitions < 1 || options.partitions > kMaxPartitions)
    return fail(Code::invalid, options.partitions, " partitions; 1 to ", kMaxPartitions);
  if (options.visibility.count() < 1 || static_cast<std::uint64_t>(options.visibility.count()) > kMaxLeaseMillis)
    return fail(Code::invalid, "a visibility timeout of ", options.visibility.count(), " ms; 1 ms to 12 h");
  QueueRecord record;
  record.queue_id = base::entropy();
  record.partitions = options.partitions;
  record.visibility_ms = static_cast<std::uint64_t>(options.visibility.count());
  record.max_deliveries = options.max_deliveries;
  record.max_bytes = options.max_bytes;
  record.secret = {base::entropy(), base::entropy()};
  record.created_ms = base::to_millis(base::SystemClock().wall());
  for (int round = 0; round < kMaxRounds; round++) {
    const auto made = client.insert_new(queue_key(name), record.encode());
    if (made) {
      TRY(finish_create(client, name, {record, *made}));
      return open(client, name);
    }
    if (made.code() != Code::conflict) return made.error();
    TRY_LET(found, find(client, name));
    if (!found) continue;
    switch (found->record.phase) {
      case QueueRecord::Phase::deleting:
        TRY(finish_destroy(client, name, *found));
        continue;
      case QueueRecord::Phase::creating:  // somebody was killed while making it; what they asked for counts
        TRY(finish_create(client, name, *found));
        [[fallthrough]];
      case QueueRecord::Phase::ready:
        return fail(Code::conflict, "queue \"", name,
                    "\" is there already; use it, or take it away first: fabriq delete ", name);
    }
  }
  return fail(Code::unavailable, "queue \"", name, "\" is made and deleted all the time by others");
}

Result<Queue> Queue::open(zht::Client& client, std::string_view name) {
  TRY(check_name(name));
  for (int round = 0; round < kMaxRounds; round++) {
    TRY_LET(found, find(client, name));
    if (!found || found->record.phase == QueueRecord::Phase::deleting) return no_such_queue(name);
    if (found->record.phase == QueueRecord::Phase::creating) {
      TRY(finish_create(client, name, *found));
      continue;
    }
    return Queue(std::make_shared<const Shared>(Shared{&client, std::string(name), found->record}));
  }
  return fail(Code::unavailable, "queue \"", name, "\" is made and deleted all the time by others");
}

Result<std::vector<std::string>> Queue::list(zht::Client& client) {
  std::vector<std::string> names;
  const zht::PartitionId where = zht::partition_of(kQueuePrefix, client.partition_count());
  std::uint64_t cursor = 0;
  do {
    const Outcome page = client.call(Operation::scan(where, cursor, std::string(kQueuePrefix)));
    if (!page.ok()) return page.error();
    for (const zht::ScanEntry& entry : page.entries) names.push_back(entry.key.substr(kQueuePrefix.size()));
    cursor = page.cursor;
  } while (cursor != 0);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<void> Queue::destroy(zht::Client& client, std::string_view name) {
  TRY(check_name(name));
  for (int round = 0; round < kMaxRounds; round++) {
    TRY_LET(found, find(client, name));
    if (!found) return round == 0 ? Result<void>(no_such_queue(name)) : Result<void>();
    if (found->record.phase != QueueRecord::Phase::deleting) {
      QueueRecord record = found->record;
      record.phase = QueueRecord::Phase::deleting;
      TRY(client.cswap(queue_key(name), zht::Condition::at_version(found->version), record.encode()));
      continue;
    }
    TRY(finish_destroy(client, name, *found));
    return {};
  }
  return fail(Code::unavailable, "queue \"", name, "\" is made and deleted all the time by others");
}

std::string Queue::id_of(std::uint32_t partition, std::uint64_t number) const {
  char text[64];
  char* at = text;
  for (int shift = 28; shift >= 0; shift -= 4) *at++ = "0123456789abcdef"[(record().queue_id >> shift) & 15];
  *at++ = '-';
  at = std::to_chars(at, text + sizeof text, partition).ptr;
  *at++ = '-';
  if ((number & kAlone) != 0) *at++ = 'd';
  at = std::to_chars(at, text + sizeof text, number & ~kAlone).ptr;
  return {text, at};
}

zht::Operation Queue::operation(std::uint32_t partition, std::string procedure, std::string arguments) const {
  return Operation::update(tag(partition), std::move(procedure), std::move(arguments));
}

Error Queue::explain(Error error) const {
  if (error.code == Code::not_found) return no_such_queue(name());
  if (error.code == Code::conflict || error.code == Code::no_space)
    return base::add_context("queue \"" + name() + "\"", std::move(error));
  return error;
}

Result<std::vector<std::string>> Queue::on_all(std::string procedure, const std::string& arguments) const {
  std::vector<Operation> operations;
  for (std::uint32_t p = 0; p < partitions(); p++) operations.push_back(operation(p, procedure, arguments));
  std::vector<std::string> replies;
  for (Outcome& outcome : client().call_all(std::move(operations))) {
    if (!outcome.ok()) return explain(outcome.error());
    replies.push_back(std::move(outcome.value));
  }
  return replies;
}

Result<void> Queue::judge(const Settled& settled) const {
  switch (settled.outcome) {
    case Settled::Outcome::done:
    case Settled::Outcome::already:
      return {};
    case Settled::Outcome::superseded:
      return fail(Code::conflict, "queue \"", name(),
                  "\": the receipt is stale: its lease ended and the message went on; pop it again");
    case Settled::Outcome::forged:
      return fail(Code::conflict, "queue \"", name(),
                  "\": the receipt is not one of this queue; use the one that pop printed");
    case Settled::Outcome::busy:
      break;
  }
  return fail(Code::unavailable, "queue \"", name(), "\": the partition was busy; try again");
}

Result<std::vector<Settled>> Queue::settle(const std::vector<Settle>& items) const {
  std::vector<Settled> results(items.size());
  std::vector<std::size_t> left(items.size());
  for (std::size_t i = 0; i < items.size(); i++) left[i] = i;
  for (int round = 0; round < kMaxRounds && !left.empty(); round++) {
    // One request to each partition, with as many messages as one may have.
    std::vector<std::vector<std::size_t>> chosen(partitions());
    std::vector<std::uint32_t> messages(partitions(), 0);
    std::vector<std::size_t> later;
    for (const std::size_t i : left) {
      const std::uint32_t p = items[i].receipt.partition;
      if (p >= partitions()) {
        results[i].outcome = Settled::Outcome::forged;
      } else if (messages[p] > 0 && messages[p] + std::uint64_t{items[i].receipt.count} > kMaxBatch) {
        later.push_back(i);
        messages[p] = kMaxBatch;
      } else {
        messages[p] += items[i].receipt.count;
        chosen[p].push_back(i);
      }
    }
    std::vector<Operation> operations;
    std::vector<std::uint32_t> of;
    for (std::uint32_t p = 0; p < partitions(); p++) {
      if (chosen[p].empty()) continue;
      SettleRequest request;
      request.queue_id = record().queue_id;
      for (const std::size_t i : chosen[p]) request.items.push_back(items[i]);
      operations.push_back(operation(p, "fabriq.settle", request.encode()));
      of.push_back(p);
    }
    const auto outcomes = client().call_all(std::move(operations));
    for (std::size_t at = 0; at < outcomes.size(); at++) {
      if (!outcomes[at].ok()) return explain(outcomes[at].error());
      TRY_LET(reply, SettleReply::decode(outcomes[at].value));
      const auto& sent = chosen[of[at]];
      if (reply.items.size() != sent.size())
        return fail(Code::corrupt, "queue: ", reply.items.size(), " answers to ", sent.size(), " settlements");
      for (std::size_t k = 0; k < sent.size(); k++) {
        results[sent[k]] = reply.items[k];
        if (reply.items[k].outcome == Settled::Outcome::busy) later.push_back(sent[k]);
      }
    }
    std::sort(later.begin(), later.end());
    left = std::move(later);
  }
  return results;
}

Result<void> Queue::acknowledge(const Receipt& receipt) const {
  TRY_LET(settled, settle({{Settle::Kind::acknowledge, receipt, 0}}));
  return judge(settled[0]);
}

Result<void> Queue::give_back(const Receipt& receipt, Millis delay) const {
  TRY_LET(settled, settle({{Settle::Kind::give_back, receipt, static_cast<std::uint64_t>(delay.count())}}));
  return judge(settled[0]);
}

Result<void> Queue::extend(const Receipt& receipt, Millis by) const {
  TRY_LET(settled, settle({{Settle::Kind::extend, receipt, static_cast<std::uint64_t>(by.count())}}));
  return judge(settled[0]);
}

std::vector<Delivery> Queue::deliveries_of(std::uint32_t partition, const PopReply& reply) const {
  std::vector<Delivery> deliveries;
  deliveries.reserve(reply.messages.size());
  for (const PopReply::Message& message : reply.messages) {
    Delivery delivery;
    delivery.id = id_of(partition, message.number);
    delivery.body = std::string(message.body);
    delivery.receipt = message.receipt;
    delivery.deliveries = message.deliveries;
    delivery.pushed_at = base::from_millis(message.pushed_ms);
    if (!message.attributes.empty()) {
      Attributes attributes = Attributes::decode(message.attributes);
      delivery.producer = std::move(attributes.producer);
      delivery.sequence = attributes.sequence;
    }
    deliveries.push_back(std::move(delivery));
  }
  return deliveries;
}

Result<std::vector<Delivery>> Queue::peek(std::uint32_t most, bool dead) const {
  PeekRequest request;
  request.queue_id = record().queue_id;
  request.max_count = most;
  request.dead = dead;
  TRY_LET(replies, on_all("fabriq.peek", request.encode()));
  std::vector<Delivery> all;
  for (std::uint32_t p = 0; p < replies.size(); p++) {
    TRY_LET(reply, PopReply::decode(replies[p]));
    for (Delivery& delivery : deliveries_of(p, reply)) all.push_back(std::move(delivery));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Delivery& a, const Delivery& b) { return a.pushed_at < b.pushed_at; });
  if (all.size() > most) all.resize(most);
  return all;
}

Result<QueueInfo> Queue::info() const {
  TRY_LET(replies, on_all("fabriq.info", number_text(record().queue_id)));
  QueueInfo info;
  for (const std::string& reply : replies) {
    TRY_LET(partition, Info::decode(reply));
    info.partitions.push_back(partition);
    info.total += partition;
  }
  return info;
}

Result<std::uint64_t> Queue::purge() const {
  TRY_LET(replies, on_all("fabriq.purge", number_text(record().queue_id)));
  std::uint64_t count = 0;
  for (const std::string& reply : replies)
    if (reply.size() == 8) count += base::load<std::uint64_t>(reply.data());
  for (std::uint32_t p = 0; p < partitions(); p++) TRY(sweep(client(), name(), p));
  return count;
}

Result<std::uint64_t> Queue::redrive(std::uint64_t most) const {
  std::uint64_t total = 0;
  for (std::uint32_t p = 0; p < partitions(); p++) {
    while (total < most) {
      auto reply =
          client().update(tag(p), "fabriq.redrive", number_text(record().queue_id) + number_text(most - total));
      if (!reply) return explain(reply.error());
      const std::uint64_t count = reply->size() == 8 ? base::load<std::uint64_t>(reply->data()) : 0;
      if (count == 0) break;
      total += count;
    }
  }
  return total;
}

void Queue::push_async(std::uint32_t partition, const PushRequest& request,
                       std::function<void(Result<PushReply>)> done) const {
  client().submit(operation(partition, "fabriq.push", request.encode()),
                  [queue = *this, done = std::move(done)](Outcome outcome) {
                    if (outcome.ok())
                      done(PushReply::decode(outcome.value));
                    else
                      done(queue.explain(outcome.error()));
                  });
}

void Queue::pop_async(std::uint32_t partition, const PopRequest& request,
                      std::function<void(Result<std::vector<Delivery>>, const PopReply&)> done) const {
  client().submit(operation(partition, "fabriq.pop", request.encode()),
                  [queue = *this, partition, done = std::move(done)](Outcome outcome) {
                    if (!outcome.ok()) return done(queue.explain(outcome.error()), {});
                    const auto reply = PopReply::decode(outcome.value);
                    if (!reply) return done(reply.error(), {});
                    done(queue.deliveries_of(partition, *reply), *reply);
                  });
}

}  // namespace fabriq

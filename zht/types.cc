#include "zht/types.h"

#include "zht/operation_names.h"

namespace zht {
namespace {

Operation make(OpKind kind, std::string key) {
  Operation operation;
  operation.kind = kind;
  operation.key = std::move(key);
  return operation;
}

// Which conditions an operation may carry (types.h, Operation::condition).
bool allows(OpKind kind, bool eventual, Condition::Kind condition) {
  using Kind = Condition::Kind;
  switch (kind) {
    case OpKind::insert:
      return condition == Kind::none || condition == Kind::absent;
    case OpKind::remove:
    case OpKind::append:
      return condition == Kind::none || condition == Kind::version || condition == Kind::present;
    case OpKind::cswap:
    case OpKind::callback:
      return condition != Kind::none && condition <= Kind::version_after;
    case OpKind::lookup:
      return condition == Kind::none || (eventual && condition == Kind::version_after);
    default:
      return condition == Kind::none;
  }
}

Result<void> validate_value(std::string_view what, std::size_t size, std::size_t most) {
  if (size > most) return fail(Code::invalid, what, " of ", size, " bytes; at most ", most, " fit in one request");
  return {};
}

Result<void> validate_batch(const Operation& batch, std::uint32_t partition_count, std::size_t max_value_size) {
  if (batch.operations.empty()) return fail(Code::invalid, "batch: no operations in it");
  if (batch.operations.size() > kMaxBatchSize)
    return fail(Code::invalid, "batch: ", batch.operations.size(), " operations; at most ", kMaxBatchSize);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < batch.operations.size(); i++) {
    const Operation& part = batch.operations[i];
    const std::string place = "batch operation " + std::to_string(i);
    if (part.kind == OpKind::batch || part.kind == OpKind::callback || part.kind == OpKind::scan)
      return fail(Code::invalid, place, ": a batch cannot hold a ", name_of(part.kind));
    if (part.eventual) return fail(Code::invalid, place, ": a batch cannot hold an eventual lookup");
    if (auto valid = validate(part, partition_count, max_value_size); !valid)
      return base::add_context(place, std::move(valid).error());
    if (partition_of(part.key, partition_count) != partition_of(batch.operations[0].key, partition_count))
      return fail(Code::invalid, place, ": key \"", base::escape(part.key), "\" is in another partition than \"",
                  base::escape(batch.operations[0].key), "\"; give the keys of a batch one {tag}");
    bytes += part.key.size() + part.value.size() + part.condition.value.size();
  }
  return validate_value("batch", bytes, max_value_size + (std::size_t{1} << 20));
}

}  // namespace

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::insert:
      return "insert";
    case OpKind::lookup:
      return "lookup";
    case OpKind::remove:
      return "remove";
    case OpKind::append:
      return "append";
    case OpKind::cswap:
      return "cswap";
    case OpKind::callback:
      return "callback";
    case OpKind::update:
      return "update";
    case OpKind::batch:
      return "batch";
    case OpKind::scan:
      return "scan";
  }
  return "unknown";
}

Bytes hash_tag(Bytes key) {
  if (key.empty() || key.front() != '{') return key;
  const std::size_t close = key.find('}');
  return close == Bytes::npos || close == 1 ? key : key.substr(1, close - 1);
}

std::uint64_t ring_position(Bytes key) { return base::hash64(hash_tag(key)); }

PartitionId partition_of(Bytes key, std::uint32_t partition_count) {
  // The high bits of position * count: partition i is the i-th of `count` equal slices of the ring.
  __extension__ using Wide = unsigned __int128;
  return PartitionId{static_cast<std::uint32_t>((static_cast<Wide>(ring_position(key)) * partition_count) >> 64)};
}

PartitionId partition_of(const Operation& operation, std::uint32_t partition_count) {
  if (operation.kind == OpKind::scan) return operation.partition;
  const bool many = operation.kind == OpKind::batch && !operation.operations.empty();
  return partition_of(many ? operation.operations[0].key : operation.key, partition_count);
}

Operation Operation::insert(std::string key, std::string value, std::chrono::milliseconds ttl) {
  Operation operation = make(OpKind::insert, std::move(key));
  operation.value = std::move(value);
  operation.ttl = ttl;
  return operation;
}
Operation Operation::insert_new(std::string key, std::string value, std::chrono::milliseconds ttl) {
  Operation operation = insert(std::move(key), std::move(value), ttl);
  operation.condition = Condition::absent();
  return operation;
}
Operation Operation::lookup(std::string key, Range range) {
  Operation operation = make(OpKind::lookup, std::move(key));
  operation.range = range;
  return operation;
}
Operation Operation::lookup_eventual(std::string key, Version at_least, Range range) {
  Operation operation = lookup(std::move(key), range);
  operation.eventual = true;
  if (at_least > 0) operation.condition = Condition::after_version(at_least);
  return operation;
}
Operation Operation::remove(std::string key, bool missing_ok) {
  Operation operation = make(OpKind::remove, std::move(key));
  operation.missing_ok = missing_ok;
  return operation;
}
Operation Operation::append(std::string key, std::string value, std::uint64_t limit) {
  Operation operation = make(OpKind::append, std::move(key));
  operation.value = std::move(value);
  operation.limit = limit;
  return operation;
}
Operation Operation::cswap(std::string key, Condition expected, std::string desired, std::chrono::milliseconds ttl) {
  Operation operation = make(OpKind::cswap, std::move(key));
  operation.condition = std::move(expected);
  operation.value = std::move(desired);
  operation.ttl = ttl;
  return operation;
}
Operation Operation::cswap_remove(std::string key, Condition expected) {
  Operation operation = cswap(std::move(key), std::move(expected), {});
  operation.desired = Desired::remove;
  return operation;
}
Operation Operation::check(std::string key, Condition expected) {
  Operation operation = cswap(std::move(key), std::move(expected), {});
  operation.desired = Desired::keep;
  return operation;
}
Operation Operation::callback(std::string key, Condition condition, Range range) {
  Operation operation = make(OpKind::callback, std::move(key));
  operation.condition = std::move(condition);
  operation.range = range;
  return operation;
}
Operation Operation::update(std::string key, std::string procedure, std::string arguments) {
  Operation operation = make(OpKind::update, std::move(key));
  operation.procedure = std::move(procedure);
  operation.value = std::move(arguments);
  return operation;
}
Operation Operation::batch(std::vector<Operation> operations) {
  Operation operation = make(OpKind::batch, {});
  operation.operations = std::move(operations);
  return operation;
}
Operation Operation::scan(PartitionId partition, std::uint64_t cursor, std::string prefix, std::uint64_t limit) {
  Operation operation = make(OpKind::scan, std::move(prefix));
  operation.partition = partition;
  operation.cursor = cursor;
  operation.limit = limit;
  return operation;
}

Result<void> validate(const Operation& operation, std::uint32_t partition_count, std::size_t max_value_size) {
  const auto kind = static_cast<std::uint8_t>(operation.kind);
  if (kind < static_cast<std::uint8_t>(OpKind::insert) || kind > static_cast<std::uint8_t>(OpKind::scan))
    return fail(Code::invalid, "operation kind ", unsigned{kind}, " does not exist");
  if (operation.kind == OpKind::batch) return validate_batch(operation, partition_count, max_value_size);
  if (operation.key.size() > kMaxKeySize)
    return fail(Code::invalid, name_of(operation.kind), ": key of ", operation.key.size(), " bytes; at most ",
                kMaxKeySize);
  if (operation.kind == OpKind::scan) {
    if (static_cast<std::uint32_t>(operation.partition) >= partition_count)
      return fail(Code::invalid, "scan: partition ", static_cast<std::uint32_t>(operation.partition), " of ",
                  partition_count);
    if (operation.limit > 10'000)
      return fail(Code::invalid, "scan: ", operation.limit, " entries a page; at most 10000");
    return {};
  }
  if (operation.key.empty())
    return fail(Code::invalid, name_of(operation.kind), ": empty key; a key has 1 to ", kMaxKeySize, " bytes");
  TRY(validate_value(operation.kind == OpKind::update ? "update: arguments" : "value", operation.value.size(),
                     max_value_size));
  TRY(validate_value("expected value", operation.condition.value.size(), max_value_size));
  if (operation.eventual && operation.kind != OpKind::lookup)
    return fail(Code::invalid, name_of(operation.kind), ": only a lookup can be eventual");
  if (!allows(operation.kind, operation.eventual, operation.condition.kind))
    return fail(Code::invalid, name_of(operation.kind), ": condition kind ",
                static_cast<unsigned>(operation.condition.kind), " is not one it can carry");
  if (operation.kind == OpKind::update && (operation.procedure.empty() || operation.procedure.size() > 255))
    return fail(Code::invalid, "update: procedure name of ", operation.procedure.size(), " bytes; 1 to 255");
  if (operation.ttl.count() < 0) return fail(Code::invalid, "ttl of ", operation.ttl.count(), " ms is negative");
  if (operation.desired > Desired::keep || operation.range.kind > Range::Kind::nothing)
    return fail(Code::invalid, name_of(operation.kind), ": unknown desired outcome or range");
  return {};
}

}  // namespace zht

#include "fabriq/core/procedures.h"

#include "fabriq/core/messages.h"
#include "fabriq/core/partition.h"

namespace fabriq {
namespace {

using zht::Transaction;

std::string number_text(std::uint64_t number) {
  std::string out;
  base::Writer(out).u64(number);
  return out;
}

Result<std::uint64_t> queue_id_in(Bytes arguments, std::size_t size) {
  if (arguments.size() != size)
    return fail(Code::invalid, "queue: arguments of ", arguments.size(), " bytes; ", size, " expected");
  return base::load<std::uint64_t>(arguments.data());
}

Result<std::string> open(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(descriptor, Descriptor::decode(arguments));
  TRY(Partition::create(tables, key, descriptor));
  return std::string();
}

Result<std::string> close(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(queue_id, queue_id_in(arguments, 8));
  TRY(Partition::close(tables, key, queue_id));
  return std::string();
}

Result<std::string> push(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, PushRequest::decode(arguments));
  TRY_LET(partition, Partition::open(tables, key, request.queue_id));
  TRY_LET(reply, partition.push(request));
  TRY(partition.save());
  return reply.encode();
}

Result<std::string> pop(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, PopRequest::decode(arguments));
  TRY_LET(partition, Partition::open(tables, key, request.queue_id));
  TRY_LET(reply, partition.pop(request));
  TRY(partition.save());
  return reply.encode();
}

Result<std::string> settle(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, SettleRequest::decode(arguments));
  TRY_LET(partition, Partition::open(tables, key, request.queue_id));
  TRY_LET(items, partition.settle(request.items));
  TRY(partition.save());
  return SettleReply{std::move(items)}.encode();
}

Result<std::string> peek(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, PeekRequest::decode(arguments));
  TRY_LET(partition, Partition::open(tables, key, request.queue_id));
  TRY_LET(reply, partition.peek(request));
  return reply.encode();
}

Result<std::string> info(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(queue_id, queue_id_in(arguments, 8));
  TRY_LET(partition, Partition::open(tables, key, queue_id));
  TRY_LET(info, partition.info());
  TRY(partition.save());
  return info.encode();
}

Result<std::string> redrive(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(queue_id, queue_id_in(arguments, 16));
  TRY_LET(partition, Partition::open(tables, key, queue_id));
  TRY_LET(count, partition.redrive(base::load<std::uint64_t>(arguments.data() + 8)));
  TRY(partition.save());
  return number_text(count);
}

Result<std::string> purge(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(queue_id, queue_id_in(arguments, 8));
  TRY_LET(partition, Partition::open(tables, key, queue_id));
  TRY_LET(count, partition.purge());
  TRY(partition.save());
  return number_text(count);
}

Result<std::string> sweep(Transaction& tables, Bytes key, Bytes arguments) {
  base::Reader reader(arguments);
  std::vector<Bytes> keys;
  while (reader.ok() && !reader.done()) keys.push_back(reader.str());
  if (!reader.ok()) return fail(Code::invalid, "queue: a list of keys of ", arguments.size(), " bytes cannot be read");
  TRY_LET(count, Partition::sweep(tables, key, keys));
  return number_text(count);
}

}  // namespace

void add_procedures(zht::Procedures& procedures) {
  procedures.add("fabriq.open", open);
  procedures.add("fabriq.close", close);
  procedures.add("fabriq.push", push);
  procedures.add("fabriq.pop", pop);
  procedures.add("fabriq.settle", settle);
  procedures.add("fabriq.peek", peek);
  procedures.add("fabriq.info", info);
  procedures.add("fabriq.redrive", redrive);
  procedures.add("fabriq.purge", purge);
  procedures.add("fabriq.sweep", sweep);
}

}  // namespace fabriq

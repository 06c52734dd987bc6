#include "zht/client/table.h"

#include <map>

#include "zht/wire/zht.pb.h"

namespace zht::client {

Result<std::shared_ptr<const Table>> parse_table(base::Bytes message, bool same_machine, const security::Opener& opener) {
  wire::MembershipTable proto;
  if (!proto.ParseFromArray(message.data(), static_cast<int>(message.size())))
    return fail(Code::corrupt, "membership table of ", message.size(), " bytes cannot be read");
  auto table = std::make_shared<Table>();
  table->version = proto.version();
  table->partition_count = proto.partition_count();
  if (proto.max_value_size() > 0) table->max_value_size = proto.max_value_size();
  constexpr std::uint32_t most_partitions = 1 << 24;
  if (table->partition_count == 0 || table->partition_count > most_partitions)
    return fail(Code::corrupt, "membership table with ", table->partition_count, " partitions");
  std::map<std::uint32_t, std::uint32_t> index_of;
  for (const wire::Instance& instance : proto.instances()) {
    Table::Instance one{instance.id(), {}, instance.udp() && !opener};  // a datagram proves nothing
    Address tcp;
    if (!instance.tcp().empty()) {
      TRY_LET(address, parse_address(instance.tcp()));
      tcp = std::move(address);
      tcp.opener = opener;
    }
    // A path of another machine may exist here too and lead to a stranger; a loopback address may be a tunnel's end.
    if (!instance.unix_socket().empty() && same_machine) one.addresses.push_back({.path = instance.unix_socket()});
    if (tcp.port != 0) one.addresses.push_back(std::move(tcp));
    if (one.addresses.empty())
      return fail(Code::corrupt, "membership table: instance ", instance.id(),
                  " has no address that can be reached from here");
    index_of[one.id] = static_cast<std::uint32_t>(table->instances.size());
    table->instances.push_back(std::move(one));
  }
  table->owners.resize(table->partition_count, Owner{UINT32_MAX, 0});
  for (const wire::PartitionRun& run : proto.partitions()) {
    const auto primary = index_of.find(run.view().primary());
    if (primary == index_of.end() || run.first() > table->partition_count ||
        run.count() > table->partition_count - run.first())
      return fail(Code::corrupt, "membership table: partitions ", run.first(), " and ", run.count(),
                  " on are owned by instance ", run.view().primary(), ", which is not in it");
    for (std::uint32_t i = 0; i < run.count(); i++)
      table->owners[run.first() + i] = {primary->second, run.view().epoch()};
  }
  for (std::uint32_t i = 0; i < table->partition_count; i++)
    if (table->owners[i].instance == UINT32_MAX)
      return fail(Code::corrupt, "membership table: partition ", i, " has no owner");
  return std::shared_ptr<const Table>(std::move(table));
}

}  // namespace zht::client

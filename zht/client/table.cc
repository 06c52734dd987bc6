#include "zht/client/table.h"

#include <algorithm>
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
    if (instance.member().node() != proto.instances(0).member().node()) table->lone = false;
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
    index_of[one.id] = static_cast<std::uint32_t>(table->instances.size());
    table->instances.push_back(std::move(one));
  }
  std::map<std::vector<std::uint32_t>, std::uint32_t> sets{{{}, 0}};  // of copies; of what has no view: nobody
  table->owners.resize(table->partition_count, Owner{UINT32_MAX, 0, 0});
  for (const wire::PartitionRun& run : proto.partitions()) {
    if (run.first() > table->partition_count ||
        run.count() > table->partition_count - run.first())
      return fail(Code::corrupt, "membership table: partitions ", run.first(), " and ", run.count(), " on are not in it");
    // One whose address has not been told yet: it is asked for again.
    auto primary = index_of.find(run.view().primary());
    if (primary == index_of.end()) {
      primary = index_of.emplace(run.view().primary(), static_cast<std::uint32_t>(table->instances.size())).first;
      table->instances.push_back(Table::Instance{run.view().primary(), {}, false});
    }
    std::vector<std::uint32_t> members;
    for (const auto* group : {&run.view().sync(), &run.view().learners()})
      for (const std::uint32_t member : *group)
        if (const auto at = index_of.find(member); at != index_of.end() && !table->instances[at->second].addresses.empty())
          members.push_back(at->second);
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    const auto set = sets.emplace(std::move(members), static_cast<std::uint32_t>(sets.size())).first;
    for (std::uint32_t i = 0; i < run.count(); i++)
      table->owners[run.first() + i] = {primary->second, run.view().epoch(), set->second};
  }
  table->copies.resize(sets.size());
  for (const auto& [members, at] : sets) table->copies[at] = members;
  // Where no view is known, by a node that has just started, nobody is the owner: an instance without an address.
  for (Owner& owner : table->owners) {
    if (owner.instance != UINT32_MAX) continue;
    if (table->instances.empty() || table->instances.back().id != kNobody) table->instances.push_back(Table::Instance{kNobody, {}, false});
    owner.instance = static_cast<std::uint32_t>(table->instances.size() - 1);
  }
  return std::shared_ptr<const Table>(std::move(table));
}

namespace {

// Where `instance` is in `table`; its size: nowhere.
std::uint32_t index_of(const Table& table, std::uint32_t instance) {
  const auto found = std::find_if(table.instances.begin(), table.instances.end(), [&](const auto& one) { return one.id == instance; });
  return static_cast<std::uint32_t>(found - table.instances.begin());
}

}  // namespace

std::shared_ptr<const Table> merged(const Table& known, std::shared_ptr<const Table> fresh) {
  std::shared_ptr<Table> better;
  for (std::uint32_t p = 0; p < fresh->partition_count && p < known.partition_count; p++) {
    const Owner& mine = known.owners[p];
    if (mine.epoch <= fresh->owners[p].epoch) continue;
    const std::uint32_t at = index_of(*fresh, known.instances[mine.instance].id);
    if (at == fresh->instances.size()) continue;
    if (!better) better = std::make_shared<Table>(*fresh);
    better->owners[p] = {at, mine.epoch, fresh->owners[p].copies};
  }
  return better ? better : fresh;
}

std::shared_ptr<const Table> with_owner(const Table& table, std::uint32_t partition, std::uint32_t instance, std::uint64_t epoch) {
  if (partition >= table.partition_count || epoch <= table.owners[partition].epoch) return nullptr;
  const std::uint32_t at = index_of(table, instance);
  if (at == table.instances.size()) return nullptr;
  auto better = std::make_shared<Table>(table);
  better->owners[partition] = {at, epoch, table.owners[partition].copies};
  return better;
}

std::uint32_t Table::turns(PartitionId partition) const {
  const Owner& owner = owner_of(partition);
  const auto& members = copies[owner.copies];
  const bool leads = std::binary_search(members.begin(), members.end(), owner.instance);
  return static_cast<std::uint32_t>(members.size()) + (leads ? 0 : 1);
}

std::uint32_t Table::asked(PartitionId partition, std::uint32_t turn) const {
  const Owner& owner = owner_of(partition);
  if (turn == 0 || (turn %= turns(partition)) == 0) return owner.instance;
  for (const std::uint32_t member : copies[owner.copies])
    if (member != owner.instance && --turn == 0) return member;
  return owner.instance;
}

std::uint32_t Table::best_turn(PartitionId partition, std::uint32_t any) const {
  const std::uint32_t count = turns(partition);
  for (std::uint32_t turn = 0; turn < count; turn++) {
    const auto& addresses = instances[asked(partition, turn)].addresses;
    if (!addresses.empty() && addresses.front().is_unix()) return turn;
  }
  return any % count;
}

}  // namespace zht::client

#include "novoht/core/replay.h"

#include <vector>

namespace novoht::core {

void replay_change(Table& table, const Change& change, std::uint64_t hash, Version version) {
  const std::uint64_t expires = base::to_millis(change.expires);
  switch (change.kind) {
    case Change::Kind::insert: table.put(hash, change.key, change.value, expires, version); break;
    case Change::Kind::append: table.append(hash, change.key, change.value, expires, version); break;
    case Change::Kind::remove: table.erase(hash, change.key); break;
  }
}

bool replay_changes(Table& table, Bytes changes, std::size_t change_count, Version version, bool guarded) {
  // Which keys already have this record is looked at before its own changes make them look so.
  std::vector<bool> skip;
  if (guarded) {
    ChangeReader before(changes, change_count);
    while (const auto change = before.next()) {
      const Entry* const entry = table.find(Table::hash(change->key), change->key);
      skip.push_back(entry != nullptr && entry->version >= version);
    }
  }
  ChangeReader in(changes, change_count);
  for (std::size_t i = 0; const auto change = in.next(); i++) {
    if (guarded && skip[i]) continue;
    replay_change(table, *change, Table::hash(change->key), version);
  }
  return in.ok();
}

bool replay_rewind(Table& table, Bytes changes, std::size_t change_count, Version to) {
  ChangeReader in(changes, change_count, true);
  while (const auto change = in.next()) {
    const std::uint64_t hash = Table::hash(change->key);
    if (change->kind == Change::Kind::remove) {
      table.erase(hash, change->key);
      continue;
    }
    base::Reader reader(change->value);
    const auto entry = parse_checkpoint_entry(reader);
    if (!entry || !reader.done() || entry->key != change->key || entry->version > to) return false;
    table.erase(hash, change->key);
    table.load(hash, *entry);
  }
  return in.ok();
}

}  // namespace novoht::core

// A store under test beside a plain model of what it must hold. Every record applied is remembered, so that after a crash
// the recovered store can be compared with the model after some number of them: no fewer than were promised.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "novoht/base/random.h"
#include "novoht/store.h"

namespace novoht::testing {

// Remembers notes as an embedder would: a hash chained over all of a table's notes, kept across checkpoints.
class NoteKeeper final : public Companion {
 public:
  Result<void> restore(TableId table, Bytes attachment) override {
    chain[table] = attachment.empty() ? 0 : base::load<std::uint64_t>(attachment.data());
    return {};
  }
  Result<void> replay(TableId table, Version version, std::uint64_t, Bytes note) override {
    add(table, version, note);
    return {};
  }
  std::string attachment(TableId table) override {
    std::string bytes(8, '\0');
    base::store(bytes.data(), chain[table]);
    return bytes;
  }
  void add(TableId table, Version version, Bytes note) { chain[table] = base::hash64(note, chain[table] + version); }
  std::map<TableId, std::uint64_t> chain;
};

struct OwnedChange {
  Change::Kind kind;
  std::string key, value;
  base::WallTime expires = base::kNever;
  Change view() const { return {kind, key, value, expires}; }
};
struct OwnedRecord {
  TableId table{};
  std::vector<OwnedChange> changes;
  std::string note;
  std::uint64_t epoch = 0;
};

struct ModelValue {
  std::vector<std::string> fragments;
  Version version = 0;
  bool operator==(const ModelValue&) const = default;
};
struct Model {
  struct TableModel {
    std::map<std::string, ModelValue> values;
    Version version = 0;
    std::uint64_t epoch = 0;
  };
  std::map<TableId, TableModel> tables;
  NoteKeeper notes;

  void apply(const OwnedRecord& record) {
    TableModel& table = tables[record.table];
    table.version++;
    table.epoch = record.epoch;
    notes.add(record.table, table.version, record.note);
    for (const OwnedChange& change : record.changes) {
      ModelValue& value = table.values[change.key];
      if (change.kind == Change::Kind::insert) value.fragments.clear();
      if (change.kind == Change::Kind::remove) {
        table.values.erase(change.key);
        continue;
      }
      value.fragments.push_back(change.value);
      value.version = table.version;
    }
  }
};

inline OwnedRecord random_record(base::Random& random, std::uint32_t tables, std::uint64_t keys, std::size_t largest) {
  OwnedRecord record;
  record.table = TableId{static_cast<std::uint32_t>(random.below(tables))};
  record.epoch = 1;
  if (random.chance(0.5)) record.note = "note " + std::to_string(random.next());
  const std::uint64_t count = random.chance(0.8) ? 1 : random.below(5);
  for (std::uint64_t i = 0; i < count; i++) {
    OwnedChange change;
    change.key = "key" + std::to_string(random.below(keys));
    const std::uint64_t kind = random.below(10);
    change.kind = kind < 5 ? Change::Kind::insert : kind < 8 ? Change::Kind::append : Change::Kind::remove;
    if (change.kind != Change::Kind::remove) {
      const std::size_t size = random.chance(0.05) ? random.below(largest) : random.below(60);
      change.value = std::string(size, static_cast<char>('a' + random.below(26)));
    }
    record.changes.push_back(std::move(change));
  }
  return record;
}

inline Result<Version> apply_to(Store& store, const OwnedRecord& record) {
  std::vector<Change> changes;
  for (const OwnedChange& change : record.changes) changes.push_back(change.view());
  return store.apply(record.table, changes, record.note, record.epoch);
}

// Everything `store` holds equals the model; otherwise says where they differ.
inline ::testing::AssertionResult equals(const Store& store, const Model& model) {
  for (const auto& [id, table] : model.tables) {
    if (store.version(id) != table.version)
      return ::testing::AssertionFailure() << "table " << static_cast<std::uint32_t>(id) << " version " << store.version(id)
                                           << ", expected " << table.version;
    if (store.epoch(id) != table.epoch) return ::testing::AssertionFailure() << "epoch " << store.epoch(id);
    std::uint64_t cursor = 0, seen = 0;
    do {
      const ScanPage page = store.scan(id, cursor, 50);
      for (const ScanEntry& entry : page.entries) {
        seen++;
        if (!table.values.contains(entry.key)) return ::testing::AssertionFailure() << "unexpected key " << entry.key;
      }
      cursor = page.cursor;
    } while (cursor != 0);
    if (seen != table.values.size())
      return ::testing::AssertionFailure() << seen << " keys in a scan, expected " << table.values.size();
    for (const auto& [key, expected] : table.values) {
      const auto value = store.lookup(id, key);
      if (!value) return ::testing::AssertionFailure() << "missing key " << key;
      ModelValue found;
      found.version = value->version();
      std::string bytes;
      if (!value->read(0, value->size(), bytes)) return ::testing::AssertionFailure() << "unreadable " << key;
      std::uint64_t begin = 0;
      for (std::uint32_t i = 0; i < value->fragment_count(); i++) {
        found.fragments.push_back(bytes.substr(begin, value->fragment_end(i) - begin));
        begin = value->fragment_end(i);
      }
      if (!(found == expected))
        return ::testing::AssertionFailure() << key << ": version " << found.version << " fragments " << found.fragments.size()
                                             << ", expected " << expected.version << " and " << expected.fragments.size();
    }
  }
  return ::testing::AssertionSuccess();
}

// How many records the store recovered: tables' versions count them.
inline std::uint64_t record_count(const Store& store) {
  std::uint64_t sum = 0;
  for (const TableId table : store.tables()) sum += store.version(table);
  return sum;
}

// The store equals the model after its own number of records, which is between `least` and all of `records`; then
// `records` are cut to that number.
inline ::testing::AssertionResult equals_prefix(const Store& store, const NoteKeeper& notes, std::vector<OwnedRecord>& records,
                                                std::uint64_t least) {
  const std::uint64_t count = record_count(store);
  if (count < least || count > records.size())
    return ::testing::AssertionFailure() << count << " records recovered, promised " << least << " of " << records.size();
  records.resize(count);
  Model model;
  for (const OwnedRecord& record : records) model.apply(record);
  for (const auto& [table, chain] : model.notes.chain) {
    const auto found = notes.chain.find(table);
    if (found == notes.chain.end() || found->second != chain)
      return ::testing::AssertionFailure() << "notes of table " << static_cast<std::uint32_t>(table) << " differ";
  }
  return equals(store, model);
}

}  // namespace novoht::testing

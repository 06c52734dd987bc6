#include "tests/sim/ledger.h"

#include <algorithm>

#include "zht/core/result_table.h"

namespace zht::sim {
namespace {

std::pair<std::uint32_t, std::pair<std::uint64_t, Version>> place(std::uint32_t partition, Position at) {
  return {partition, {replication::number(at.epoch), at.sequence}};
}
std::string words(Position at) {
  return std::to_string(at.sequence) + " of epoch " + std::to_string(replication::number(at.epoch));
}

}  // namespace

std::string Ledger::add(std::uint32_t partition, Position at, Position previous, std::span<const novoht::Change> changes, Bytes note) {
  Item item;
  item.at = at;
  item.previous = previous;
  if (previous.sequence > 0) {
    const Item* const before = find(partition, previous);
    if (before == nullptr) return "entry " + words(at) + " follows " + words(previous) + ", which nobody made";
    item.state = before->state;
  }
  if (!note.empty()) {
    const auto decoded = core::decode_note(note, at.sequence);
    if (!decoded) return decoded.error().message;
    item.client = decoded->client;
    item.sequence = decoded->sequence;
  }
  for (const novoht::Change& change : changes) {
    const std::string key(change.key);
    if (std::find(item.keys.begin(), item.keys.end(), key) == item.keys.end()) item.keys.push_back(key);
    if (change.kind == novoht::Change::Kind::remove) {
      item.state.erase(key);
      continue;
    }
    Value& value = item.state[key];
    const bool append = change.kind == novoht::Change::Kind::append && value.bytes != nullptr;
    value.bytes = std::make_shared<std::string>((append ? *value.bytes : std::string()) + std::string(change.value));
    value.fragments = append ? value.fragments + 1 : 1;
    value.version = at.sequence;
  }
  const auto [known, fresh] = items_.emplace(place(partition, at), std::move(item));
  if (!fresh) return "two entries are " + words(at);
  return {};
}

const Ledger::Item* Ledger::find(std::uint32_t partition, Position at) const {
  const auto found = items_.find(place(partition, at));
  return found == items_.end() ? nullptr : &found->second;
}

std::optional<std::vector<const Ledger::Item*>> Ledger::path(std::uint32_t partition, Version from, Position to) const {
  std::vector<const Item*> items;
  while (to.sequence > from) {
    const Item* const item = find(partition, to);
    if (item == nullptr) return {};
    items.push_back(item);
    to = item->previous;
  }
  std::reverse(items.begin(), items.end());
  return items;
}

std::string Ledger::compare(std::uint32_t partition, Position at, const novoht::Store& store) const {
  const novoht::TableId table{partition};
  State none;
  const State* expected = &none;
  if (at.sequence > 0) {
    const Item* const item = find(partition, at);
    if (item == nullptr) return "it holds entry " + words(at) + ", which nobody made";
    expected = &item->state;
  }
  std::size_t seen = 0;
  for (std::uint64_t cursor = 0;;) {
    const novoht::ScanPage page = store.scan(table, cursor, 100);
    seen += page.entries.size();
    for (const novoht::ScanEntry& entry : page.entries)
      if (!expected->contains(entry.key)) return "at " + words(at) + " it has the key " + entry.key;
    cursor = page.cursor;
    if (cursor == 0) break;
  }
  if (seen < expected->size()) return "at " + words(at) + " it has " + std::to_string(seen) + " keys of " + std::to_string(expected->size());
  for (const auto& [key, value] : *expected) {
    const auto found = store.lookup(table, key);
    std::string bytes;
    if (!found || !found->read(0, found->size(), bytes)) return "at " + words(at) + " it has no key " + key;
    if (bytes != *value.bytes || found->version() != value.version || found->fragment_count() != value.fragments)
      return "at " + words(at) + " key " + key + " has version " + std::to_string(found->version()) + " and " +
             std::to_string(found->fragment_count()) + " fragments, expected " + std::to_string(value.version) + " and " +
             std::to_string(value.fragments);
  }
  return {};
}

}  // namespace zht::sim

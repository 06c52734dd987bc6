#include "zht/core/cut.h"

namespace zht::core {

using backup::BlockKind;
using base::fail;

namespace {

novoht::TableId table_of(PartitionId partition) { return static_cast<novoht::TableId>(partition); }

}  // namespace

void Cut::add(const CutMark& mark, Version since) {
  marks_.push_back(mark);
  if (since != mark.version || since == 0) parts_[mark.partition] = {.version = mark.version, .since = since};
}

void Cut::confirm(PartitionId partition, bool holds) {
  awaited_.erase(partition);
  if (!holds) lose("partition " + std::to_string(static_cast<std::uint32_t>(partition)) + " is led by another now");
}

void Cut::lose(std::string why) {
  if (lost_.empty()) lost_ = std::move(why);
  parts_.clear();
  copied_from_.clear();
  copied_bytes_ = 0;
}

void Cut::replaced(PartitionId partition) {
  if (parts_.contains(partition))
    lose("what was held of partition " + std::to_string(static_cast<std::uint32_t>(partition)) + " went before it was read");
}

Result<void> Cut::append(Part& part, Bytes key, const novoht::ValueView& value, std::string& to) {
  backup::Entry entry{.key = key, .version = value.version(), .expires = value.expires()};
  if (value.fragment_count() > 1)
    for (std::uint32_t i = 0; i < value.fragment_count(); i++) entry.fragment_ends.push_back(value.fragment_end(i));
  std::string bytes;
  if (const auto whole = value.contiguous()) {
    entry.value = *whole;
  } else {
    TRY(value.read(0, value.size(), bytes));
    entry.value = bytes;
  }
  backup::append_entry(to, entry);
  part.entries++;
  return {};
}

void Cut::before(PartitionId partition, std::span<const novoht::Change> changes) {
  const auto found = parts_.find(partition);
  if (found == parts_.end()) return;
  Part& part = found->second;
  for (const novoht::Change& change : changes) {
    const auto value = store_.lookup(table_of(partition), change.key);
    if (!value || value->version() > part.version) continue;
    // Of one that is changed twice by `changes` the copy is made twice, which does no harm.
    const std::size_t had = part.copied.size() + part.copied_kept.size();
    if (value->version() <= part.since) {
      base::Writer(part.copied_kept).u64(backup::mark_of(change.key, value->version()));
      part.kept++;
    } else if (auto copied = append(part, change.key, *value, part.copied); !copied) {
      return lose(copied.error().message);
    }
    copied_bytes_ += part.copied.size() + part.copied_kept.size() - had;
    copied_from_.insert(partition);
  }
  if (copied_bytes_ > kMostCopied)
    lose("keys change faster than the backup is read: " + std::to_string(copied_bytes_) + " bytes wait as they were at the cut");
}

void Cut::send_copies(PartitionId partition, Part& part, std::string& out) {
  copied_bytes_ -= part.copied.size() + part.copied_kept.size();
  if (!part.copied.empty()) backup::append_block(out, BlockKind::entries, partition, part.copied);
  if (!part.copied_kept.empty()) backup::append_block(out, BlockKind::kept, partition, part.copied_kept);
  part.copied = {};
  part.copied_kept = {};
}

// True: that was all of it.
Result<bool> Cut::read_table(PartitionId partition, Part& part, std::size_t bytes, std::string& out) {
  entries_.clear();
  kept_.clear();
  do {
    // A few at a time: what a key's value takes is not known before.
    const novoht::ScanPage page = store_.scan(table_of(partition), part.cursor, 64);
    for (const novoht::ScanEntry& listed : page.entries) {
      if (listed.version > part.version) continue;  // changed since, and copied before
      if (listed.version <= part.since) {
        base::Writer(kept_).u64(backup::mark_of(listed.key, listed.version));
        part.kept++;
        continue;
      }
      const auto value = store_.lookup(table_of(partition), listed.key);
      if (!value) continue;
      TRY(append(part, listed.key, *value, entries_));
    }
    part.cursor = page.cursor;
  } while (part.cursor != 0 && entries_.size() + kept_.size() < bytes);
  if (!entries_.empty()) backup::append_block(out, BlockKind::entries, partition, entries_);
  if (!kept_.empty()) backup::append_block(out, BlockKind::kept, partition, kept_);
  return part.cursor == 0;
}

Result<bool> Cut::read(std::size_t bytes, std::string& out) {
  const std::size_t began = out.size();
  while (lost_.empty() && !parts_.empty() && out.size() - began < bytes) {
    while (!copied_from_.empty()) {
      const PartitionId partition = *copied_from_.begin();
      copied_from_.erase(copied_from_.begin());
      send_copies(partition, parts_[partition], out);
      if (out.size() - began >= bytes) return true;
    }
    auto& [partition, part] = *parts_.begin();
    TRY_LET(all, read_table(partition, part, bytes - (out.size() - began), out));
    if (!all) continue;
    backup::append_block(out, BlockKind::end, partition, backup::encode_end({part.entries, part.kept, part.version}));
    parts_.erase(parts_.begin());
  }
  if (!lost_.empty()) return fail(Code::unavailable, lost_);
  return !parts_.empty();
}

}  // namespace zht::core

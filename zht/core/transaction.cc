#include "zht/core/transaction.h"

#include <algorithm>

namespace zht::core {

using novoht::Change;

Result<void> Seen::read(std::uint64_t offset, std::uint64_t count, std::string& out) const {
  std::uint64_t start = 0;  // of the piece at hand, within the value
  const std::uint64_t end = offset + std::min(count, size - std::min(offset, size));
  if (stored) {
    if (offset < stored->size()) TRY(stored->read(offset, std::min(end, stored->size()) - offset, out));
    start = stored->size();
  }
  for (const Bytes piece : own) {
    const std::uint64_t from = std::max(offset, start), to = std::min(end, start + piece.size());
    if (from < to) out.append(piece.substr(from - start, to - from));
    start += piece.size();
  }
  return {};
}

std::uint64_t Seen::fragment_end(std::uint32_t index) const {
  std::uint64_t end = 0;
  std::uint32_t before = 0;
  if (stored) {
    before = stored->fragment_count();
    if (index < before) return stored->fragment_end(index);
    end = stored->size();
  }
  for (std::uint32_t i = 0; i < own.size() && before + i <= index; i++) end += own[i].size();
  return end;
}

Result<bool> Seen::equals(Bytes value) const {
  if (!present || size != value.size()) return false;
  if (stored && own.empty())
    if (const auto whole = stored->contiguous()) return *whole == value;
  std::string bytes;
  TRY(read(0, size, bytes));
  return bytes == value;
}

Slice slice_of(const Seen& seen, const Range& range) {
  Slice slice;
  std::uint32_t first = 0;  // fragment the slice starts in
  switch (range.kind) {
    case Range::Kind::whole: slice.size = seen.size; break;
    case Range::Kind::nothing: return slice;
    case Range::Kind::bytes:
      slice.offset = std::min(range.offset, seen.size);
      slice.size = std::min(range.size, seen.size - slice.offset);
      break;
    case Range::Kind::tail:
      if (range.size < seen.fragment_count) {
        first = seen.fragment_count - static_cast<std::uint32_t>(range.size);
        slice.offset = first == 0 ? 0 : seen.fragment_end(first - 1);
      }
      slice.size = seen.size - slice.offset;
      break;
  }
  if (seen.fragment_count <= 1) return slice;
  if (range.kind == Range::Kind::bytes) {
    // The first fragment that ends after the offset, by bisection: a long log-like value is read in small pieces.
    std::uint32_t low = 0, high = seen.fragment_count;
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (seen.fragment_end(middle) > slice.offset) high = middle;
      else low = middle + 1;
    }
    first = low;
  }
  const std::uint64_t end = slice.offset + slice.size;
  std::uint64_t at = slice.offset;
  for (std::uint32_t i = first; i < seen.fragment_count && (at < end || range.kind != Range::Kind::bytes); i++) {
    const std::uint64_t stop = std::min(seen.fragment_end(i), end);
    slice.fragments.push_back(static_cast<std::uint32_t>(stop - at));
    at = stop;
  }
  return slice;
}

void PartitionTransaction::begin(novoht::TableId table, Bytes tag) {
  table_ = table;
  tag_ = tag;
  steps_ = written_ = 0;
  changes_.clear();
  by_key_.clear();
  owned_.clear();
  failed_.reset();
}

Seen PartitionTransaction::see(Bytes key) const {
  Seen seen;
  if (auto stored = store_.lookup(table_, key)) {
    seen.present = true;
    seen.version = stored->version();
    seen.size = stored->size();
    seen.fragment_count = stored->fragment_count();
    seen.expires = stored->expires();
    seen.stored = std::move(stored);
  }
  const auto overlay = [&](const Change& change) {
    seen.changed = true;
    seen.version = 0;
    if (change.kind != Change::Kind::append) {
      seen.stored.reset();
      seen.own.clear();
      seen.size = seen.fragment_count = 0;
      seen.present = change.kind == Change::Kind::insert;
      seen.expires = change.expires;
      if (!seen.present) return;
    }
    seen.own.push_back(change.value);
    seen.size += change.value.size();
    seen.fragment_count++;
  };
  if (changes_.size() == 1) {
    if (changes_[0].key == key) overlay(changes_[0]);
  } else if (const auto mine = by_key_.find(key); mine != by_key_.end()) {
    for (std::uint32_t index : mine->second) overlay(changes_[index]);
  }
  return seen;
}

Result<void> PartitionTransaction::put(Change change) {
  written_ += change.key.size() + change.value.size();
  if (++steps_ > kMaxSteps) return fail(Code::no_space, "one request makes more than ", kMaxSteps, " steps");
  if (written_ > kMaxWrittenBytes) return fail(Code::no_space, "one request writes more than ", kMaxWrittenBytes, " bytes");
  if (change.kind == Change::Kind::append) {
    const Seen seen = see(change.key);
    const std::uint64_t size = seen.size + change.value.size() + 4 * (std::uint64_t{seen.fragment_count} + 1);
    // What is there already, of an older build, may still be read in ranges.
    if (seen.present && size > kMaxReplyBytes)
      return fail(Code::no_space, "key \"", base::escape(change.key), "\" has ", seen.size, " bytes in ", seen.fragment_count,
                  " fragments and cannot grow by ", change.value.size(),
                  ": a value and 4 bytes for each fragment are ", kMaxReplyBytes, " bytes at most");
    // Appending to what is not there is an insert: a replay must not put it on top of a value that had expired by now.
    if (!seen.present) change.kind = Change::Kind::insert;
  }
  changes_.push_back(change);
  if (changes_.size() == 2) by_key_[changes_[0].key].push_back(0);
  if (changes_.size() >= 2) by_key_[change.key].push_back(static_cast<std::uint32_t>(changes_.size() - 1));
  return {};
}

Bytes PartitionTransaction::keep(Bytes bytes) { return owned_.emplace_back(bytes); }

Result<void> PartitionTransaction::check_key(Bytes key) const {
  if (key.empty() || key.size() > kMaxKeySize)
    return fail(Code::invalid, "key of ", key.size(), " bytes; 1 to ", kMaxKeySize, " are allowed");
  if (hash_tag(key) != tag_)
    return fail(Code::invalid, "key \"", base::escape(key), "\" does not have the tag \"", base::escape(tag_), "\"");
  return {};
}

std::optional<Transaction::Found> PartitionTransaction::lookup(Bytes key, Range range) {
  if (auto checked = check_key(key); !checked) {
    if (!failed_) failed_ = std::move(checked).error();
    return {};
  }
  if (++steps_ > kMaxSteps) {
    if (!failed_) failed_ = fail(Code::no_space, "one request makes more than ", kMaxSteps, " steps");
    return {};
  }
  const Seen seen = see(key);
  if (!seen.present) return {};
  Found found;
  Slice slice = slice_of(seen, range);
  found.version = seen.version;
  found.size = seen.size;
  found.fragment_count = seen.fragment_count;
  found.expires = seen.expires;
  found.fragments = std::move(slice.fragments);
  if (auto read = seen.read(slice.offset, slice.size, found.value); !read) {
    if (!failed_) failed_ = std::move(read).error();
    return {};
  }
  return found;
}

Result<void> PartitionTransaction::insert(Bytes key, Bytes value, std::chrono::milliseconds ttl) {
  TRY(check_key(key));
  return put(Change::insert(keep(key), keep(value), ttl.count() > 0 ? now_ + std::min(ttl, kMaxTtl) : base::kNever));
}

Result<void> PartitionTransaction::append(Bytes key, Bytes value) {
  TRY(check_key(key));
  return put(Change::append(keep(key), keep(value)));
}

Result<void> PartitionTransaction::remove(Bytes key) {
  TRY(check_key(key));
  if (!see(key).present) return {};
  return put(Change::remove(keep(key)));
}

}  // namespace zht::core

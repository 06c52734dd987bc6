// The part of Metadata that looks for what a client that died has left unfinished, where nobody may ever come by: marked names,
// directories being removed, splits, debts, promises, directories without a name.
#include <algorithm>
#include <cerrno>

#include "fusionfs/core/metadata.h"

namespace fusionfs {

using base::Bytes;
using zht::Operation;
using zht::Outcome;

namespace {

constexpr std::uint64_t kPage = 1000;       // keys of one scan
constexpr std::size_t kReadAtOnce = 64;     // records
constexpr std::size_t kMostAgain = 100'000;  // keys; what is beyond is for fsck
// A directory is made and named at once; its maker has had this long for both. Older ones than the latter were looked at before.
constexpr Nanos kMaker = 30'000'000'000, kLate = 15 * 60'000'000'000;

}  // namespace

Task<Metadata::Leftovers> Metadata::settle_leftovers() {
  Leftovers left;
  Suspects suspects;
  for (std::uint32_t partition = 0; partition < client_.partition_count(); ++partition) {
    std::uint64_t cursor = 0;
    do {
      Call scan(client_, Operation::scan(zht::PartitionId{partition}, cursor, "{d:", kPage));
      Outcome page = co_await scan;
      left.error = errno_of(page);
      if (left.error != 0) co_return left;
      cursor = page.cursor;
      std::vector<std::string> keys;
      for (auto& each : page.entries) keys.push_back(std::move(each.key));
      left.error = co_await settle_page(std::move(keys), left.again, suspects);
      if (left.error != 0) co_return left;
    } while (cursor != 0);
  }
  left.error = co_await drop_nameless(std::move(suspects));
  if (left.error == 0) left.error = co_await free_rename_lock();
  co_return left;
}

Task<Metadata::Leftovers> Metadata::look_again(std::vector<std::string> keys) {
  Leftovers left;
  Suspects suspects;
  left.error = co_await settle_page(std::move(keys), left.again, suspects);
  if (left.error == 0) left.error = co_await drop_nameless(std::move(suspects));
  if (left.error == 0) left.error = co_await free_rename_lock();
  co_return left;
}

// Not before all moves that were left have been settled: a directory that has arrived elsewhere, or was exchanged, and does not know its
// new parent yet, has no name where it is looked for.
Task<int> Metadata::drop_nameless(Suspects suspects) {
  if (suspects.moving) co_return 0;
  for (auto& [parent, directories] : suspects.of_parent) {
    Listing none;
    ListReply listed = co_await list(parent, std::move(none));
    if (listed.error != 0 && listed.error != ENOENT) co_return listed.error;
    for (const auto& [cursor, each] : listed.listing.names) directories.erase(each.inode);
    for (const InodeId directory : directories) {
      const bool lost = co_await nameless(directory);
      int error = 0;
      if (lost) error = co_await drop_nameless(directory);
      if (error == EIO) co_return error;
    }
  }
  co_return 0;
}

Task<int> Metadata::settle_page(std::vector<std::string> keys, std::vector<std::string>& again, Suspects& suspects) {
  struct Seen {
    HomeId home{};
    std::string rest;
    std::string key;
  };
  std::vector<Seen> wanted;
  for (std::string& key : keys) {
    const auto brace = key.find('}');
    std::uint64_t home = 0;
    if (brace == std::string::npos || !parse_hex(Bytes(key).substr(3, brace - 3), home)) continue;
    const Bytes rest = Bytes(key).substr(brace + 1);
    constexpr Bytes kRecords[] = {"u/", "p/", "k/", "h/", "m/"};
    const bool record = std::any_of(std::begin(kRecords), std::end(kRecords), [&](Bytes kind) { return rest.starts_with(kind); });
    if (rest == "s" || rest == "i/1" || rest.starts_with("e/") || record)
      wanted.push_back({HomeId{home}, std::string(rest), std::move(key)});
  }
  for (std::size_t from = 0; from < wanted.size(); from += kReadAtOnce) {
    const std::size_t to = std::min(from + kReadAtOnce, wanted.size());
    std::vector<std::unique_ptr<Call>> reads;
    for (std::size_t i = from; i < to; ++i)
      reads.push_back(std::make_unique<Call>(client_, Operation::lookup(wanted[i].key), zht::Millis{}, Call::Style::beside));
    for (std::size_t i = from; i < to; ++i) {
      const Outcome record = co_await *reads[i - from];
      if (record.code == base::Code::not_found) continue;
      if (!record.ok()) co_return errno_of(record);
      const Seen& seen = wanted[i];
      int error = 0;
      bool unsettled = false;  // or it was, a moment ago
      if (seen.rest == "s") {
        const auto split = decode_split(record.value);
        unsettled = split && (split->under_way() || !split->dying.empty());
        if (unsettled || !split) error = co_await settle_shard(seen.home);
      } else if (seen.rest.starts_with("h/")) {  // who removed the last name may not have come to tell them
        std::uint64_t counter = 0;
        std::vector<std::uint64_t> keepers;
        for (base::Reader from_bytes(record.value); from_bytes.left() >= 8;) keepers.push_back(from_bytes.u64());
        if (parse_hex(Bytes(seen.rest).substr(2), counter) && counter <= kMaxCounter)
          error = co_await tell_keepers(make_inode(seen.home, static_cast<std::uint32_t>(counter)), std::move(keepers));
      } else if (seen.rest.starts_with("e/")) {
        const auto entry = decode_entry(record.value);
        if (entry && entry->moving) {
          unsettled = true;
          error = co_await settle_move(seen.home, seen.rest.substr(2));
          Call look(client_, Operation::lookup(seen.key));
          const Outcome now_there = co_await look;
          const auto still = now_there.ok() ? decode_entry(now_there.value) : std::nullopt;
          suspects.moving = suspects.moving || (still && still->moving) || (!now_there.ok() && now_there.code != base::Code::not_found);
        }
        if (entry && entry->initial) {  // its directory may never have been written
          Reply directory = co_await meet_directory(seen.home, seen.rest.substr(2), *entry, Reply{});
          error = directory.error;
        }
      } else if (seen.rest == "i/1") {
        const InodeId id = make_inode(seen.home, kDirectoryCounter);
        const auto inode = decode_inode(id, record.value);
        const Nanos age = inode ? std::abs(now() - inode->btime) : 0;
        if (inode && inode->has(Inode::kDying)) {
          unsettled = true;
          error = co_await settle_directory(id);
        } else if (inode && id != kRootInode && age <= kMaker) {
          unsettled = true;
        } else if (inode && id != kRootInode && age < kLate) {
          if (suspects.count++ < kMostAgain) suspects.of_parent[inode->parent].insert(id);
        }
      } else {
        unsettled = true;
        error = co_await settle_record(seen.key);
      }
      if (unsettled && again.size() < kMostAgain) again.push_back(seen.key);
      if (error == EIO) co_return error;  // else: for fsck to tell
    }
  }
  co_return 0;
}

// Looked for twice, and its parent again after each time: it may be on its way from one directory to another.
Task<bool> Metadata::nameless(InodeId directory) {
  for (int round = 0; round < 2; ++round) {
    Reply before = co_await getattr(directory);
    if (before.error != 0 || before.inode->has(Inode::kDying)) co_return false;
    const InodeId parent = before.inode->parent;
    Listing none;
    ListReply listed = co_await list(parent, std::move(none));
    if (listed.error != 0 && listed.error != ENOENT) co_return false;
    const auto& names = listed.listing.names;
    if (std::any_of(names.begin(), names.end(), [&](const auto& each) { return each.second.inode == directory; }))
      co_return false;
    Reply after = co_await getattr(directory);
    if (after.error != 0 || after.inode->parent != parent) co_return false;
    if (round == 0) {
      Call moment(client_, Operation::callback(inode_key(directory), zht::Condition::absent(), zht::Range::nothing()),
                  zht::Millis(1000));
      co_await moment;
    }
  }
  co_return true;
}

}  // namespace fusionfs

#include "zht/resp/scan.h"

#include <bit>
#include <memory>

namespace zht::resp {
namespace {

using Outcomes = std::vector<Outcome>;
constexpr unsigned kCursorBits = 53;
constexpr unsigned kTogether = 32;  // partitions asked at once, at most
// Partitions are many (1024): a call of SCAN looks at so many before it answers with what it has, perhaps nothing.
constexpr unsigned kPartitionsAtMost = 1024;

unsigned place_bits(std::uint32_t partition_count) {
  return kCursorBits - static_cast<unsigned>(std::bit_width(partition_count - 1));
}

struct Scan {
  Place place;
  std::uint64_t limit = 10;  // of the next page
  std::uint64_t count = 10;
  std::string pattern = "*", prefix;
  bool none = false;  // TYPE is another than string
  std::uint32_t partition_count;
  int protocol;
  std::uint32_t together = 1;  // partitions the next step asks
  unsigned visited = 0;
  std::vector<std::string> keys;
};

void take(std::vector<std::string>& keys, Outcome& outcome, const std::string& pattern) {
  for (ScanEntry& entry : outcome.entries)
    if (glob_matches(pattern, entry.key)) keys.push_back(std::move(entry.key));
}

Plan finished(const Scan& scan, bool over) {
  Plan plan;
  Reply out(plan.reply, scan.protocol);
  out.array(2);
  out.bulk(over ? "0" : std::to_string(pack(scan.place, scan.partition_count)));
  out.array(scan.keys.size());
  for (const std::string& key : scan.keys) out.bulk(key);
  return plan;
}

Plan failed(const Outcome& outcome, int protocol) {
  Plan plan;
  Reply(plan.reply, protocol).error("ERR " + outcome.message);
  return plan;
}

// One partition at first; twice as many a step while they hold little. What was read past the first page that did not
// end its partition is thrown away: the cursor is one place.
Plan step(const std::shared_ptr<Scan>& scan) {
  Plan plan;
  const std::uint32_t together = std::min(scan->together, scan->partition_count - scan->place.partition);
  for (std::uint32_t i = 0; i < together; i++)
    plan.operations.push_back(Operation::scan(PartitionId{scan->place.partition + i}, i == 0 ? scan->place.cursor : 0,
                                              scan->prefix, std::min<std::uint64_t>(scan->limit, 10'000)));
  plan.next = [scan](Outcomes& outcomes) {
    for (Outcome& page : outcomes) {
      if (!page.ok()) return failed(page, scan->protocol);
      if (page.cursor != 0 && rounded(page.cursor, scan->partition_count) <= scan->place.cursor &&
          scan->limit < 10'000) {
        scan->limit *= 4;  // the page ended where, rounded, it began: a longer one
        scan->together = 1;
        return step(scan);
      }
      take(scan->keys, page, scan->pattern);
      scan->place.cursor = rounded(page.cursor, scan->partition_count);
      if (page.cursor != 0) break;
      scan->place = {scan->place.partition + 1, 0};
      scan->visited++;
      if (scan->place.partition == scan->partition_count) return finished(*scan, true);
    }
    if (scan->keys.size() >= scan->count || scan->visited >= kPartitionsAtMost) return finished(*scan, false);
    scan->together = scan->keys.size() < scan->count / 2 ? std::min(scan->together * 2, kTogether) : 1;
    return step(scan);
  };
  return plan;
}

// KEYS goes through groups of partitions; `left` are those of this group whose pages have not ended.
struct Keys {
  std::vector<Place> left;
  std::uint32_t next_partition = 0;
  std::string pattern, prefix;
  std::uint32_t partition_count;
  int protocol;
  std::vector<std::string> keys;
};

Plan step(const std::shared_ptr<Keys>& all) {
  while (all->left.size() < kTogether && all->next_partition < all->partition_count)
    all->left.push_back({all->next_partition++, 0});
  Plan plan;
  if (all->left.empty()) {
    Reply out(plan.reply, all->protocol);
    out.array(all->keys.size());
    for (const std::string& key : all->keys) out.bulk(key);
    return plan;
  }
  for (const Place& place : all->left)
    plan.operations.push_back(Operation::scan(PartitionId{place.partition}, place.cursor, all->prefix, 10'000));
  plan.next = [all](Outcomes& outcomes) {
    std::vector<Place> left;
    for (std::size_t i = 0; i < outcomes.size(); i++) {
      if (!outcomes[i].ok()) return failed(outcomes[i], all->protocol);
      take(all->keys, outcomes[i], all->pattern);
      if (outcomes[i].cursor != 0) left.push_back({all->left[i].partition, outcomes[i].cursor});
    }
    all->left = std::move(left);
    if (all->keys.size() > kMostKeys) {
      Plan refused;
      Reply(refused.reply, all->protocol).error("ERR more than " + std::to_string(kMostKeys) + " keys match; use SCAN");
      return refused;
    }
    return step(all);
  };
  return plan;
}

}  // namespace

std::uint64_t rounded(std::uint64_t cursor, std::uint32_t partition_count) {
  const unsigned lost = 64 - place_bits(partition_count);
  return cursor >> lost << lost;
}

std::uint64_t pack(Place place, std::uint32_t partition_count) {
  const unsigned bits = place_bits(partition_count);
  return (std::uint64_t{place.partition} << bits) | (place.cursor >> (64 - bits));
}

bool unpack(std::uint64_t number, std::uint32_t partition_count, Place& place) {
  const unsigned bits = place_bits(partition_count);
  if (number >> bits >= partition_count) return false;
  place = {static_cast<std::uint32_t>(number >> bits), number << (64 - bits)};
  return true;
}

Plan plan_scan(const Command& command, std::uint32_t partition_count, int protocol) {
  auto scan = std::make_shared<Scan>();
  scan->partition_count = partition_count;
  scan->protocol = protocol;
  Plan refused;
  Reply out(refused.reply, protocol);
  std::int64_t cursor = 0;
  if (!read_integer(command[1], cursor) || cursor < 0 ||
      !unpack(static_cast<std::uint64_t>(cursor), partition_count, scan->place)) {
    out.error("ERR invalid cursor");
    return refused;
  }
  for (std::size_t i = 2; i < command.size(); i += 2) {
    const std::string option = upper(command[i]);
    std::int64_t number = 0;
    if (i + 1 == command.size() || (option != "MATCH" && option != "COUNT" && option != "TYPE")) {
      out.error("ERR syntax error");
      return refused;
    }
    if (option == "MATCH")
      scan->pattern = command[i + 1];
    else if (option == "TYPE")
      scan->none = lower(command[i + 1]) != "string";
    else if (!read_integer(command[i + 1], number) || number < 1) {
      out.error(number < 1 && read_integer(command[i + 1], number) ? "ERR syntax error"
                                                                   : "ERR value is not an integer or out of range");
      return refused;
    } else
      scan->count = std::min<std::uint64_t>(static_cast<std::uint64_t>(number), 10'000);
  }
  if (scan->none) return finished(*scan, true);
  scan->prefix = glob_prefix(scan->pattern);
  scan->limit = std::max<std::uint64_t>(scan->count, 10);
  return step(scan);
}

Plan plan_keys(const std::string& pattern, std::uint32_t partition_count, int protocol) {
  auto all = std::make_shared<Keys>();
  all->pattern = pattern;
  all->prefix = glob_prefix(pattern);
  all->partition_count = partition_count;
  all->protocol = protocol;
  return step(all);
}

}  // namespace zht::resp

#include "fusionfs/core/openers.h"

#include <algorithm>

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr std::uint8_t kOpenersFormat = 1;

Result<std::vector<Opener>> read_openers(zht::Transaction& tables, HomeId home, Nanos now) {
  const auto found = tables.lookup(openers_key(home));
  if (!found) return std::vector<Opener>();
  auto openers = decode_openers(found->value);
  if (!openers) return fail(Code::corrupt, "openers of ", tag_of(home), ": damaged, or of a newer format");
  // A clock that was set back must not stretch them.
  for (Opener& each : *openers) {
    each.until = std::min(each.until, now + kOpenerLife);
    each.opens_now_until = std::min(each.opens_now_until, now + kOpensNow);
  }
  std::erase_if(*openers, [&](const Opener& each) { return each.until <= now; });
  return std::move(*openers);
}

Nanos now_of(zht::Transaction& tables) { return tables.now().time_since_epoch().count(); }

}  // namespace

std::string encode(const std::vector<Opener>& openers) {
  std::string out;
  base::Writer to(out);
  to.u8(kOpenersFormat);
  to.u32(static_cast<std::uint32_t>(openers.size()));
  for (const Opener& each : openers) {
    to.u64(each.session);
    to.u64(static_cast<std::uint64_t>(each.until));
    to.u64(static_cast<std::uint64_t>(each.opens_now_until));
  }
  return out;
}

std::optional<std::vector<Opener>> decode_openers(Bytes bytes) {
  base::Reader from(bytes);
  if (from.u8() != kOpenersFormat) return std::nullopt;
  const std::uint32_t count = from.u32();
  std::vector<Opener> openers;
  for (std::uint32_t i = 0; i < count && from.ok(); ++i) {
    Opener each;
    each.session = from.u64();
    each.until = static_cast<Nanos>(from.u64());
    each.opens_now_until = static_cast<Nanos>(from.u64());
    openers.push_back(each);
  }
  if (!from.done()) return std::nullopt;
  return openers;
}

Result<void> note_opener(zht::Transaction& tables, HomeId home, std::uint64_t session, bool opens_now) {
  const Nanos now = now_of(tables);
  TRY_LET(openers, read_openers(tables, home, now));
  const auto mine = std::find_if(openers.begin(), openers.end(), [&](const Opener& each) { return each.session == session; });
  Opener& opener = mine == openers.end() ? openers.emplace_back() : *mine;
  opener.session = session;
  opener.until = now + kOpenerLife;
  if (opens_now) opener.opens_now_until = now + kOpensNow;
  return tables.insert(openers_key(home), encode(openers), std::chrono::milliseconds(kOpenerLife / 1'000'000));
}

Result<std::vector<std::uint64_t>> keepers_of(zht::Transaction& tables, InodeId inode, std::uint64_t asker, bool held) {
  const Nanos now = now_of(tables);
  TRY_LET(openers, read_openers(tables, home_of(inode), now));
  std::vector<std::uint64_t> keepers;
  for (const Opener& each : openers) {
    if (each.session != asker || each.opens_now_until > now) keepers.push_back(each.session);
  }
  // Its own alone needs no list.
  if (held && !keepers.empty() && std::find(keepers.begin(), keepers.end(), asker) == keepers.end()) keepers.push_back(asker);
  return keepers;
}

Result<void> put_keepers(zht::Transaction& tables, InodeId inode, const std::vector<std::uint64_t>& keepers) {
  std::string bytes;
  base::Writer to(bytes);
  for (const std::uint64_t each : keepers) to.u64(each);
  return tables.insert(keepers_key(inode), bytes);
}

Result<bool> let_go(zht::Transaction& tables, InodeId inode, std::uint64_t session) {
  const auto found = tables.lookup(keepers_key(inode));
  if (!found) return true;
  std::vector<std::uint64_t> left;
  for (base::Reader from(found->value); from.left() >= 8;) {
    const std::uint64_t each = from.u64();
    if (each != session) left.push_back(each);
  }
  if (!left.empty()) {
    TRY(put_keepers(tables, inode, left));
    return false;
  }
  TRY(tables.remove(keepers_key(inode)));
  return true;
}

}  // namespace fusionfs

#include "fusionfs/data/stores.h"

#include <algorithm>
#include <cstdio>

#include "novoht/base/random.h"

namespace fusionfs {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;
using zht::Operation;
using zht::Outcome;

namespace {

constexpr zht::Millis kPatience{2'000};

// A store whose server is not known at the moment.
class NoContent final : public Content {
 public:
  NoContent(std::uint64_t store, InodeId inode) : store_(store), inode_(inode) {}
  Result<void> begin_writing(std::uint64_t) override { return gone(); }
  Result<void> read(std::uint64_t, char*, std::size_t) override { return gone(); }
  Result<void> write(std::uint64_t, Bytes) override { return gone(); }
  Result<void> truncate(std::uint64_t, std::uint64_t) override { return gone(); }
  Result<void> allocate(std::uint64_t, std::uint64_t) override { return gone(); }
  Result<void> punch(std::uint64_t, std::uint64_t) override { return gone(); }
  Result<void> sync() override { return gone(); }
  Result<std::uint64_t> seek(std::uint64_t, std::uint64_t, bool) override { return gone().error(); }
  std::uint64_t blocks(std::uint64_t size) override { return (size + 511) / 512; }
  Result<std::vector<std::uint32_t>> sums(std::uint64_t, std::uint64_t) override { return gone().error(); }

 private:
  Result<void> gone() const {
    return fail(Code::unavailable, "chunks of inode ", raw(inode_), " are in chunk store ", store_,
                ", which nobody serves");
  }
  const std::uint64_t store_;
  const InodeId inode_;
};

// All of them are written; one that fails while another does not has missed a change and is no copy any more.
class Copies final : public Content {
 public:
  struct Copy {
    std::uint64_t store = 0;
    std::shared_ptr<Content> content;
  };
  explicit Copies(std::vector<Copy> copies) : copies_(std::move(copies)), missed_(copies_.size()) {}

  Result<void> begin_writing(std::uint64_t size) override {
    return to_all([&](Content& each) { return each.begin_writing(size); });
  }
  Result<void> read(std::uint64_t offset, char* to, std::size_t size) override {
    return from_one([&](Content& each) { return each.read(offset, to, size); });
  }
  Result<void> write(std::uint64_t offset, Bytes bytes) override {
    return to_all([&](Content& each) { return each.write(offset, bytes); });
  }
  Result<void> truncate(std::uint64_t size, std::uint64_t old_size) override {
    return to_all([&](Content& each) { return each.truncate(size, old_size); });
  }
  Result<void> allocate(std::uint64_t offset, std::uint64_t size) override {
    return to_all([&](Content& each) { return each.allocate(offset, size); });
  }
  Result<void> punch(std::uint64_t offset, std::uint64_t size) override {
    return to_all([&](Content& each) { return each.punch(offset, size); });
  }
  Result<void> sync() override {
    return to_all([&](Content& each) { return each.sync(); });
  }
  Result<std::uint64_t> seek(std::uint64_t offset, std::uint64_t size, bool data) override {
    std::uint64_t found = 0;
    TRY(from_one([&](Content& each) -> Result<void> {
      TRY_LET(at, each.seek(offset, size, data));
      found = at;
      return {};
    }));
    return found;
  }
  std::uint64_t blocks(std::uint64_t size) override {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (!has_missed(i)) return copies_[i].content->blocks(size);
    }
    return (size + 511) / 512;
  }
  Result<std::vector<std::uint32_t>> sums(std::uint64_t offset, std::uint64_t count) override {
    std::vector<std::uint32_t> found;
    TRY(from_one([&](Content& each) -> Result<void> {
      TRY_LET(sums, each.sums(offset, count));
      found = std::move(sums);
      return {};
    }));
    return found;
  }
  std::vector<std::uint64_t> missed() const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> stores;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (missed_[i]) stores.push_back(copies_[i].store);
    }
    return stores;
  }

 private:
  bool has_missed(std::size_t i) const {
    const std::lock_guard lock(mutex_);
    return missed_[i];
  }
  Result<void> to_all(const std::function<Result<void>(Content&)>& act) {
    std::vector<std::size_t> failed;
    Result<void> first;
    bool any = false;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (has_missed(i)) continue;
      const auto done = act(*copies_[i].content);
      any = any || done.has_value();
      if (done) continue;
      if (failed.empty()) first = done;
      failed.push_back(i);
    }
    if (!any) return first ? Result<void>(fail(Code::unavailable, "no copy is left")) : first;
    const std::lock_guard lock(mutex_);
    for (const std::size_t i : failed) missed_[i] = true;
    return {};
  }
  Result<void> from_one(const std::function<Result<void>(Content&)>& act) {
    Result<void> first = fail(Code::unavailable, "no copy is left");
    bool tried = false;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (has_missed(i)) continue;
      const auto done = act(*copies_[i].content);
      if (done) return done;
      if (!tried) first = done;
      tried = true;
    }
    return first;
  }
  const std::vector<Copy> copies_;
  mutable std::mutex mutex_;
  std::vector<bool> missed_;  // guarded by mutex_
};

}  // namespace

std::string store_key(std::uint64_t identity) { return "{fusionfs}store/" + std::to_string(identity); }

Result<zht::Opener> Stores::opener() {
  {
    const std::lock_guard lock(mutex_);
    if (opener_) return opener_;
  }
  const auto kept_in_the_store = [this]() -> Result<std::string> {
    char fresh[65];
    for (int i = 0; i < 4; ++i)
      std::snprintf(fresh + i * 16, 17, "%016llx", static_cast<unsigned long long>(base::entropy()));
    const Outcome made = client_.call(Operation::insert_new(kChunkSecretKey, fresh));
    if (!made.ok() && made.code != Code::conflict) return made.error();
    const Outcome found = client_.call(Operation::lookup(kChunkSecretKey));
    if (!found.ok()) return found.error();
    return found.value;
  };
  TRY_LET(opener, zht::link_opener("fusionfs chunks", kept_in_the_store));
  const std::lock_guard lock(mutex_);
  opener_ = opener;
  return opener_;
}

void Stores::serve_at(std::string address) {
  const std::lock_guard lock(mutex_);
  address_ = std::move(address);
}

void Stores::leave() {
  bool serves = false;
  {
    const std::lock_guard lock(mutex_);
    serves = !address_.empty();
    address_.clear();
  }
  if (serves) client_.call(Operation::remove(store_key(local_.identity()), true), kPatience);
}

// Nobody may be held up for long by a store that does not answer: what is not heard now is heard next time.
Result<void> Stores::refresh() {
  std::string mine;
  bool listed = false;
  {
    const std::lock_guard lock(mutex_);
    mine = address_;
    listed = listed_;
  }
  if (!mine.empty()) {
    const Outcome said = client_.call(Operation::insert(store_key(local_.identity()), mine, kStoreLife), kPatience);
    if (!said.ok()) return said.error();
  }
  const Outcome list = client_.call(Operation::lookup(kStoresKey), kPatience);
  if (!list.ok() && list.code != Code::not_found) return list.error();
  std::set<std::uint64_t> all;
  base::Reader from(list.value);
  while (from.left() >= 8) all.insert(from.u64());
  if (!mine.empty() && all.count(local_.identity()) == 0 && !listed) {
    std::string id;
    base::Writer(id).u64(local_.identity());
    const Outcome added = client_.call(Operation::append(kStoresKey, id), kPatience);
    if (!added.ok()) return added.error();
    const std::lock_guard lock(mutex_);
    listed_ = true;
  }
  all.erase(local_.identity());
  if (all.empty()) return {};
  TRY_LET(proof, opener());
  std::map<std::uint64_t, std::string> addresses;
  for (const std::uint64_t identity : all) {
    const Outcome found = client_.call(Operation::lookup(store_key(identity)), kPatience);
    if (!found.ok() && found.code != Code::not_found) return found.error();
    if (found.ok()) addresses[identity] = found.value;
  }
  const std::lock_guard lock(mutex_);
  epoch_ += std::erase_if(peers_, [&](const auto& each) {
    const auto address = addresses.find(each.first);
    return address == addresses.end() || address->second != each.second->address();
  });
  for (const auto& [identity, address] : addresses) {
    if (peers_.count(identity) != 0) continue;
    peers_[identity] = std::make_shared<ChunkPeer>(identity, address, proof);
    epoch_ += 1;
  }
  return {};
}

std::uint64_t Stores::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::shared_ptr<ChunkPeer> Stores::peer(std::uint64_t identity) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(identity);
  return found == peers_.end() ? nullptr : found->second;
}

bool Stores::known(std::uint64_t identity) const { return identity == local_.identity() || peer(identity) != nullptr; }

bool Stores::heard(std::uint64_t identity) const {
  const auto other = peer(identity);
  return identity == local_.identity() || (other && other->has_answered());
}

std::size_t Stores::count() const {
  const std::lock_guard lock(mutex_);
  return peers_.size() + 1;
}

std::shared_ptr<Content> Stores::open(InodeId inode, const std::vector<std::uint64_t>& stores) const {
  std::vector<Copies::Copy> copies;
  for (const std::uint64_t store : stores) {
    Copies::Copy copy{store, nullptr};
    if (store == local_.identity())
      copy.content = std::make_shared<LocalContent>(local_, inode);
    else if (auto other = peer(store))
      copy.content = std::make_shared<RemoteContent>(std::move(other), inode);
    else
      copy.content = std::make_shared<NoContent>(store, inode);
    // The nearest is read first.
    copies.insert(store == local_.identity() ? copies.begin() : copies.end(), std::move(copy));
  }
  if (copies.size() == 1) return copies.front().content;
  return std::make_shared<Copies>(std::move(copies));
}

std::vector<std::uint64_t> Stores::choose(std::size_t count) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> chosen;
  if (count == 0 || peers_.empty()) return chosen;
  auto at = peers_.begin();
  std::advance(at, next_++ % peers_.size());
  std::vector<std::uint64_t> silent;
  for (std::size_t i = 0; i < peers_.size() && chosen.size() < count; ++i) {
    (at->second->silent() ? silent : chosen).push_back(at->first);
    if (++at == peers_.end()) at = peers_.begin();
  }
  for (const std::uint64_t each : silent) {
    if (chosen.size() < count) chosen.push_back(each);
  }
  return chosen;
}

Result<void> Stores::remove(InodeId inode, const std::vector<std::uint64_t>& stores, std::uint64_t size) const {
  Result<void> result;
  for (const std::uint64_t store : stores) {
    Result<void> done;
    if (store == local_.identity()) {
      done = local_.remove(inode, size);
    } else if (const auto other = peer(store)) {
      ChunkRequest request;
      request.operation = ChunkOperation::remove;
      request.inode = inode;
      request.first = size;
      const auto answer = other->ask(request);
      if (!answer)
        done = answer.error();
      else if (answer->code != Code::ok)
        done = base::Error{answer->code, answer->bytes};
    } else {
      done = fail(Code::unavailable, "chunks of inode ", raw(inode), " in chunk store ", store, ", which nobody serves");
    }
    if (result && !done) result = done;
  }
  return result;
}

}  // namespace fusionfs

#include "novoht/base/memory_files.h"

#include <algorithm>

namespace base {

// One file's bytes: as read back now, as the disk holds them, and the writes in between.
struct MemoryFiles::Node {
  struct Pending {
    bool resize = false;      // truncate to `offset`, else write `data` at `offset`
    std::uint64_t offset = 0;
    std::string data;
  };
  std::string live, durable;
  std::vector<Pending> pending;
};

struct MemoryFiles::State {
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  mutable std::mutex mutex;
  Names live, durable;
  std::vector<Names> history;  // of names, after each change since the last folder sync
  std::set<std::string> folders;
  std::set<std::string> locks;
  std::uint64_t life = 0;  // grows at crash and kill: handles of an earlier life are dead
  std::uint64_t operations = 0, stop_at = 0, capacity = UINT64_MAX;
  bool fail_writes = false, fail_syncs = false;

  std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (const auto& [path, node] : live) sum += node->live.size();
    return sum;
  }
  bool stopped() const { return stop_at != 0 && operations >= stop_at; }
  // Counts an operation. Returns how it goes: whole, in part (the power goes just now), or not at all.
  enum class Power { on, going, off };
  Power step() {
    if (stopped()) return Power::off;
    operations++;
    return stopped() ? Power::going : Power::on;
  }
  void renamed() { history.push_back(live); }
};

namespace {
Error dead(const std::string& path) { return fail(Code::io, path, ": the power is off"); }
std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}
void write_into(std::string& bytes, std::uint64_t offset, Bytes data) {
  if (bytes.size() < offset + data.size()) bytes.resize(offset + data.size(), '\0');
  std::copy(data.begin(), data.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
}
constexpr std::uint64_t kSector = 512;
}  // namespace

class MemoryFiles::Handle final : public File {
 public:
  Handle(std::shared_ptr<State> state, std::string path, std::shared_ptr<Node> node, bool writable)
      : state_(std::move(state)), path_(std::move(path)), node_(std::move(node)), life_(state_->life), writable_(writable) {}

  Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) override {
    std::scoped_lock lock(state_->mutex);
    if (state_->life != life_) return dead(path_);
    const std::string& bytes = node_->live;
    if (offset >= bytes.size()) return std::size_t{0};
    const std::size_t got = std::min<std::size_t>(size, bytes.size() - offset);
    std::copy_n(bytes.data() + offset, got, to);
    return got;
  }

  Result<void> write_at(std::uint64_t offset, Bytes data) override {
    std::scoped_lock lock(state_->mutex);
    TRY_LET(power, begin());
    if (state_->fail_writes) return fail(Code::io, "write ", path_, " offset ", offset, ": made to fail");
    if (power == State::Power::going) {
      put(offset, data.substr(0, data.size() / 2));
      return dead(path_);
    }
    const std::uint64_t end = offset + data.size();
    const std::uint64_t growth = end > node_->live.size() ? end - node_->live.size() : 0;
    const std::uint64_t used = state_->used();
    if (used + growth > state_->capacity) {
      const std::uint64_t room = state_->capacity > used ? state_->capacity - used : 0;
      const std::uint64_t fits = node_->live.size() + room;
      if (fits > offset) put(offset, data.substr(0, fits - offset));
      return fail(Code::no_space, "write ", path_, " offset ", offset, ": No space left on device");
    }
    put(offset, data);
    return {};
  }

  Result<void> sync() override {
    std::scoped_lock lock(state_->mutex);
    TRY_LET(power, begin());
    if (state_->fail_syncs) return fail(Code::io, "sync ", path_, ": made to fail");
    if (power == State::Power::going) return dead(path_);
    node_->durable = node_->live;
    node_->pending.clear();
    return {};
  }

  Result<std::uint64_t> size() override {
    std::scoped_lock lock(state_->mutex);
    if (state_->life != life_) return dead(path_);
    return std::uint64_t{node_->live.size()};
  }

  Result<void> truncate(std::uint64_t size) override {
    std::scoped_lock lock(state_->mutex);
    TRY_LET(power, begin());
    if (power == State::Power::going) return dead(path_);
    node_->live.resize(size, '\0');
    node_->pending.push_back({.resize = true, .offset = size, .data = {}});
    return {};
  }

  Result<void> reserve(std::uint64_t size) override {
    std::scoped_lock lock(state_->mutex);
    TRY_LET(power, begin());
    if (size <= node_->live.size()) return {};
    if (state_->fail_writes) return fail(Code::io, "reserve ", path_, ": made to fail");
    const std::uint64_t growth = size - node_->live.size();
    if (state_->used() + growth > state_->capacity)
      return fail(Code::no_space, "reserve ", path_, " size ", size, ": No space left on device");
    const std::uint64_t part = power == State::Power::going ? node_->live.size() + growth / 2 : size;
    node_->live.resize(part, '\0');
    node_->pending.push_back({.resize = true, .offset = part, .data = {}});
    if (power == State::Power::going) return dead(path_);
    return {};
  }

 private:
  Result<State::Power> begin() {
    if (state_->life != life_) return dead(path_);
    if (!writable_) return fail(Code::io, path_, ": opened for reading only");
    const auto power = state_->step();
    if (power == State::Power::off) return dead(path_);
    return power;
  }
  void put(std::uint64_t offset, Bytes data) {
    write_into(node_->live, offset, data);
    node_->pending.push_back({.resize = false, .offset = offset, .data = std::string(data)});
  }

  const std::shared_ptr<State> state_;
  const std::string path_;
  const std::shared_ptr<Node> node_;
  const std::uint64_t life_;
  const bool writable_;
};

class MemoryFiles::Lock final : public FileLock {
 public:
  Lock(std::shared_ptr<State> state, std::string path) : state_(std::move(state)), path_(std::move(path)), life_(state_->life) {}
  ~Lock() override {
    std::scoped_lock lock(state_->mutex);
    if (state_->life == life_) state_->locks.erase(path_);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string path_;
  const std::uint64_t life_;
};

MemoryFiles::MemoryFiles() : state_(std::make_shared<State>()) {}
MemoryFiles::~MemoryFiles() = default;

Result<std::unique_ptr<File>> MemoryFiles::open(const std::string& path, OpenMode mode) {
  std::scoped_lock lock(state_->mutex);
  auto found = state_->live.find(path);
  if (found == state_->live.end()) {
    if (mode == OpenMode::read || mode == OpenMode::read_write)
      return fail(Code::not_found, "open ", path, ": No such file or directory");
    if (!state_->folders.contains(parent_of(path)) && !parent_of(path).empty())
      return fail(Code::not_found, "open ", path, ": No such file or directory");
    const auto power = state_->step();
    if (power == State::Power::off) return dead(path);
    found = state_->live.emplace(path, std::make_shared<Node>()).first;
    state_->renamed();
    if (power == State::Power::going) return dead(path);
  } else if (mode == OpenMode::create_new) {
    return fail(Code::conflict, "open ", path, ": File exists");
  }
  return std::unique_ptr<File>(new Handle(state_, path, found->second, mode != OpenMode::read));
}

Result<bool> MemoryFiles::exists(const std::string& path) {
  std::scoped_lock lock(state_->mutex);
  return state_->live.contains(path) || state_->folders.contains(path);
}

Result<void> MemoryFiles::rename(const std::string& from, const std::string& to) {
  std::scoped_lock lock(state_->mutex);
  const auto power = state_->step();
  if (power == State::Power::off) return dead(from);
  const auto found = state_->live.find(from);
  if (found == state_->live.end()) return fail(Code::not_found, "rename ", from, ": No such file or directory");
  auto node = found->second;
  state_->live.erase(found);
  state_->live[to] = std::move(node);
  state_->renamed();
  if (power == State::Power::going) return dead(from);
  return {};
}

Result<void> MemoryFiles::remove(const std::string& path) {
  std::scoped_lock lock(state_->mutex);
  const auto power = state_->step();
  if (power == State::Power::off) return dead(path);
  if (state_->live.erase(path) == 0) return fail(Code::not_found, "remove ", path, ": No such file or directory");
  state_->renamed();
  if (power == State::Power::going) return dead(path);
  return {};
}

Result<std::vector<std::string>> MemoryFiles::list(const std::string& folder) {
  std::scoped_lock lock(state_->mutex);
  if (!state_->folders.contains(folder)) return fail(Code::not_found, "list ", folder, ": No such file or directory");
  std::set<std::string> names;
  for (const auto& [path, node] : state_->live)
    if (parent_of(path) == folder) names.insert(path.substr(folder.size() + 1));
  for (const auto& path : state_->folders)
    if (path != folder && parent_of(path) == folder) names.insert(path.substr(folder.size() + 1));
  return std::vector<std::string>(names.begin(), names.end());
}

Result<void> MemoryFiles::make_folder(const std::string& path) {
  std::scoped_lock lock(state_->mutex);
  if (state_->live.contains(path)) return fail(Code::io, "make folder ", path, ": Not a directory");
  for (std::string part = path; !part.empty(); part = parent_of(part)) state_->folders.insert(part);
  return {};
}

Result<void> MemoryFiles::sync_folder(const std::string& path) {
  std::scoped_lock lock(state_->mutex);
  const auto power = state_->step();
  if (power != State::Power::on) return dead(path);
  if (state_->fail_syncs) return fail(Code::io, "sync folder ", path, ": made to fail");
  state_->durable = state_->live;
  state_->history.clear();
  return {};
}

Result<std::unique_ptr<FileLock>> MemoryFiles::lock(const std::string& path) {
  std::scoped_lock lock(state_->mutex);
  if (!state_->locks.insert(path).second) return fail(Code::conflict, path, ": held by process 1");
  if (!state_->live.contains(path)) {
    state_->live[path] = std::make_shared<Node>();
    state_->renamed();
  }
  return std::unique_ptr<FileLock>(new Lock(state_, path));
}

std::uint64_t MemoryFiles::free_bytes(const std::string&) {
  std::scoped_lock lock(state_->mutex);
  if (state_->capacity == UINT64_MAX) return UINT64_MAX;
  return state_->capacity - std::min(state_->capacity, state_->used());
}

void MemoryFiles::stop_at(std::uint64_t number) {
  std::scoped_lock lock(state_->mutex);
  state_->stop_at = number;
}
std::uint64_t MemoryFiles::operations() const {
  std::scoped_lock lock(state_->mutex);
  return state_->operations;
}
void MemoryFiles::set_capacity(std::uint64_t bytes) {
  std::scoped_lock lock(state_->mutex);
  state_->capacity = bytes;
}
std::uint64_t MemoryFiles::used() const {
  std::scoped_lock lock(state_->mutex);
  return state_->used();
}
void MemoryFiles::fail_writes(bool on) {
  std::scoped_lock lock(state_->mutex);
  state_->fail_writes = on;
}
void MemoryFiles::fail_syncs(bool on) {
  std::scoped_lock lock(state_->mutex);
  state_->fail_syncs = on;
}

void MemoryFiles::crash(Random& random) {
  std::scoped_lock lock(state_->mutex);
  // Names: the synced ones and a prefix of what happened to them since.
  if (!state_->history.empty()) {
    const std::uint64_t kept = random.below(state_->history.size() + 1);
    if (kept > 0) state_->durable = state_->history[kept - 1];
  }
  // Bytes: the synced ones and any sectors of what was written since. The end of the file moves with the last kept one.
  // A disk that had nothing to do kept all; one that had no time kept none; most kept some.
  const double chance = random.chance(0.2) ? 1.0 : random.chance(0.25) ? 0.0 : random.unit();
  std::set<Node*> done;
  for (auto& [path, node] : state_->durable) {
    if (!done.insert(node.get()).second) continue;
    std::string bytes = node->durable;
    for (const auto& change : node->pending) {
      if (change.resize) {
        if (random.chance(chance)) bytes.resize(change.offset, '\0');
        continue;
      }
      std::uint64_t at = change.offset;
      const std::uint64_t end = change.offset + change.data.size();
      while (at < end) {
        const std::uint64_t stop = std::min(end, (at / kSector + 1) * kSector);
        if (random.chance(chance)) write_into(bytes, at, Bytes(change.data).substr(at - change.offset, stop - at));
        at = stop;
      }
    }
    node->live = node->durable = std::move(bytes);
    node->pending.clear();
  }
  state_->live = state_->durable;
  state_->history.clear();
  state_->locks.clear();
  state_->stop_at = 0;
  state_->life++;
}

void MemoryFiles::kill() {
  std::scoped_lock lock(state_->mutex);
  state_->locks.clear();
  state_->stop_at = 0;
  state_->life++;
}

std::string MemoryFiles::contents(const std::string& path) const {
  std::scoped_lock lock(state_->mutex);
  const auto found = state_->live.find(path);
  return found == state_->live.end() ? std::string() : found->second->live;
}

void MemoryFiles::put(const std::string& path, std::string contents) {
  std::scoped_lock lock(state_->mutex);
  for (std::string part = parent_of(path); !part.empty(); part = parent_of(part)) state_->folders.insert(part);
  auto node = std::make_shared<Node>();
  node->live = node->durable = std::move(contents);
  state_->live[path] = state_->durable[path] = node;
  for (auto& names : state_->history) names[path] = node;
}

std::vector<std::string> MemoryFiles::paths() const {
  std::scoped_lock lock(state_->mutex);
  std::vector<std::string> all;
  for (const auto& [path, node] : state_->live) all.push_back(path);
  return all;
}

}  // namespace base

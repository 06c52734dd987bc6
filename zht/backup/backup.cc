#include "zht/backup/backup.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_set>

#include "novoht/base/clock.h"
#include "zht/backup/cluster_cut.h"
#include "zht/support/paths.h"

namespace zht::backup {

using base::fail;

namespace {

// What was said of kept keys did not agree with the backup before: this partition is to be taken whole.
struct Disagreement {
  std::uint32_t partition = 0;
  std::string what;
};

// One backup while it is written. Any thread: instances are read side by side.
class Writer {
 public:
  Writer(const MakeOptions& options, const ClusterCut& cut, std::optional<Chain>& before, std::string folder, std::uint64_t number,
         const std::set<std::uint32_t>& whole);
  Result<void> begin();
  Result<void> take(std::uint32_t instance, Bytes bytes);
  // Data and index, synced.
  Result<Manifest> finish(base::WallTime made);
  std::vector<std::unique_ptr<ServiceBackup>> services;
  const std::optional<Disagreement>& disagreement() const { return disagreement_; }
  std::uint64_t changed() const { return changed_; }

 private:
  struct Part {
    Holding holding;
    bool against = false;  // a backup before, of which it is a change
    bool ended = false;
    std::uint64_t kept = 0;
    std::unordered_set<std::uint64_t> marks;      // of kept keys
    std::unordered_set<std::string> changed;      // keys
  };
  Result<void> take_block(std::uint32_t instance, const Block& block, Bytes bytes);
  Result<void> write(Part& part, Bytes bytes);  // with mutex_
  Result<void> end(PartitionId partition, Part& part, const End& end);

  const MakeOptions& options_;
  const ClusterCut& cut_;
  const std::optional<Chain>& before_;
  const std::string folder_;
  const std::uint64_t number_;
  std::unique_ptr<base::FileSystem> files_ = base::real_files();
  std::unique_ptr<base::File> data_;
  std::mutex mutex_;                                 // guards what follows
  std::vector<Part> parts_;                          // by partition
  std::map<std::uint32_t, std::string> incomplete_;  // blocks, by instance; each its thread's own
  std::uint64_t size_ = 0, done_ = 0, changed_ = 0;
  std::optional<Disagreement> disagreement_;
};

Writer::Writer(const MakeOptions& options, const ClusterCut& cut, std::optional<Chain>& before, std::string folder, std::uint64_t number,
               const std::set<std::uint32_t>& whole)
    : options_(options), cut_(cut), before_(before), folder_(std::move(folder)), number_(number), parts_(cut.marks().size()) {
  for (std::uint32_t p = 0; p < parts_.size(); p++) {
    Part& part = parts_[p];
    part.holding.version = cut.marks()[p].version;
    part.against = before_ && !whole.contains(p) && before_->version(PartitionId{p}) != 0;
    if (!part.against) continue;
    part.holding.state = Holding::State::changes;
    if (before_->version(PartitionId{p}) != part.holding.version) continue;
    part.holding.state = Holding::State::same;
    part.ended = true;
    done_++;
  }
  for (std::uint32_t instance : cut.instances()) incomplete_[instance];
}

Result<void> Writer::begin() {
  TRY_LET(data, files_->open(folder_ + "/data", base::OpenMode::create_new));
  data_ = std::move(data);
  const std::string magic = data_magic(number_);
  TRY(data_->write_at(0, magic));
  size_ = magic.size();
  return {};
}

Result<void> Writer::take(std::uint32_t instance, Bytes bytes) {
  std::string& buffer = incomplete_.at(instance);
  buffer.append(bytes);
  std::size_t used = 0;
  for (;;) {
    const auto next = next_block(Bytes(buffer).substr(used));
    if (!next) return base::add_context("what instance " + std::to_string(instance) + " sent", next.error());
    if (!*next) break;
    TRY(take_block(instance, **next, Bytes(buffer).substr(used, (*next)->size)));
    used += (*next)->size;
  }
  buffer.erase(0, used);
  return {};
}

Result<void> Writer::write(Part& part, Bytes bytes) {
  TRY(data_->write_at(size_, bytes));
  auto& extents = part.holding.extents;
  if (!extents.empty() && extents.back().offset + extents.back().size == size_) extents.back().size += bytes.size();
  else extents.push_back({size_, bytes.size()});
  size_ += bytes.size();
  return {};
}

Result<void> Writer::take_block(std::uint32_t instance, const Block& block, Bytes bytes) {
  const auto number = static_cast<std::uint32_t>(block.partition);
  if (number >= parts_.size() || cut_.marks()[number].instance != instance || parts_[number].ended)
    return fail(Code::corrupt, "instance ", instance, " sent a block of partition ", number, ", which is not to come from it");
  Part& part = parts_[number];  // this thread's
  switch (block.kind) {
    case BlockKind::kept: {
      TRY_LET(marks, parse_kept(block.payload));
      part.kept += marks.size();
      part.marks.insert(marks.begin(), marks.end());
      return {};
    }
    case BlockKind::end: {
      TRY_LET(end, parse_end(block.payload));
      return this->end(block.partition, part, end);
    }
    case BlockKind::removed: return fail(Code::corrupt, "instance ", instance, " sent a block that is not for sending");
    case BlockKind::entries: break;
  }
  std::uint64_t entries = 0;
  for (EntryReader in(block.payload); in.more(); entries++) {
    TRY_LET(entry, in.next());
    if (part.against) part.changed.insert(std::string(entry.key));
    for (auto& service : services) {
      if (!service->wants(entry.key)) continue;
      const std::lock_guard lock(mutex_);
      service->take(entry.key, entry.value);
    }
  }
  const std::lock_guard lock(mutex_);
  part.holding.entries += entries;
  return write(part, bytes);
}

Result<void> Writer::end(PartitionId partition, Part& part, const End& end) {
  const auto number = static_cast<std::uint32_t>(partition);
  if (end.entries != part.holding.entries || end.kept != part.kept || end.version != part.holding.version)
    return fail(Code::corrupt, "partition ", number, ": ", part.holding.entries, " entries, ", part.kept, " kept and version ",
                part.holding.version, ", but ", end.entries, ", ", end.kept, " and ", end.version, " were announced");
  std::string gone, block;
  if (part.against) {
    TRY_LET(old, before_->load(partition, Chain::What::keys));
    std::unordered_set<std::uint64_t> known;
    std::size_t met = 0;
    for (const auto& [key, entry] : old) {
      const std::uint64_t mark = mark_of(key, entry.version);
      const bool twice = !known.insert(mark).second, kept = part.marks.contains(mark);
      met += kept;
      if (twice) {
        const std::lock_guard lock(mutex_);
        if (!disagreement_) disagreement_ = {number, "two keys look alike"};
      }
      if (kept || part.changed.contains(key)) continue;
      append_key(gone, key);
      part.holding.removed++;
      for (auto& service : services) {
        if (!service->wants(key)) continue;
        const std::lock_guard lock(mutex_);
        service->remove(key);
      }
    }
    if (met != part.marks.size()) {
      const std::lock_guard lock(mutex_);
      if (!disagreement_) disagreement_ = {number, "it has keys that the backup before has otherwise"};
    }
    part.marks = {};
    part.changed = {};
  }
  if (!gone.empty()) append_block(block, BlockKind::removed, partition, gone);
  const std::lock_guard lock(mutex_);
  if (!block.empty()) TRY(write(part, block));
  part.ended = true;
  done_++;
  if (options_.progress) options_.progress(done_, parts_.size(), size_);
  return {};
}

Result<Manifest> Writer::finish(base::WallTime made) {
  Manifest manifest;
  manifest.number = number_;
  manifest.parent = before_ ? before_->manifest().number : 0;
  manifest.cluster = cut_.cluster();
  manifest.cut = cut_.number();
  manifest.made = made;
  manifest.partitions = static_cast<std::uint32_t>(parts_.size());
  manifest.pause_us = cut_.pause_us();
  manifest.data_size = size_;
  std::vector<Holding> holdings;
  for (std::uint32_t p = 0; p < parts_.size(); p++) {
    Part& part = parts_[p];
    if (!part.ended) return fail(Code::corrupt, "nothing was sent of partition ", p);
    manifest.entries += part.holding.entries;
    manifest.removed += part.holding.removed;
    changed_ += part.holding.entries + part.holding.removed > 0;
    holdings.push_back(std::move(part.holding));
  }
  TRY(data_->sync());
  const std::string index = encode_index(holdings);
  manifest.index_size = index.size();
  manifest.index_checksum = base::crc32c(index);
  TRY(support::write_file_atomically(folder_ + "/index", index));
  return manifest;
}

struct RemovedUnlessKept {
  std::string folder;
  ~RemovedUnlessKept() {
    std::error_code ignored;
    if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  }
};

Result<void> read_all(ClusterCut& cut, Writer& writer) {
  std::vector<Result<void>> outcomes(cut.instances().size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < outcomes.size(); i++)
    threads.emplace_back([&, i] {
      const std::uint32_t instance = cut.instances()[i];
      outcomes[i] = cut.read(instance, [&](Bytes bytes) { return writer.take(instance, bytes); });
    });
  for (std::thread& thread : threads) thread.join();
  for (const Result<void>& outcome : outcomes)
    if (!outcome && outcome.code() != Code::unavailable) return outcome;
  for (const Result<void>& outcome : outcomes)
    if (!outcome) return outcome;
  return {};
}

Result<Made> make_once(const MakeOptions& options, Folder& folder, std::uint64_t number, std::set<std::uint32_t>& whole) {
  const base::Time began = base::SystemClock().now();
  std::optional<Chain> before;
  if (options.incremental) {
    TRY_LET(chain, folder.chain_of(folder.newest()));
    before.emplace(std::move(chain));
  }
  const std::string final_place = folder.folder_of(number), place = final_place + ".new";
  RemovedUnlessKept removed{place};
  std::error_code ignored;
  std::filesystem::remove_all(place, ignored);
  TRY(support::make_private_folder(place));

  std::vector<std::unique_ptr<ServiceBackup>> services;
  std::vector<std::string> names;
  for (const BackupService& one : options.services) {
    BackupPlace its = options.place;
    its.folder = place + "/" + one.name;
    if (before) its.before = service_folders(*before, one.name);
    TRY_LET(service, one.make(its));
    if (service == nullptr) continue;
    services.push_back(std::move(service));
    names.push_back(one.name);
  }
  ClusterCut::Wanted wanted;
  wanted.tell = [&](const std::string& why) { options.tell("the cut is tried again: " + why); };
  if (before) {
    wanted.cluster = before->manifest().cluster;
    for (std::uint32_t p = 0; p < before->manifest().partitions; p++)
      if (const Version version = before->version(PartitionId{p}); version != 0 && !whole.contains(p)) wanted.since[p] = version;
  }
  TRY_LET(cut, ClusterCut::make(options.addresses, options.opener, wanted));
  const base::WallTime made = base::SystemClock().wall();
  if (before && before->manifest().partitions != cut.marks().size())
    return fail(Code::conflict, "the cluster has ", cut.marks().size(), " partitions, and the backup before has ", before->manifest().partitions);
  Writer writer(options, cut, before, place, number, whole);
  writer.services = std::move(services);
  TRY(writer.begin());
  TRY(read_all(cut, writer));
  if (writer.disagreement()) {
    whole.insert(writer.disagreement()->partition);
    return fail(Code::unavailable, "partition ", writer.disagreement()->partition, ": ", writer.disagreement()->what, "; it is taken whole");
  }
  TRY_LET(manifest, writer.finish(made));
  for (std::size_t i = 0; i < names.size(); i++) {
    TRY_LET(about, writer.services[i]->finish());
    manifest.parts[names[i]] = about;
  }
  manifest.seconds_ms = static_cast<std::uint64_t>((base::SystemClock().now() - began) / std::chrono::milliseconds(1));
  TRY(support::write_file_atomically(place + "/manifest.json", encode_manifest(manifest)));
  const auto files = base::real_files();
  TRY(files->sync_folder(place));
  TRY(files->rename(place, final_place));
  TRY(files->sync_folder(folder.path()));
  removed.folder.clear();
  return Made{manifest, final_place, writer.changed(), size_of_folder(final_place)};
}

}  // namespace

std::uint64_t size_of_folder(const std::string& folder) {
  std::uint64_t size = 0;
  std::error_code error;
  for (const auto& one : std::filesystem::recursive_directory_iterator(folder, error))
    if (one.is_regular_file(error)) size += one.file_size(error);
  return size;
}

std::vector<std::string> service_folders(const Chain& chain, const std::string& name) {
  std::vector<std::string> folders;
  for (const Chain::Link& link : chain.links()) folders.push_back(link.folder + "/" + name);
  return folders;
}

Result<Made> make(const MakeOptions& options) {
  TRY_LET(folder, Folder::open(options.folder, Folder::Mode::make));
  for (const std::string& name : folder.unfinished()) {
    options.tell(name + " did not come to its end, and is thrown away");
    std::error_code error;
    std::filesystem::remove_all(folder.path() + "/" + name, error);
  }
  if (options.incremental && folder.newest() == 0)
    return fail(Code::not_found, folder.path(), " has no backup to build on; the first one is made without --incremental");
  std::set<std::uint32_t> whole;
  for (int attempt = 1;; attempt++) {
    auto made = make_once(options, folder, folder.newest() + 1, whole);
    if (made || made.code() != Code::unavailable || attempt == 5) return made;
    options.tell("begun again: " + made.error().message);
  }
}

Result<Verified> verify(const std::string& path, std::uint64_t number, const std::vector<BackupService>& services,
                        const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  TRY_LET(folder, Folder::open(path, Folder::Mode::read));
  TRY_LET(chain, folder.chain_of(number == 0 ? folder.newest() : number));
  Verified verified;
  verified.manifest = chain.manifest();
  for (const Chain::Link& link : chain.links()) verified.chain.push_back(link.manifest.number);
  const std::uint32_t partitions = chain.manifest().partitions;
  for (std::uint32_t p = 0; p < partitions; p++) {
    TRY_LET(entries, chain.load(PartitionId{p}));
    for (const auto& [key, entry] : entries) {
      if (partition_of(key, partitions) != PartitionId{p})
        return fail(Code::corrupt, "partition ", p, ": key \"", base::escape(key), "\" does not belong to it");
      if (entry.version > chain.version(PartitionId{p}))
        return fail(Code::corrupt, "partition ", p, ": key \"", base::escape(key), "\" has version ", entry.version, ", the partition has ",
                    chain.version(PartitionId{p}));
      verified.value_bytes += entry.value.size();
    }
    verified.keys += entries.size();
    if (progress) progress(p + 1, partitions);
  }
  for (const auto& [name, about] : chain.manifest().parts) {
    const auto service = std::find_if(services.begin(), services.end(), [&, name = name](const BackupService& one) { return one.name == name; });
    if (service == services.end())
      return fail(Code::unsupported, "the backup has a part of ", name, ", which this program knows nothing of");
    TRY(service->verify(service_folders(chain, name), about));
  }
  return verified;
}

}  // namespace zht::backup

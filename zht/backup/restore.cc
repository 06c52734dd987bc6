#include "zht/backup/restore.h"

#include <algorithm>
#include <filesystem>

#include "novoht/base/clock.h"
#include "novoht/snapshot.h"
#include "zht/backup/backup.h"
#include "zht/backup/late_sync.h"
#include "zht/core/replicated_store.h"
#include "zht/server/identity.h"
#include "zht/support/paths.h"

namespace zht::backup {

using base::fail;

namespace {

class Restore {
 public:
  Restore(const RestoreOptions& options, const Chain& chain, std::string data)
      : options_(options), chain_(chain), data_(std::move(data)), cut_partitions_(chain.manifest().partitions),
        partitions_(options.partitions == 0 ? cut_partitions_ : options.partitions) {}
  Result<RestoredStore> run();

 private:
  Result<void> open_stores();
  Result<void> restore_partition(PartitionId partition);
  Result<const Entries*> source(std::uint32_t partition);
  Result<void> add(novoht::SnapshotWriter& writer, const std::string& key, const OwnedEntry& entry);

  const RestoreOptions& options_;
  const Chain& chain_;
  const std::string data_;
  const std::uint32_t cut_partitions_, partitions_;
  std::unique_ptr<base::FileSystem> system_ = base::real_files();
  LateSync files_{*system_};
  server::Identity identity_;
  std::vector<std::unique_ptr<core::ReplicatedStore>> stores_;  // by instance
  std::vector<std::uint32_t> instance_of_;                      // by partition
  std::vector<std::unique_ptr<ServiceRestore>> services_;
  std::string sessions_;  // what is known of requests: that they are not known
  std::uint32_t loaded_ = ~0u;
  Entries entries_;  // of partition loaded_ of the backup
  RestoredStore done_;
};

Result<void> Restore::open_stores() {
  TRY_LET(identity, server::fresh_identity(options_.instances, partitions_, 1));
  identity_ = identity;
  identity_.founding.copies = options_.copies;
  identity_.founding.sync_copies = options_.sync_copies;
  for (const replication::View& view : server::first_views(identity_.founding))
    instance_of_.push_back(static_cast<std::uint32_t>(view.primary.instance) - server::first_instance(1));
  TRY(support::make_private_folder(data_ + "/store"));
  for (std::uint32_t i = 0; i < identity_.instance_count; i++) {
    core::ReplicatedStore::Options settings;
    settings.store.max_key_size = kMaxKeySize;
    TRY_LET(store, core::ReplicatedStore::open(files_, data_ + "/store/" + std::to_string(i), settings));
    stores_.push_back(std::move(store));
  }
  return {};
}

Result<const Entries*> Restore::source(std::uint32_t partition) {
  if (loaded_ != partition) {
    loaded_ = ~0u;
    TRY_LET(entries, chain_.load(PartitionId{partition}));
    entries_ = std::move(entries);
    loaded_ = partition;
  }
  return &entries_;
}

Result<void> Restore::add(novoht::SnapshotWriter& writer, const std::string& key, const OwnedEntry& entry) {
  novoht::Restored one{.key = key, .present = true, .version = entry.version, .expires = entry.expires, .value = entry.value,
                       .fragment_ends = entry.fragment_ends};
  std::optional<std::string> other;
  for (auto& service : services_) {
    if (!service->wants(key)) continue;
    TRY_LET(value, service->restored(key, entry.value));
    if (!value) return {};
    if (*value == entry.value) continue;
    other = std::move(value);
    one.value = *other;
    one.fragment_ends = {};
  }
  writer.add(one);
  done_.keys++;
  done_.value_bytes += one.value.size();
  return {};
}

// A partition of the restored store has the keys of a stretch of the ring, which in the backup may lie in one partition, in several,
// or in a part of one.
Result<void> Restore::restore_partition(PartitionId partition) {
  const std::uint64_t number = static_cast<std::uint32_t>(partition);
  const auto first = static_cast<std::uint32_t>(number * cut_partitions_ / partitions_);
  const auto last = static_cast<std::uint32_t>(((number + 1) * cut_partitions_ + partitions_ - 1) / partitions_ - 1);
  Version version = 0;
  for (std::uint32_t from = first; from <= last; from++) version = std::max(version, chain_.version(PartitionId{from}));
  if (version == 0) return {};
  novoht::Store& tables = stores_[instance_of_[number]]->tables();
  const novoht::TableId table = core::ReplicatedStore::table_of(partition);
  novoht::SnapshotWriter writer(table, version + kVersionStep, 1, sessions_);
  TRY_LET(import, tables.begin_import(table));
  for (std::uint32_t from = first; from <= last; from++) {
    TRY_LET(entries, source(from));
    for (const auto& [key, entry] : *entries) {
      if (partition_of(key, cut_partitions_) != PartitionId{from})
        return fail(Code::corrupt, "the backup's partition ", from, ": key \"", base::escape(key), "\" does not belong to it");
      if (partition_of(key, partitions_) != partition) continue;
      TRY(add(writer, key, entry));
      if (writer.waiting() >= (std::size_t{4} << 20)) TRY(import->write(writer.take()));
    }
  }
  writer.end();
  TRY(import->write(writer.take()));
  return import->finish();
}

Result<RestoredStore> Restore::run() {
  const base::SystemClock clock;
  sessions_ = core::ResultTable::forgotten_before(base::to_millis(clock.wall()));
  for (const auto& [name, about] : chain_.manifest().parts) {
    const auto service = std::find_if(options_.services.begin(), options_.services.end(),
                                      [&, name = name](const BackupService& one) { return one.name == name; });
    if (service == options_.services.end())
      return fail(Code::unsupported, "the backup has a part of ", name, ", which this program knows nothing of");
    TRY_LET(restores, service->restore({data_, service_folders(chain_, name), about, options_.tell}));
    services_.push_back(std::move(restores));
    done_.parts.emplace_back(name, "");
  }
  TRY(open_stores());
  for (std::uint32_t p = 0; p < partitions_; p++) {
    TRY(restore_partition(PartitionId{p}));
    if (options_.progress) options_.progress(p + 1, partitions_);
  }
  for (std::size_t i = 0; i < services_.size(); i++) {
    TRY_LET(about, services_[i]->finish());
    done_.parts[i].second = about;
  }
  for (auto& store : stores_) TRY(store->close());
  stores_.clear();
  TRY(server::save_identity(data_, identity_));
  done_.manifest = chain_.manifest();
  done_.partitions = partitions_;
  return std::move(done_);
}

}  // namespace

Result<RestoredStore> restore(const RestoreOptions& options) {
  TRY_LET(data, support::absolute_path(options.data));
  TRY_LET(folder, Folder::open(options.folder, Folder::Mode::read));
  TRY_LET(chain, folder.chain_of(options.number == 0 ? folder.newest() : options.number));
  std::error_code error;
  if (std::filesystem::exists(data, error)) {
    if (!std::filesystem::is_directory(data, error)) return fail(Code::conflict, data, " is not a folder");
    if (!std::filesystem::is_empty(data, error) || error)
      return fail(Code::conflict, data, " is not empty: a backup is restored into a new folder, for a cluster of its own");
  }
  const std::string place = data + ".restoring";
  if (std::filesystem::exists(place, error)) {
    options.tell(place + " is of a restore that did not come to its end, and is thrown away");
    std::filesystem::remove_all(place, error);
  }
  TRY(support::make_private_folder(place));
  auto done = Restore(options, chain, place).run();
  if (!done) {
    std::filesystem::remove_all(place, error);
    return done;
  }
  TRY(LateSync::sync_all(place));
  const auto files = base::real_files();
  std::filesystem::remove(data, error);  // an empty one
  TRY(files->rename(place, data));
  TRY(files->sync_folder(std::filesystem::path(data).parent_path()));
  return done;
}

}  // namespace zht::backup

#include "fusionfs/backup/service.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "fusionfs/backup/index.h"
#include "fusionfs/data/chunk_store.h"
#include "fusionfs/data/stores.h"
#include "novoht/base/file.h"
#include "zht/support/paths.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr char kIndexName[] = "/index", kPackName[] = "/pack";

// The inode that this is the key of.
std::optional<InodeId> inode_of(Bytes key) {
  if (!key.starts_with("{d:")) return {};
  const std::size_t end = key.find('}');
  if (end == Bytes::npos || key.substr(end + 1, 2) != "i/") return {};
  std::uint64_t home = 0, counter = 0;
  if (!parse_hex(key.substr(3, end - 3), home) || !parse_hex(key.substr(end + 3), counter) || home > kMaxHome || counter > kMaxCounter) return {};
  return make_inode(HomeId{home}, static_cast<std::uint32_t>(counter));
}

bool has_content(const Inode& inode) { return is_regular(inode.mode) && !inode.has(Inode::kInline) && !inode.stores().empty(); }

// The packs of a backup and those below it.
class Packs {
 public:
  explicit Packs(std::vector<std::string> folders) : folders_(std::move(folders)), files_(folders_.size()) {}
  Result<void> read(const Piece& piece, std::string& bytes) {
    if (piece.below >= folders_.size()) return fail(Code::corrupt, "a piece of a backup that is not there, ", piece.below, " below");
    const std::string path = folders_[piece.below] + kPackName;
    if (files_[piece.below] == nullptr) {
      TRY_LET(file, system_->open(path, base::OpenMode::read));
      files_[piece.below] = std::move(file);
    }
    bytes.resize(piece.size);
    TRY_LET(got, files_[piece.below]->read_at(piece.place, bytes.data(), bytes.size()));
    if (got != bytes.size()) return fail(Code::corrupt, path, ": it ends at ", piece.place + got, ", in the middle");
    if (base::crc32c(bytes) != piece.sum) return fail(Code::corrupt, path, " offset ", piece.place, ": the checksum is wrong");
    return {};
  }

 private:
  const std::vector<std::string> folders_;
  std::unique_ptr<base::FileSystem> system_ = base::real_files();
  std::vector<std::unique_ptr<base::File>> files_;
};

Result<SavedFiles> read_index(const std::string& folder) {
  TRY_LET(bytes, support::read_file(folder + kIndexName, std::size_t{16} << 30));
  auto files = parse_saved(bytes);
  if (!files) return base::add_context(folder + kIndexName, files.error());
  return files;
}

// --- making ---

class Saver final : public zht::ServiceBackup {
 public:
  explicit Saver(const zht::BackupPlace& place) : place_(place), old_packs_(place.before) {}
  Result<void> begin();
  bool wants(Bytes key) const override { return inode_of(key).has_value(); }
  void take(Bytes key, Bytes value) override;
  void remove(Bytes key) override;
  Result<std::string> finish() override;

 private:
  Result<void> copy_before();
  Result<void> copy_those(const std::vector<std::string>& keys);
  // Nothing: it cannot be read (any more).
  Result<SavedFile> copy(const Inode& inode);
  Result<Piece> save(const SavedFile* before, std::uint64_t offset, const std::string& bytes);
  Result<void> settle(const Inode& inode);
  bool is_as_before(const Inode& inode) const {
    const auto known = before_.find(inode.id);
    return known != before_.end() && known->second.revision == inode.revision && known->second.flags == 0;
  }

  const zht::BackupPlace place_;
  std::unique_ptr<ChunkStore> chunks_;
  std::unique_ptr<Stores> stores_;
  Packs old_packs_;
  SavedFiles before_, saved_;         // of the backup before; this one's
  std::map<InodeId, Inode> changed_;  // as the cut has them, where they are not as in the backup before
  std::set<InodeId> gone_;
  std::unique_ptr<base::FileSystem> system_ = base::real_files();
  std::unique_ptr<base::File> pack_;
  std::uint64_t pack_size_ = 0, read_ = 0, early_ = 0, late_ = 0;
};

Result<void> Saver::begin() {
  TRY(support::make_private_folder(place_.folder));
  TRY(support::make_private_folder(place_.data));
  TRY_LET(chunks, ChunkStore::open(place_.data + "/chunks"));
  chunks_ = std::move(chunks);
  stores_ = std::make_unique<Stores>(*place_.client, *chunks_);
  TRY(stores_->refresh());
  if (!place_.before.empty()) {
    auto before = read_index(place_.before.front());
    if (before) before_ = std::move(*before);
    else if (before.code() != Code::not_found) return before.error();  // there was no file system then
  }
  for (auto& [inode, file] : before_)
    for (Piece& piece : file.pieces) piece.below++;
  TRY_LET(pack, system_->open(place_.folder + kPackName, base::OpenMode::create_new));
  pack_ = std::move(pack);
  return copy_before();
}

// What did not change since it was copied need not be copied after the cut: all but what changes right now.
Result<void> Saver::copy_before() {
  for (std::uint32_t p = 0; p < place_.client->partition_count(); p++) {
    std::uint64_t cursor = 0;
    do {
      const zht::Outcome page = place_.client->call(zht::Operation::scan(zht::PartitionId{p}, cursor, "{d:"));
      if (!page.ok()) return page.error();
      std::vector<std::string> keys;
      for (const zht::ScanEntry& entry : page.entries)
        if (inode_of(entry.key)) keys.push_back(entry.key);
      TRY(copy_those(keys));
      cursor = page.cursor;
    } while (cursor != 0);
  }
  return {};
}

Result<void> Saver::copy_those(const std::vector<std::string>& keys) {
  if (keys.empty()) return {};
  const auto values = place_.client->lookup_many(keys);
  for (std::size_t i = 0; i < keys.size(); i++) {
    if (!values[i]) {
      if (values[i].code() == Code::not_found) continue;
      return values[i].error();
    }
    const InodeId id = *inode_of(keys[i]);
    const auto inode = decode_inode(id, values[i]->value);
    if (!inode || !has_content(*inode)) continue;
    if (is_as_before(*inode)) continue;
    auto copied = copy(*inode);
    if (!copied && copied.code() == Code::no_space) return copied.error();
    if (!copied) continue;  // after the cut it is tried again, and then it matters
    saved_[id] = std::move(*copied);
    early_++;
  }
  return {};
}

Result<Piece> Saver::save(const SavedFile* before, std::uint64_t offset, const std::string& bytes) {
  Piece piece{offset, static_cast<std::uint32_t>(bytes.size()), 0, pack_size_, base::crc32c(bytes)};
  if (before != nullptr) {
    const auto old = std::find_if(before->pieces.begin(), before->pieces.end(), [&](const Piece& one) {
      return one.offset == offset && one.size == bytes.size() && one.sum == piece.sum;
    });
    std::string were;
    if (old != before->pieces.end()) {
      Piece there = *old;
      there.below--;  // as the folders below count
      if (old_packs_.read(there, were) && were == bytes) return *old;
    }
  }
  TRY(pack_->write_at(pack_size_, bytes));
  pack_size_ += bytes.size();
  return piece;
}

Result<SavedFile> Saver::copy(const Inode& inode) {
  const auto content = stores_->open(inode.id, inode.stores());
  const auto known = before_.find(inode.id);
  SavedFile file{.revision = inode.revision, .size = inode.size};
  std::string bytes;
  for (std::uint64_t at = 0; at < inode.size;) {
    TRY_LET(data, content->seek(at, inode.size, true));
    if (data >= inode.size) break;
    TRY_LET(hole, content->seek(data, inode.size, false));
    for (at = data; at < hole; at += bytes.size()) {
      bytes.resize(std::min(hole, (at / kBackupPiece + 1) * kBackupPiece) - at);
      TRY(content->read(at, bytes.data(), bytes.size()));
      read_ += bytes.size();
      TRY_LET(piece, save(known == before_.end() ? nullptr : &known->second, at, bytes));
      file.pieces.push_back(piece);
    }
  }
  return file;
}

void Saver::take(Bytes key, Bytes value) {
  const InodeId id = *inode_of(key);
  const auto inode = decode_inode(id, value);
  if (inode && has_content(*inode)) changed_[id] = *inode;
  else gone_.insert(id);
}

void Saver::remove(Bytes key) { gone_.insert(*inode_of(key)); }

// A file that the cut has otherwise than it was copied, or that was not copied.
Result<void> Saver::settle(const Inode& inode) {
  const auto had = saved_.find(inode.id);
  if (had != saved_.end() && had->second.revision == inode.revision) return {};
  if (had == saved_.end() && is_as_before(inode)) return {};
  late_++;
  auto copied = copy(inode);
  const zht::Outcome now = place_.client->call(zht::Operation::lookup(inode_key(inode.id)));
  if (!now.ok() && now.code != Code::not_found) return now.error();
  const auto live = now.ok() ? decode_inode(inode.id, now.value) : std::optional<Inode>();
  const bool same = live && live->revision == inode.revision;
  if (!copied && (same || copied.code() == Code::no_space))
    return base::add_context("content of inode " + std::to_string(raw(inode.id)), copied.error());
  SavedFile file = copied ? std::move(*copied) : SavedFile{.revision = inode.revision, .size = inode.size};
  if (!same) file.flags = copied && live ? SavedFile::kMoved : SavedFile::kLost;
  saved_[inode.id] = std::move(file);
  return {};
}

Result<std::string> Saver::finish() {
  for (const auto& [id, inode] : changed_) TRY(settle(inode));
  SavedFiles all;
  for (auto& [id, file] : before_)
    if (!gone_.contains(id) && !changed_.contains(id)) all[id] = std::move(file);
  std::uint64_t bytes = 0, moved = 0, lost = 0;
  for (const auto& [id, inode] : changed_) {
    if (const auto known = before_.find(id); !saved_.contains(id) && known != before_.end()) all[id] = std::move(known->second);
    else all[id] = std::move(saved_[id]);
  }
  for (const auto& [id, file] : all) {
    bytes += file.size;
    moved += (file.flags & SavedFile::kMoved) != 0;
    lost += (file.flags & SavedFile::kLost) != 0;
  }
  TRY(pack_->sync());
  TRY(support::write_file_atomically(place_.folder + kIndexName, encode_saved(all)));
  TRY(system_->sync_folder(place_.folder));
  if (moved + lost > 0)
    place_.tell(std::to_string(moved + lost) + " files were written or removed right after the cut and before they were read: " +
                std::to_string(moved) + " have later bytes, " + std::to_string(lost) + " none");
  return nlohmann::json({{"files", all.size()},
                         {"file_bytes", bytes},
                         {"read_bytes", read_},
                         {"pack_bytes", pack_size_},
                         {"copied_before_the_cut", early_},
                         {"copied_after_the_cut", late_},
                         {"moved_on", moved},
                         {"lost", lost}})
      .dump();
}

// --- restoring ---

class Restorer final : public zht::ServiceRestore {
 public:
  explicit Restorer(const zht::RestorePlace& place) : place_(place), packs_(place.folders) {}
  Result<void> begin() {
    TRY_LET(files, read_index(place_.folders.front()));
    files_ = std::move(files);
    TRY_LET(chunks, ChunkStore::open(place_.data + "/chunks"));
    chunks_ = std::move(chunks);
    return chunks_->begin_writing();
  }
  bool wants(Bytes key) const override { return inode_of(key) || key == kStoresKey || key.starts_with("{fusionfs}store/"); }
  Result<std::optional<std::string>> restored(Bytes key, Bytes value) override;
  Result<std::string> finish() override;

 private:
  const zht::RestorePlace place_;
  Packs packs_;
  SavedFiles files_;
  std::unique_ptr<ChunkStore> chunks_;
  std::uint64_t restored_ = 0, bytes_ = 0, moved_ = 0, lost_ = 0;
};

// All contents lie in one chunk store now: the new node's.
Result<std::optional<std::string>> Restorer::restored(Bytes key, Bytes value) {
  const auto id = inode_of(key);
  if (!id) {
    if (key != kStoresKey) return std::optional<std::string>();  // where one was served
    std::string mine;
    base::Writer(mine).u64(chunks_->identity());
    return std::optional(mine);
  }
  auto inode = decode_inode(*id, value);
  if (!inode || !has_content(*inode)) return std::optional(std::string(value));
  const auto file = files_.find(*id);
  if (file == files_.end()) return fail(Code::corrupt, "the backup has inode ", raw(*id), " and not its content");
  LocalContent content(*chunks_, *id);
  TRY(content.begin_writing(0));
  std::string bytes;
  for (const Piece& piece : file->second.pieces) {
    TRY(packs_.read(piece, bytes));
    TRY(content.write(piece.offset, bytes));
    bytes_ += bytes.size();
  }
  restored_++;
  moved_ += (file->second.flags & SavedFile::kMoved) != 0;
  lost_ += (file->second.flags & SavedFile::kLost) != 0;
  inode->store = chunks_->identity();
  inode->copies.clear();
  return std::optional(encode(*inode));
}

Result<std::string> Restorer::finish() {
  const int folder = ::open(chunks_->folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return base::fail_errno(errno, chunks_->folder());
  const int synced = ::syncfs(folder);
  const int error = errno;
  ::close(folder);
  if (synced != 0) return base::fail_errno(error, chunks_->folder());
  chunks_->end_writing();
  if (moved_ + lost_ > 0)
    place_.tell(std::to_string(moved_) + " files have bytes of after the cut, " + std::to_string(lost_) +
                " have none (they were written or removed right after it)");
  return nlohmann::json({{"files", restored_}, {"bytes", bytes_}, {"moved_on", moved_}, {"lost", lost_}}).dump();
}

Result<void> verify(const std::vector<std::string>& folders) {
  TRY_LET(files, read_index(folders.front()));
  Packs packs(folders);
  std::string bytes;
  for (const auto& [id, file] : files)
    for (const Piece& piece : file.pieces) TRY(packs.read(piece, bytes));
  return {};
}

}  // namespace

zht::BackupService backup_service() {
  zht::BackupService service;
  service.name = "fusionfs";
  service.make = [](const zht::BackupPlace& place) -> Result<std::unique_ptr<zht::ServiceBackup>> {
    const zht::Outcome root = place.client->call(zht::Operation::lookup(inode_key(kRootInode), zht::Range::nothing()));
    if (root.code == Code::not_found) return std::unique_ptr<zht::ServiceBackup>();
    if (!root.ok()) return root.error();
    auto saver = std::make_unique<Saver>(place);
    TRY(saver->begin());
    return std::unique_ptr<zht::ServiceBackup>(std::move(saver));
  };
  service.restore = [](const zht::RestorePlace& place) -> Result<std::unique_ptr<zht::ServiceRestore>> {
    auto restorer = std::make_unique<Restorer>(place);
    TRY(restorer->begin());
    return std::unique_ptr<zht::ServiceRestore>(std::move(restorer));
  };
  service.verify = [](const std::vector<std::string>& folders, const std::string&) { return verify(folders); };
  return service;
}

}  // namespace fusionfs

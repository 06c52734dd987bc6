#include "zht/backup/image.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"

namespace zht::backup {

using base::fail;
using nlohmann::json;

namespace {

constexpr char kIndexMagic[] = "ZHTBKidx", kDataMagic[] = "ZHTBKdat";
constexpr std::size_t kDigits = 6;

std::string digits(std::uint64_t number) {
  std::string text = std::to_string(number);
  return std::string(kDigits - std::min(kDigits, text.size()), '0') + text;
}

Error newer(std::string_view what, std::uint64_t format) {
  return fail(Code::unsupported, what, " of format ", format, "; this build reads up to ", kFormat, ": use the newer zht that wrote it");
}

std::string checksum_of(const json& object) { return std::to_string(base::crc32c(object.dump())); }

}  // namespace

// --- bytes ---

std::string encode_index(const std::vector<Holding>& holdings) {
  std::string out(kIndexMagic, 8);
  base::Writer writer(out);
  writer.u32(kFormat);
  writer.u32(static_cast<std::uint32_t>(holdings.size()));
  for (const Holding& one : holdings) {
    writer.u8(static_cast<std::uint8_t>(one.state));
    writer.u64(one.version);
    writer.u64(one.entries);
    writer.u64(one.removed);
    writer.u32(static_cast<std::uint32_t>(one.extents.size()));
    for (const Holding::Extent& extent : one.extents) {
      writer.u64(extent.offset);
      writer.u64(extent.size);
    }
  }
  writer.u32(base::crc32c(out));
  return out;
}

Result<std::vector<Holding>> parse_index(Bytes bytes) {
  const auto damaged = [](std::string_view what) { return fail(Code::corrupt, "a backup's index: ", what); };
  if (bytes.size() < 20 || bytes.substr(0, 8) != Bytes(kIndexMagic, 8)) return damaged("it is none");
  if (const auto format = base::load<std::uint32_t>(bytes.data() + 8); format > kFormat) return newer("a backup's index", format);
  if (base::load<std::uint32_t>(bytes.data() + bytes.size() - 4) != base::crc32c(bytes.substr(0, bytes.size() - 4)))
    return damaged("its checksum is wrong");
  base::Reader in(bytes.substr(12, bytes.size() - 16));
  std::vector<Holding> holdings;
  for (std::uint32_t left = in.u32(); left > 0 && in.ok(); left--) {
    Holding& one = holdings.emplace_back();
    const std::uint8_t state = in.u8();
    one.state = static_cast<Holding::State>(state);
    one.version = in.u64();
    one.entries = in.u64();
    one.removed = in.u64();
    const std::uint32_t extents = in.u32();
    if (state < 1 || state > 3 || extents > in.left() / 16) return damaged("a partition that cannot be");
    for (std::uint32_t i = 0; i < extents; i++) {
      const std::uint64_t offset = in.u64(), size = in.u64();
      if (size == 0 || size > kMaxBlockSize || offset > kMaxBlockSize) return damaged("an extent that cannot be");
      one.extents.push_back({offset, size});
    }
  }
  if (!in.done()) return damaged("it does not end where it should");
  return holdings;
}

std::string data_magic(std::uint64_t number) {
  std::string out(kDataMagic, 8);
  base::Writer writer(out);
  writer.u32(kFormat);
  writer.u64(number);
  writer.u32(base::crc32c(out));
  return out;
}

std::string encode_manifest(const Manifest& manifest) {
  json parts = json::object();
  for (const auto& [name, about] : manifest.parts) parts[name] = json::parse(about, nullptr, false);
  json object = {{"format", kFormat},
                 {"number", manifest.number},
                 {"parent", manifest.parent},
                 {"cluster", manifest.cluster},
                 {"cut", manifest.cut},
                 {"made", support::iso_time(manifest.made)},
                 {"made_ms", base::to_millis(manifest.made)},
                 {"partitions", manifest.partitions},
                 {"entries", manifest.entries},
                 {"removed", manifest.removed},
                 {"data_size_bytes", manifest.data_size},
                 {"index_size_bytes", manifest.index_size},
                 {"index_checksum", manifest.index_checksum},
                 {"pause_us", manifest.pause_us},
                 {"duration_ms", manifest.seconds_ms},
                 {"parts", parts}};
  object["checksum"] = checksum_of(object);
  return object.dump(2) + "\n";
}

Result<Manifest> parse_manifest(Bytes text) {
  json object = json::parse(text, nullptr, false);
  if (!object.is_object() || !object.contains("format") || !object["format"].is_number_unsigned())
    return fail(Code::corrupt, "it is not a backup's manifest");
  if (const auto format = object["format"].get<std::uint64_t>(); format > kFormat) return newer("a backup", format);
  const std::string checksum = object.value("checksum", json()).is_string() ? object["checksum"].get<std::string>() : std::string();
  object.erase("checksum");
  if (checksum != checksum_of(object)) return fail(Code::corrupt, "a backup's manifest: its checksum is wrong");
  Manifest manifest;
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto at = object.find(name);
    return at != object.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
  };
  manifest.number = number("number");
  manifest.parent = number("parent");
  if (const auto at = object.find("cluster"); at != object.end() && at->is_string()) manifest.cluster = at->get<std::string>();
  manifest.cut = number("cut");
  manifest.made = base::from_millis(number("made_ms"));
  manifest.partitions = static_cast<std::uint32_t>(number("partitions"));
  manifest.entries = number("entries");
  manifest.removed = number("removed");
  manifest.data_size = number("data_size_bytes");
  manifest.index_size = number("index_size_bytes");
  manifest.index_checksum = static_cast<std::uint32_t>(number("index_checksum"));
  manifest.pause_us = number("pause_us");
  manifest.seconds_ms = number("duration_ms");
  if (const auto at = object.find("parts"); at != object.end() && at->is_object())
    for (const auto& [name, about] : at->items()) manifest.parts[name] = about.dump();
  if (manifest.number == 0 || manifest.parent >= manifest.number || manifest.partitions == 0 || manifest.partitions > (1u << 20))
    return fail(Code::corrupt, "a backup's manifest: numbers that cannot be");
  return manifest;
}

// --- reading ---

Version Chain::version(PartitionId partition) const { return links_.front().holdings[static_cast<std::uint32_t>(partition)].version; }

Result<void> Chain::read(const Link& link, PartitionId partition, What what, Entries& entries) const {
  const std::string path = link.folder + "/data";
  const Holding& holding = link.holdings[static_cast<std::uint32_t>(partition)];
  std::uint64_t seen = 0;
  // Of a key that was removed and is there again both are in the file: what was removed goes first.
  std::string bytes;
  std::vector<std::string> stretches;
  for (const Holding::Extent& extent : holding.extents) {
    if (extent.offset + extent.size > link.manifest.data_size)
      return fail(Code::corrupt, path, ": an extent at ", extent.offset, " of a file of ", link.manifest.data_size, " bytes");
    bytes.resize(extent.size);
    TRY_LET(got, link.data->read_at(extent.offset, bytes.data(), bytes.size()));
    if (got != bytes.size()) return fail(Code::corrupt, path, ": it ends at ", extent.offset + got, ", in the middle");
    stretches.push_back(std::move(bytes));
    bytes = {};
  }
  for (const bool removals : {true, false})
    for (std::size_t i = 0; i < stretches.size(); i++) {
      Bytes rest = stretches[i];
      while (!rest.empty()) {
        const auto at = [&] { return path + " offset " + std::to_string(holding.extents[i].offset + stretches[i].size() - rest.size()); };
        const auto next = next_block(rest);
        if (!next) return base::add_context(at(), next.error());
        if (!*next) return fail(Code::corrupt, at(), ": a block that is cut off");
        const Block& block = **next;
        if (block.partition != partition) return fail(Code::corrupt, at(), ": a block of another partition");
        if (block.kind == BlockKind::removed && removals) {
          const auto keys = parse_removed(block.payload);
          if (!keys) return base::add_context(at(), keys.error());
          for (const Bytes key : *keys) entries.erase(std::string(key));
        }
        if (block.kind == BlockKind::entries && !removals) {
          for (EntryReader in(block.payload); in.more();) {
            auto entry = in.next();
            if (!entry) return base::add_context(at(), entry.error());
            seen++;
            OwnedEntry& own = entries[std::string(entry->key)];
            own.version = entry->version;
            if (what == What::keys) continue;
            own.expires = entry->expires;
            own.value = entry->value;
            own.fragment_ends = std::move(entry->fragment_ends);
          }
        }
        if (block.kind != BlockKind::removed && block.kind != BlockKind::entries)
          return fail(Code::corrupt, at(), ": a block that does not belong here");
        rest.remove_prefix(block.size);
      }
    }
  if (seen != holding.entries)
    return fail(Code::corrupt, path, ": ", seen, " entries of partition ", static_cast<std::uint32_t>(partition), ", expected ", holding.entries);
  return {};
}

Result<Entries> Chain::load(PartitionId partition, What what) const {
  std::vector<const Link*> needed;
  for (const Link& link : links_) {
    needed.push_back(&link);
    if (link.holdings[static_cast<std::uint32_t>(partition)].state == Holding::State::whole) break;
  }
  Entries entries;
  for (auto link = needed.rbegin(); link != needed.rend(); ++link) TRY(read(**link, partition, what, entries));
  return entries;
}

// --- the folder ---

struct Folder::Lock {
  support::LockFile file;
};

Folder::Folder(std::string path) : path_(std::move(path)) {}
Folder::Folder(Folder&&) noexcept = default;
Folder::~Folder() = default;

Result<Folder> Folder::open(std::string path, Mode mode) {
  TRY_LET(whole, support::absolute_path(path));
  Folder folder(whole);
  std::error_code error;
  const bool there = std::filesystem::is_directory(whole, error);
  if (!there && mode == Mode::read) return fail(Code::not_found, whole, ": there is no such folder");
  if (mode == Mode::make) {
    TRY(support::make_private_folder(whole));
    auto lock = support::LockFile::acquire(whole + "/LOCK");
    if (!lock) return base::add_context("another backup is being made", lock.error());
    folder.lock_ = std::make_unique<Lock>(Lock{*std::move(lock)});
  }
  for (const auto& one : std::filesystem::directory_iterator(whole, error)) {
    const std::string name = one.path().filename();
    const bool numbered = name.size() >= kDigits && std::all_of(name.begin(), name.begin() + kDigits, [](char c) { return c >= '0' && c <= '9'; });
    if (!numbered) continue;
    const std::size_t end = name.find_first_not_of("0123456789");
    if (end == std::string::npos) folder.numbers_.push_back(std::stoull(name));
    else if (name.substr(end) == ".new") folder.unfinished_.push_back(name);
  }
  if (error) return fail(Code::io, whole, ": ", error.message());
  std::sort(folder.numbers_.begin(), folder.numbers_.end());
  return folder;
}

std::string Folder::folder_of(std::uint64_t number) const { return path_ + "/" + digits(number); }

Result<Manifest> Folder::manifest(std::uint64_t number) const {
  const std::string path = folder_of(number) + "/manifest.json";
  const auto text = support::read_file(path);
  if (!text) return base::add_context("backup " + std::to_string(number), text.error());
  auto manifest = parse_manifest(*text);
  if (!manifest) return base::add_context(path, manifest.error());
  if (manifest->number != number) return fail(Code::corrupt, path, ": it is that of backup ", manifest->number);
  return manifest;
}

Result<Chain> Folder::chain_of(std::uint64_t number) const {
  if (number == 0 || std::find(numbers_.begin(), numbers_.end(), number) == numbers_.end())
    return number == 0 ? fail(Code::not_found, path_, ": there is no backup") : fail(Code::not_found, path_, ": there is no backup ", number);
  std::vector<Chain::Link> links;
  for (std::uint64_t at = number; at != 0;) {
    if (std::find(numbers_.begin(), numbers_.end(), at) == numbers_.end())
      return fail(Code::not_found, path_, ": backup ", links.back().manifest.number, " builds on backup ", at, ", which is not there");
    Chain::Link link;
    link.folder = folder_of(at);
    TRY_LET(about, manifest(at));
    link.manifest = std::move(about);
    TRY_LET(index, support::read_file(link.folder + "/index", std::size_t{4} << 30));
    if (index.size() != link.manifest.index_size || base::crc32c(index) != link.manifest.index_checksum)
      return fail(Code::corrupt, link.folder, "/index: it is not the one that the manifest tells of");
    auto holdings = parse_index(index);
    if (!holdings) return base::add_context(link.folder + "/index", holdings.error());
    link.holdings = std::move(*holdings);
    if (link.holdings.size() != link.manifest.partitions)
      return fail(Code::corrupt, link.folder, "/index: ", link.holdings.size(), " partitions, expected ", link.manifest.partitions);
    if (!links.empty() && (link.manifest.cluster != links.front().manifest.cluster || link.manifest.partitions != links.front().manifest.partitions))
      return fail(Code::corrupt, link.folder, ": it is of another cluster than the backup that builds on it");
    const std::string path = link.folder + "/data";
    TRY_LET(data, base::real_files()->open(path, base::OpenMode::read));
    std::string found(kDataMagicSize, '\0');
    TRY_LET(got, data->read_at(0, found.data(), found.size()));
    if (got != found.size() || found != data_magic(at)) return fail(Code::corrupt, path, ": it is not the data of this backup");
    TRY_LET(size, data->size());
    if (size != link.manifest.data_size)
      return fail(Code::corrupt, path, ": ", size, " bytes, the manifest tells of ", link.manifest.data_size);
    link.data = std::move(data);
    links.push_back(std::move(link));
    at = links.back().manifest.parent;
    if (at == 0)
      for (const Holding& one : links.back().holdings)
        if (one.state != Holding::State::whole)
          return fail(Code::corrupt, folder_of(number), ": it builds on a backup that is not whole");
  }
  return Chain(std::move(links));
}

}  // namespace zht::backup

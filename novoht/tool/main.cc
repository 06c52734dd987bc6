// The `novoht` program: reads, changes, checks and mends a store that no other process has open.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "novoht/core/checkpoint.h"
#include "novoht/core/recovery.h"
#include "novoht/snapshot.h"
#include "novoht/store.h"
#include "novoht/tool/bench.h"
#include "novoht/tool/progress.h"

namespace novoht {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLastMillis = 9'000'000'000'000;  // the year 2255

struct Arguments {
  std::string folder, key, value, file, prefix, expected, desired;
  std::uint32_t table = 0;
  std::uint64_t ttl_ms = 0, limit = 0, version = 0;
  bool json = false, quiet = false, fragments = false, values = false, all = false, absent = false, remove = false, records = false;
  bool hex = false, snapshot = false;
  tool::BenchPlan bench;
  std::string durability = "none";

  bool progress() const { return !json && !quiet; }
};

// --- text and bytes ---

bool is_text(Bytes bytes) {
  // UTF-8, as JSON wants it: well formed, and no control character that a terminal would act on.
  for (std::size_t i = 0; i < bytes.size();) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    const std::size_t more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : 9;
    if (more == 9 || i + more >= bytes.size()) return false;
    if (c < 0x20 && c != '\t' && c != '\n' && c != '\r') return false;
    for (std::size_t k = 1; k <= more; k++)
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xc0) != 0x80) return false;
    if ((c == 0xe0 && static_cast<unsigned char>(bytes[i + 1]) < 0xa0) || (c == 0xed && static_cast<unsigned char>(bytes[i + 1]) > 0x9f) ||
        (c == 0xf0 && static_cast<unsigned char>(bytes[i + 1]) < 0x90) || (c == 0xf4 && static_cast<unsigned char>(bytes[i + 1]) > 0x8f))
      return false;
    i += more + 1;
  }
  return true;
}

// Bytes in JSON: a string where they are text, else {"hex": "..."}.
Json to_json(Bytes bytes) {
  if (is_text(bytes)) return std::string(bytes);
  return Json{{"hex", base::to_hex(bytes)}};
}

Result<std::string> from_hex(Bytes hex) {
  std::string bytes;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  bool good = hex.size() % 2 == 0;
  for (std::size_t i = 0; good && i < hex.size(); i += 2) {
    good = digit(hex[i]) >= 0 && digit(hex[i + 1]) >= 0;
    if (good) bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  }
  if (!good) return base::fail(Code::invalid, "\"", base::escape(hex), "\" is not hexadecimal: two digits for each byte");
  return bytes;
}

Result<std::string> from_json(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.size() == 1 && json.contains("hex") && json["hex"].is_string()) return from_hex(json["hex"].get<std::string>());
  return base::fail(Code::invalid, "neither a string nor {\"hex\": \"...\"}: ", json.dump());
}

Result<std::string> read_stream(const std::string& name) {
  std::string bytes;
  std::FILE* const in = name == "-" ? stdin : std::fopen(name.c_str(), "rb");
  if (in == nullptr) return base::fail_errno(errno, "open " + name);
  std::array<char, 65'536> piece;
  for (std::size_t got; (got = std::fread(piece.data(), 1, piece.size(), in)) > 0;) bytes.append(piece.data(), got);
  const bool failed = std::ferror(in) != 0;
  if (in != stdin) std::fclose(in);
  if (failed) return base::fail(Code::io, "read ", name, ": failed");
  return bytes;
}

// A folder can be opened to be read, and then has nothing to say.
Result<void> not_a_folder(const std::string& name) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(name, ignored)) return {};
  return base::fail(Code::invalid, name, ": a folder; it is a file that is read");
}

void print(Bytes bytes) { std::fwrite(bytes.data(), 1, bytes.size(), stdout); }
void print_line(Bytes bytes) {
  print(bytes);
  print("\n");
}

// Names and values, aligned.
void print_table(const Json& object) {
  std::size_t widest = 0;
  for (const auto& [name, value] : object.items()) widest = std::max(widest, name.size());
  for (const auto& [name, value] : object.items())
    print_line(name + std::string(widest - name.size() + 2, ' ') + (value.is_string() ? value.get<std::string>() : value.dump()));
}
void show(const Arguments& arguments, const Json& value) {
  if (arguments.json) print_line(value.dump());
  else print_table(value);
}

// --- stores ---

struct Opened {
  std::unique_ptr<base::FileSystem> files = base::real_files();
  std::unique_ptr<base::FileLock> lock;  // of a store that is only read
  std::unique_ptr<Store> store;
};

enum class Access { read, change, make };

Result<Opened> open(const Arguments& arguments, Access access) {
  Opened opened;
  Options options;
  options.create = access == Access::make;
  options.read_only = access == Access::read;
  if (access == Access::read) {
    // Reading beside a writer would see half of its work. Where a lock cannot be taken at all (files that may only be
    // read) there is no writer to fear that was not there before.
    TRY_LET(there, opened.files->exists(arguments.folder + "/STORE"));
    if (there) {
      auto lock = opened.files->lock(arguments.folder + "/LOCK");
      if (lock) opened.lock = *std::move(lock);
      else if (lock.code() == Code::conflict) return std::move(lock).error();
    }
  }
  TRY_LET(store, Store::open(*opened.files, arguments.folder, options));
  store->set_now(base::SystemClock().wall());
  opened.store = std::move(store);
  return opened;
}

base::WallTime expiry_of(const Arguments& arguments) {
  if (arguments.ttl_ms == 0) return base::kNever;
  return base::SystemClock().wall() + std::chrono::milliseconds(arguments.ttl_ms);
}

Result<std::string> whole(const ValueView& value) {
  std::string bytes;
  TRY(value.read(0, value.size(), bytes));
  return bytes;
}

Json fragments_of(const ValueView& value, Bytes bytes) {
  Json fragments = Json::array();
  std::uint64_t begin = 0;
  for (std::uint32_t i = 0; i < value.fragment_count(); i++) {
    fragments.push_back(to_json(bytes.substr(begin, value.fragment_end(i) - begin)));
    begin = value.fragment_end(i);
  }
  return fragments;
}

Result<void> change(const Arguments& arguments, Access access, const Change& what) {
  TRY_LET(opened, open(arguments, access));
  TRY_LET(version, opened.store->apply(TableId{arguments.table}, std::array{what}));
  TRY(opened.store->sync());
  if (arguments.json) print_line(Json{{"version", version}}.dump());
  return {};
}

Result<std::string> value_of(const Arguments& arguments, bool given) {
  if (given) return arguments.value;
  return read_stream("-");
}

Result<void> get(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::read));
  const auto value = opened.store->lookup(TableId{arguments.table}, arguments.key);
  if (!value) return base::fail(Code::not_found, "no key \"", base::escape(arguments.key), "\" in table ", arguments.table);
  TRY_LET(bytes, whole(*value));
  if (arguments.json) {
    Json out{{"key", to_json(arguments.key)}, {"value", to_json(bytes)}, {"version", value->version()}, {"size_bytes", value->size()}};
    if (arguments.fragments) out["fragments"] = fragments_of(*value, bytes);
    if (value->expires() != base::kNever) out["expires_ms"] = base::to_millis(value->expires());
    print_line(out.dump());
  } else if (arguments.fragments) {
    for (const Json& fragment : fragments_of(*value, bytes))
      print_line(fragment.is_string() ? fragment.get<std::string>() : fragment.dump());
  } else {
    print(bytes);
    if (::isatty(1) != 0) print("\n");
  }
  return {};
}

Result<void> remove(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::change));
  if (!opened.store->lookup(TableId{arguments.table}, arguments.key))
    return base::fail(Code::not_found, "no key \"", base::escape(arguments.key), "\" in table ", arguments.table);
  TRY_LET(version, opened.store->apply(TableId{arguments.table}, std::array{Change::remove(arguments.key)}));
  TRY(opened.store->sync());
  if (arguments.json) print_line(Json{{"version", version}}.dump());
  return {};
}

Result<void> cswap(const Arguments& arguments, bool expects_value, bool expects_version, bool has_desired) {
  if (int{expects_value} + int{expects_version} + int{arguments.absent} != 1)
    return base::fail(Code::invalid, "cswap needs one of --expected VALUE, --version N and --absent");
  if (has_desired == arguments.remove) return base::fail(Code::invalid, "cswap needs one of --desired VALUE and --remove");
  TRY_LET(opened, open(arguments, arguments.absent ? Access::make : Access::change));
  const TableId table{arguments.table};
  const auto value = opened.store->lookup(table, arguments.key);
  std::string bytes;
  if (value) {
    TRY_LET(read, whole(*value));
    bytes = std::move(read);
  }
  const bool same = arguments.absent ? !value
                    : expects_version ? value && value->version() == arguments.version
                                      : value && bytes == arguments.expected;
  if (!same) {
    if (!value) return base::fail(Code::conflict, "key \"", base::escape(arguments.key), "\" is absent");
    return base::fail(Code::conflict, "key \"", base::escape(arguments.key), "\" has version ", value->version(), " and value \"",
                      base::escape(bytes), "\"");
  }
  const Change what = arguments.remove ? Change::remove(arguments.key) : Change::insert(arguments.key, arguments.desired, expiry_of(arguments));
  TRY_LET(version, opened.store->apply(table, std::array{what}));
  TRY(opened.store->sync());
  if (arguments.json) print_line(Json{{"version", version}}.dump());
  return {};
}

// Calls `visit` for every key: of one table, or of all.
Result<void> each_key(const Store& store, const Arguments& arguments, bool all,
                      const std::function<Result<void>(TableId, const ScanEntry&)>& visit) {
  std::uint64_t left = arguments.limit == 0 ? UINT64_MAX : arguments.limit, seen = 0;
  // Not where keys are printed to the same terminal.
  tool::Progress progress(arguments.progress() && ::isatty(1) == 0, "keys", store.statistics().keys);
  std::vector<TableId> tables{TableId{arguments.table}};
  if (all) tables = store.tables();
  for (const TableId table : tables) {
    std::uint64_t cursor = 0;
    do {
      const ScanPage page = store.scan(table, cursor, std::min<std::uint64_t>(left, 1000), arguments.prefix);
      for (const ScanEntry& entry : page.entries) {
        TRY(visit(table, entry));
        progress.at(++seen);
        if (--left == 0) return {};
      }
      cursor = page.cursor;
    } while (cursor != 0);
  }
  return {};
}

Result<void> scan(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::read));
  Json list = Json::array();
  TRY(each_key(*opened.store, arguments, arguments.all, [&](TableId table, const ScanEntry& entry) -> Result<void> {
    std::string bytes;
    if (arguments.values) {
      TRY_LET(read, whole(*opened.store->lookup(table, entry.key)));
      bytes = std::move(read);
    }
    if (!arguments.json) {
      if (arguments.all) print(std::to_string(static_cast<std::uint32_t>(table)) + "\t");
      print(arguments.hex ? base::to_hex(entry.key) : base::escape(entry.key, std::size_t{65'535}));
      if (arguments.values) print("\t" + base::escape(bytes, std::size_t{200}));
      print("\n");
      return {};
    }
    Json one{{"table", static_cast<std::uint32_t>(table)}, {"key", to_json(entry.key)}, {"version", entry.version}, {"size_bytes", entry.size}};
    if (arguments.values) one["value"] = to_json(bytes);
    list.push_back(std::move(one));
    return {};
  }));
  if (arguments.json) print_line(list.dump());
  return {};
}

Json statistics_of(const Store& store) {
  const Statistics s = store.statistics();
  return {{"tables", s.tables},
          {"keys", s.keys},
          {"live_bytes", s.live_bytes},
          {"memory_bytes", s.memory_bytes},
          {"log_bytes", s.log_bytes},
          {"log_limit", s.log_limit},
          {"checkpoint_bytes", s.checkpoint_bytes},
          {"segments", s.segments},
          {"kept_bytes", s.kept_bytes},
          {"recovered_records", s.recovered_records},
          {"recovered_bytes", s.recovered_bytes},
          {"torn_bytes", s.torn_bytes_cut}};
}

Result<void> stats(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::read));
  show(arguments, statistics_of(*opened.store));
  return {};
}

Result<void> verify(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::read));
  // Opening has checked every record and block; now every key is found again by its own name.
  std::uint64_t found = 0;
  TRY(each_key(*opened.store, arguments, true, [&](TableId table, const ScanEntry& entry) -> Result<void> {
    const auto value = opened.store->lookup(table, entry.key);
    if (!value || value->size() != entry.size)
      return base::fail(Code::corrupt, "key \"", base::escape(entry.key), "\" is listed but not found");
    found++;
    return {};
  }));
  Json out{{"good", true}, {"keys_checked", found}};
  out.update(statistics_of(*opened.store));
  show(arguments, out);
  if (!arguments.quiet && opened.store->statistics().torn_bytes_cut > 0)
    std::fprintf(stderr, "novoht: the log ends in %llu bytes of a write that a crash cut short; the next change removes them\n",
                 static_cast<unsigned long long>(opened.store->statistics().torn_bytes_cut));
  return {};
}

Json record_json(const core::Record& record, std::uint64_t offset) {
  static constexpr const char* kTypes[] = {"", "changes", "mark", "trim", "drop", "rewind"};
  static constexpr const char* kKinds[] = {"", "insert", "append", "remove", "restore"};
  Json out{{"offset", offset},
           {"type", kTypes[static_cast<int>(record.type)]},
           {"table", static_cast<std::uint32_t>(record.table)},
           {"version", record.version},
           {"epoch", record.epoch},
           {"size_bytes", record.size},
           {"durable_position", record.durable},
           {"note_bytes", record.note.size()}};
  Json changes = Json::array();
  const bool rewind = record.type == core::RecordType::rewind;
  core::ChangeReader in(record.changes, record.change_count, rewind);
  while (const auto one = in.next()) {
    Json item{{"kind", kKinds[static_cast<int>(one->kind)]}, {"key", to_json(one->key)}, {"value_bytes", one->value.size()}};
    if (one->expires != base::kNever) item["expires_ms"] = base::to_millis(one->expires);
    changes.push_back(std::move(item));
  }
  if (record.type == core::RecordType::changes || rewind) out["changes"] = std::move(changes);
  return out;
}

// What lies in the folder, file by file, also in a damaged store.
Result<void> inspect(const Arguments& arguments) {
  const auto files = base::real_files();
  TRY_LET(there, files->exists(arguments.folder + "/STORE"));
  if (!there) return base::fail(Code::invalid, arguments.folder, ": not a store: no file STORE");
  TRY_LET(store_bytes, core::read_file(*files, arguments.folder + "/STORE"));
  TRY_LET(about, core::parse_store_file(store_bytes, arguments.folder + "/STORE"));
  TRY_LET(names, files->list(arguments.folder));
  Json list = Json::array();
  for (const std::string& name : names) {
    const std::string path = arguments.folder + "/" + name;
    if (const auto number = core::segment_number(name)) {
      TRY_LET(bytes, core::read_file(*files, path));
      core::SegmentHeader header;
      TRY_LET(state, core::parse_segment_header(bytes, path, header));
      Json one{{"file", name}, {"size_bytes", bytes.size()}};
      if (state == core::HeaderState::good && header.number < *number) {
        one["state"] = "prepared out of segment " + std::to_string(header.number);
      } else if (state != core::HeaderState::good) {
        one["state"] = state == core::HeaderState::blank ? "prepared" : "damaged header";
      } else {
        const std::uint64_t salt = core::segment_salt(about.id, *number);
        std::uint64_t at = core::kSegmentHeaderSize, count = 0;
        Json records = Json::array();
        std::string why;
        while (const auto record = core::parse_record(bytes, at, salt, header.begin + at - core::kSegmentHeaderSize, &why)) {
          if (arguments.records) records.push_back(record_json(*record, at));
          count++;
          at += record->size;
        }
        one["begin_position"] = header.begin;
        one["end_position"] = header.begin + at - core::kSegmentHeaderSize;
        one["used_bytes"] = at;
        one["record_count"] = count;
        // Where records go on behind a place where none is good, that place is damaged.
        std::uint64_t beyond = 0;
        for (std::uint64_t next = at + 8; next + core::kRecordHeaderSize <= bytes.size();) {
          const auto record = core::parse_record(bytes, next, salt, header.begin + next - core::kSegmentHeaderSize);
          if (record && arguments.records) records.push_back(record_json(*record, next));
          beyond += record.has_value();
          next += record ? record->size : 8;
        }
        if (beyond > 0) {
          one["damaged_at"] = at;
          one["damage"] = why;
          one["records_beyond"] = beyond;
        }
        if (arguments.records) one["records"] = std::move(records);
      }
      list.push_back(std::move(one));
    } else if (const auto table = core::checkpoint_table(name)) {
      Json one{{"file", name}};
      std::uint64_t attachment_size = 0;
      const auto read = core::read_checkpoint(
          *files, path, about.id, *table,
          [&](const core::CheckpointHeader&, Bytes attachment) -> Result<void> {
            attachment_size = attachment.size();
            return {};
          },
          [](const core::CheckpointEntry&) {});
      if (read) {
        one.update(Json{{"size_bytes", read->size},
                        {"table", static_cast<std::uint32_t>(*table)},
                        {"version", read->header.version},
                        {"epoch", read->header.epoch},
                        {"position", read->header.position},
                        {"entries", read->end.entries},
                        {"attachment_bytes", attachment_size}});
      } else {
        one["state"] = read.error().message;
      }
      list.push_back(std::move(one));
    }
  }
  const Json out{{"format", core::kFormat}, {"files", list}};
  if (arguments.json) {
    print_line(out.dump());
    return {};
  }
  for (const Json& one : list) {
    print(one["file"].get<std::string>());
    for (const auto& [name, value] : one.items()) {
      if (name == "file" || name == "records") continue;
      print("  " + name + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
    }
    print("\n");
    if (one.contains("records")) {
      for (const Json& record : one["records"]) print_line("  " + record.dump());
    }
  }
  return {};
}

Result<void> compact(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::change));
  const Statistics before = opened.store->statistics();
  TRY(opened.store->compact());
  const Statistics after = opened.store->statistics();
  show(arguments, {{"disk_bytes_before", before.log_bytes + before.checkpoint_bytes}, {"disk_bytes", after.log_bytes + after.checkpoint_bytes}});
  return {};
}

// --- export and import: one JSON object a line ---

Result<void> export_all(const Arguments& arguments, bool one_table) {
  TRY_LET(opened, open(arguments, Access::read));
  std::FILE* const out = arguments.file == "-" ? stdout : std::fopen(arguments.file.c_str(), "wb");
  if (out == nullptr) return base::fail_errno(errno, "open " + arguments.file);
  std::uint64_t count = 0;
  auto done = each_key(*opened.store, arguments, !one_table, [&](TableId table, const ScanEntry& entry) -> Result<void> {
    const auto value = opened.store->lookup(table, entry.key);
    TRY_LET(bytes, whole(*value));
    Json line{{"table", static_cast<std::uint32_t>(table)}, {"key", to_json(entry.key)}, {"fragments", fragments_of(*value, bytes)}};
    if (value->expires() != base::kNever) line["expires_ms"] = base::to_millis(value->expires());
    const std::string text = line.dump() + "\n";
    if (std::fwrite(text.data(), 1, text.size(), out) != text.size()) return base::fail_errno(errno, "write " + arguments.file);
    count++;
    return {};
  });
  const bool closed = out == stdout ? std::fflush(out) == 0 : std::fclose(out) == 0;
  TRY(done);
  if (!closed) return base::fail_errno(errno, "write " + arguments.file);
  if (!arguments.quiet) std::fprintf(stderr, "novoht: %llu keys exported\n", static_cast<unsigned long long>(count));
  return {};
}

// A table as bytes, for another store (FORMAT.md, "Snapshot").
Result<void> export_snapshot(const Arguments& arguments) {
  TRY_LET(opened, open(arguments, Access::change));
  if (opened.store->version(TableId{arguments.table}) == 0)
    return base::fail(Code::not_found, arguments.folder, ": no table ", arguments.table);
  TRY_LET(snapshot, opened.store->begin_export(TableId{arguments.table}));
  std::FILE* const out = arguments.file == "-" ? stdout : std::fopen(arguments.file.c_str(), "wb");
  if (out == nullptr) return base::fail_errno(errno, "open " + arguments.file);
  tool::Progress progress(arguments.progress(), "KiB written:", 0);
  std::uint64_t size = 0;
  Result<void> done;
  while (done && !snapshot->done()) {
    const auto bytes = snapshot->next(std::size_t{256} << 10);
    if (!bytes) done = bytes.error();
    else if (std::fwrite(bytes->data(), 1, bytes->size(), out) != bytes->size()) done = base::fail_errno(errno, "write " + arguments.file);
    else progress.at((size += bytes->size()) / 1024 / 256 * 256);
  }
  const bool closed = out == stdout ? std::fflush(out) == 0 : std::fclose(out) == 0;
  TRY(done);
  if (!closed) return base::fail_errno(errno, "write " + arguments.file);
  if (!arguments.quiet)
    std::fprintf(stderr, "novoht: table %u at version %llu exported, %llu bytes\n", arguments.table,
                 static_cast<unsigned long long>(snapshot->version()), static_cast<unsigned long long>(size));
  return {};
}

Result<void> import_snapshot(const Arguments& arguments) {
  if (arguments.file != "-") TRY(not_a_folder(arguments.file));
  std::FILE* const in = arguments.file == "-" ? stdin : std::fopen(arguments.file.c_str(), "rb");
  if (in == nullptr) return base::fail_errno(errno, "open " + arguments.file);
  const auto take = [&]() -> Result<Version> {
    TRY_LET(opened, open(arguments, Access::make));
    TRY_LET(snapshot, opened.store->begin_import(TableId{arguments.table}));
    tool::Progress progress(arguments.progress(), "KiB read:", 0);
    std::string piece(std::size_t{256} << 10, '\0');
    std::uint64_t size = 0;
    for (std::size_t got; (got = std::fread(piece.data(), 1, piece.size(), in)) > 0;) {
      TRY(snapshot->write(Bytes(piece).substr(0, got)));
      progress.at((size += got) / 1024 / 256 * 256);
    }
    if (std::ferror(in) != 0) return base::fail(Code::io, "read ", arguments.file, ": failed");
    TRY(snapshot->finish());
    return snapshot->version();
  };
  const auto version = take();
  if (in != stdin) std::fclose(in);
  if (!version) return base::add_context(arguments.file, version.error());
  if (!arguments.quiet)
    std::fprintf(stderr, "novoht: table %u imported at version %llu\n", arguments.table, static_cast<unsigned long long>(*version));
  return {};
}

Result<void> run_bench(Arguments& arguments) {
  arguments.bench.folder = arguments.folder;
  arguments.bench.progress = arguments.progress();
  if (arguments.durability == "interval") arguments.bench.durability = Durability::interval;
  else if (arguments.durability == "always") arguments.bench.durability = Durability::always;
  else if (arguments.durability != "none")
    return base::fail(Code::invalid, "durability \"", base::escape(arguments.durability), "\" is none of none interval always");
  TRY_LET(result, tool::bench(arguments.bench));
  if (arguments.json) {
    print_line(result.dump());
    return {};
  }
  std::printf("%-10s %12s %10s %10s %10s %10s %10s\n", "workload", "ops/s", "us/op", "p50 us", "p99 us", "p99.9 us", "max us");
  for (const Json& row : result["results"])
    std::printf("%-10s %12.0f %10.3g %10.3g %10.3g %10.3g %10.3g\n", row["workload"].get<std::string>().c_str(), row["ops_per_s"].get<double>(),
                row["us_per_op"].get<double>(), row["p50_us"].get<double>(), row["p99_us"].get<double>(), row["p999_us"].get<double>(),
                row["max_us"].get<double>());
  std::printf("%llu keys of %zu + %zu bytes, %u thread%s, durability %s: %.1f MB of memory, %.1f MB on disk\n",
              static_cast<unsigned long long>(arguments.bench.count), arguments.bench.key_size, arguments.bench.value_size,
              arguments.bench.threads, arguments.bench.threads == 1 ? "" : "s", arguments.durability.c_str(),
              result["memory_bytes"].get<double>() / 1e6, result["disk_bytes"].get<double>() / 1e6);
  return {};
}

Result<void> import_line(Store& store, const std::string& text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("key") || !line.contains("fragments") || !line["fragments"].is_array() || line["fragments"].empty())
    return base::fail(Code::invalid, "not an object with \"key\" and \"fragments\"");
  TRY_LET(key, from_json(line["key"]));
  std::uint32_t table = 0;
  base::WallTime expires = base::kNever;
  if (line.contains("table")) {
    if (!line["table"].is_number_unsigned() || line["table"].get<std::uint64_t>() > UINT32_MAX)
      return base::fail(Code::invalid, "\"table\" is ", line["table"].dump(), "; it is a number up to ", UINT32_MAX);
    table = line["table"].get<std::uint32_t>();
  }
  if (line.contains("expires_ms")) {
    if (!line["expires_ms"].is_number_unsigned() || line["expires_ms"].get<std::uint64_t>() > kLastMillis)
      return base::fail(Code::invalid, "\"expires_ms\" is ", line["expires_ms"].dump(), "; it is a number up to ", kLastMillis);
    expires = base::from_millis(line["expires_ms"].get<std::uint64_t>());
  }
  std::vector<std::string> fragments;
  for (const Json& fragment : line["fragments"]) {
    TRY_LET(bytes, from_json(fragment));
    fragments.push_back(std::move(bytes));
  }
  std::vector<Change> changes{Change::insert(key, fragments[0], expires)};
  for (std::size_t i = 1; i < fragments.size(); i++) changes.push_back(Change::append(key, fragments[i]));
  for (std::size_t at = 0; at < changes.size(); at += core::kMaxChanges)
    TRY(store.apply(TableId{table}, std::span(changes).subspan(at, std::min(core::kMaxChanges, changes.size() - at)), {},
                    store.epoch(TableId{table})));
  return {};
}

Result<void> import_all(const Arguments& arguments) {
  std::ifstream file;
  if (arguments.file != "-") {
    TRY(not_a_folder(arguments.file));
    file.open(arguments.file, std::ios::binary);
    if (!file) return base::fail_errno(errno, "open " + arguments.file);
  }
  std::istream& in = arguments.file == "-" ? std::cin : file;
  TRY_LET(opened, open(arguments, Access::make));
  std::string text;
  std::uint64_t number = 0, count = 0;
  tool::Progress progress(arguments.progress(), "keys imported:", 0);
  while (std::getline(in, text)) {
    progress.at(++number);
    if (text.empty()) continue;
    if (auto line = import_line(*opened.store, text); !line)
      return base::add_context((arguments.file == "-" ? "standard input" : arguments.file) + " line " + std::to_string(number),
                               std::move(line).error());
    count++;
    if (count % 1000 == 0) TRY(opened.store->maintain(std::chrono::milliseconds(5)));
  }
  if (in.bad()) return base::fail(Code::io, "read ", arguments.file, ": failed");
  TRY(opened.store->sync());
  if (!arguments.quiet) std::fprintf(stderr, "novoht: %llu keys imported\n", static_cast<unsigned long long>(count));
  return {};
}

std::string_view remedy(const base::Error& error) {
  switch (error.code) {
    case Code::conflict:
      return error.message.find("held by") != std::string::npos ? "stop that process, or work on a copy of the folder"
                                                                : "read it again and repeat with what is there now";
    case Code::corrupt:
      return "the bytes there are not what was written: restore the folder from a copy or a replica; `novoht inspect` "
             "shows what is still readable";
    case Code::io:
      if (error.message.find("ermission denied") != std::string::npos || error.message.find("Read-only file system") != std::string::npos)
        return "who runs this may not do that there: see the folder's owner, mode and mount";
      return "see the system's log for the disk's errors";
    case Code::unsupported: return "use a newer novoht";
    case Code::no_space: return "free space on the disk and repeat";
    case Code::not_found:
      return error.message.find("no key") != std::string::npos ? "`novoht scan` lists the keys" : "see `novoht --help`";
    default: return "see `novoht --help`";
  }
}

// CLI11 takes -1 for the largest number there is, and what is too large for it.
CLI::Validator number_up_to(std::uint64_t most) {
  const auto check = [most](const std::string& given) -> std::string {
    const bool digits = !given.empty() && given.find_first_not_of("0123456789") == std::string::npos;
    std::uint64_t number = 0;
    const auto parsed = std::from_chars(given.data(), given.data() + given.size(), number);
    if (digits && parsed.ec == std::errc() && number <= most) return {};
    return "\"" + base::escape(given) + "\" is no whole number from 0 to " + std::to_string(most);
  };
  return CLI::Validator(check, "");
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Examples:\n"
      "  novoht put ./mine greeting hello      (makes the store when absent)\n"
      "  novoht get ./mine greeting\n\n"
      "novoht works on a NoVoHT store, a persistent hash table in a folder, that no other process has open.\n"
      "Exit status: 0 done, 2 usage, 3 no such key, 4 conflict or locked, 6 no space, 7 damaged, 8 newer format.",
      "novoht");
  app.set_version_flag("--version", "novoht " NOVOHT_VERSION ", writes format " + std::to_string(core::kFormat), "print the version and end");
  app.require_subcommand(0, 1);  // an unknown option is told before a missing verb
  const auto verb = [&](const char* name, const char* examples, const char* what) {
    CLI::App* const sub = app.add_subcommand(name, std::string("Examples:\n") + examples + "\n" + what);
    sub->add_option("FOLDER", arguments.folder, "the store's folder")->required();
    sub->add_flag("--json", arguments.json, "print one JSON value");
    sub->add_flag("--quiet", arguments.quiet, "no remarks on stderr");
    return sub;
  };
  const auto with_key = [&](CLI::App* sub) {
    sub->add_option("KEY", arguments.key, "1 to 65535 bytes")->required();
    sub->add_flag("--key-hex", arguments.hex, "KEY is hexadecimal");
    sub->add_option("--table", arguments.table, "number of the table")->check(number_up_to(UINT32_MAX))->capture_default_str();
  };
  const auto with_ttl = [&](CLI::App* sub) {
    sub->add_option("--ttl-ms", arguments.ttl_ms, "expire after so many milliseconds")->check(number_up_to(kLastMillis));
  };

  CLI::App* const put_ = verb("put", "  novoht put ./mine k v\n  novoht put ./mine page < page.html\n",
                              "Sets a key's value (from stdin when not given).");
  with_key(put_);
  with_ttl(put_);
  const CLI::Option* const put_value = put_->add_option("VALUE", arguments.value, "the value");
  CLI::App* const get_ = verb("get", "  novoht get ./mine k\n  novoht get --fragments --json ./mine log\n", "Prints a key's value.");
  with_key(get_);
  get_->add_flag("--fragments", arguments.fragments, "one line for each append");
  CLI::App* const remove_ = verb("remove", "  novoht remove ./mine k\n  novoht remove --table 3 ./mine k\n", "Removes a key.");
  with_key(remove_);
  CLI::App* const append_ = verb("append", "  novoht append ./mine log 'a line'\n  date | novoht append ./mine log\n",
                                 "Adds a fragment to a key's value (from stdin when not given).");
  with_key(append_);
  const CLI::Option* const append_value = append_->add_option("VALUE", arguments.value, "the fragment");
  CLI::App* const cswap_ = verb(
      "cswap",
      "  novoht cswap --expected 1 --desired 2 ./mine counter\n  novoht cswap --absent --desired me ./mine owner\n",
      "Changes a key only if it is as expected.");
  with_key(cswap_);
  with_ttl(cswap_);
  const CLI::Option* const expected = cswap_->add_option("--expected", arguments.expected, "its value now");
  const CLI::Option* const version = cswap_->add_option("--version", arguments.version, "its version now")->check(number_up_to(UINT64_MAX));
  cswap_->add_flag("--absent", arguments.absent, "it does not exist");
  const CLI::Option* const desired = cswap_->add_option("--desired", arguments.desired, "its new value");
  cswap_->add_flag("--remove", arguments.remove, "remove it");
  CLI::App* const scan_ = verb("scan", "  novoht scan ./mine\n  novoht scan --prefix user: --values --limit 10 ./mine\n", "Lists keys, in no order.");
  scan_->add_option("--table", arguments.table, "number of the table")->check(number_up_to(UINT32_MAX))->capture_default_str();
  scan_->add_flag("--all", arguments.all, "all tables");
  scan_->add_option("--prefix", arguments.prefix, "only keys that begin so");
  scan_->add_option("--limit", arguments.limit, "at most so many; 0: all")->check(number_up_to(UINT64_MAX));
  scan_->add_flag("--values", arguments.values, "with values");
  scan_->add_flag("--key-hex", arguments.hex, "print keys in hexadecimal; so is --prefix");
  CLI::App* const dump_ = verb("dump", "  novoht dump ./mine\n  novoht dump --json ./mine | jq .\n", "Lists all tables' keys with their values.");
  CLI::App* const stats_ = verb("stats", "  novoht stats ./mine\n  novoht stats --json ./mine\n", "Prints counts and sizes.");
  CLI::App* const verify_ = verb("verify", "  novoht verify ./mine\n  novoht verify --json ./mine\n",
                                 "Reads and checks every byte. Exit status 7 and the place when something is damaged.");
  CLI::App* const inspect_ = verb("inspect", "  novoht inspect ./mine\n  novoht inspect --records ./mine\n",
                                  "Lists the files and what they hold, also of a damaged store.");
  inspect_->add_flag("--records", arguments.records, "every record of the log");
  CLI::App* const compact_ = verb("compact", "  novoht compact ./mine\n  novoht compact --json ./mine\n",
                                  "Writes checkpoints of all tables and drops the log.");
  CLI::App* const export_ =
      verb("export", "  novoht export ./mine backup.jsonl\n  novoht export ./mine | gzip > backup.jsonl.gz\n",
           "Writes every key as a line of JSON.");
  export_->add_option("FILE", arguments.file, "to write; -: stdout")->default_val("-");
  const CLI::Option* const export_table = export_->add_option("--table", arguments.table, "only this table")->check(number_up_to(UINT32_MAX));
  export_->add_flag("--snapshot", arguments.snapshot, "one table, with its versions, as bytes for another store");
  CLI::App* const import_ =
      verb("import", "  novoht import ./mine backup.jsonl\n  zcat backup.jsonl.gz | novoht import ./mine\n",
           "Puts every line's key (as export writes them).");
  import_->add_option("FILE", arguments.file, "to read; -: stdin")->default_val("-");
  import_->add_flag("--snapshot", arguments.snapshot, "a table as export --snapshot wrote it; takes the place of --table");
  import_->add_option("--table", arguments.table, "with --snapshot: number of the table")
      ->check(number_up_to(UINT32_MAX))
      ->capture_default_str();
  CLI::App* const bench_ = verb("bench",
                                "  novoht bench /tmp/bench\n  novoht bench --threads 4 --durability always --workload insert,get /tmp/bench\n",
                                "Measures workloads in a folder that is absent or empty, and removes it again. Every answer is checked.");
  tool::BenchPlan& plan = arguments.bench;
  plan.workloads = {"insert", "get", "append", "remove"};
  bench_->add_option("--workload", plan.workloads, "any of insert overwrite get append mixed remove, in order")
      ->delimiter(',')
      ->capture_default_str();
  bench_->add_option("--count", plan.count, "keys")->check(number_up_to(UINT64_MAX))->capture_default_str();
  bench_->add_option("--key-size", plan.key_size, "bytes")->check(number_up_to(UINT64_MAX))->capture_default_str();
  bench_->add_option("--value-size", plan.value_size, "bytes")->check(number_up_to(UINT64_MAX))->capture_default_str();
  bench_->add_option("--threads", plan.threads, "of a SharedTable; 1: a Store")->check(number_up_to(UINT32_MAX))->capture_default_str();
  bench_->add_option("--batch", plan.batch, "changes in one call")->check(number_up_to(UINT64_MAX))->capture_default_str();
  bench_->add_option("--durability", arguments.durability, "none, interval (each call is in the system's hands) or always (synced)")
      ->capture_default_str();
  bench_->add_flag("--keep", plan.keep, "leave the store there");

  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  const auto is_verb = [&](const char* word) {
    return std::any_of(verbs.begin(), verbs.end(), [&](const CLI::App* one) { return one->check_name(word); });
  };
  // help [VERB] is --help of it.
  static char help_flag[] = "--help";
  std::array<char*, 3> as_flag{argv[0], argc > 2 ? argv[2] : help_flag, help_flag};
  if (argc > 1 && argc < 4 && std::string_view(argv[1]) == "help") argv = as_flag.data();
  if (argc > 1 && argv[1][0] != '-' && !is_verb(argv[1])) {
    std::fprintf(stderr, "novoht: no command \"%s\"; see `novoht --help`\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const std::string of = argc > 1 && is_verb(argv[1]) ? std::string(argv[1]) + " " : "";
    std::fprintf(stderr, "novoht: %s; see `novoht %s--help`\n", error.what(), of.c_str());
    return 2;
  }
  if (app.get_subcommands().empty()) {
    std::fprintf(stderr, "novoht: no command given; see `novoht --help`\n");
    return 2;
  }
  Result<void> done;
  if (arguments.hex) {
    std::string& given = scan_->parsed() ? arguments.prefix : arguments.key;
    auto bytes = from_hex(given);
    if (bytes) given = *std::move(bytes);
    else done = std::move(bytes).error();
  }
  if (dump_->parsed()) arguments.all = arguments.values = true;
  if (!done) {
  } else if (put_->parsed()) {
    auto value = value_of(arguments, !put_value->empty());
    done = value ? change(arguments, Access::make, Change::insert(arguments.key, *value, expiry_of(arguments))) : Result<void>(value.error());
  } else if (append_->parsed()) {
    auto value = value_of(arguments, !append_value->empty());
    done = value ? change(arguments, Access::make, Change::append(arguments.key, *value)) : Result<void>(value.error());
  } else if (get_->parsed()) {
    done = get(arguments);
  } else if (remove_->parsed()) {
    done = remove(arguments);
  } else if (cswap_->parsed()) {
    done = cswap(arguments, !expected->empty(), !version->empty(), !desired->empty());
  } else if (scan_->parsed() || dump_->parsed()) {
    done = scan(arguments);
  } else if (stats_->parsed()) {
    done = stats(arguments);
  } else if (verify_->parsed()) {
    done = verify(arguments);
  } else if (inspect_->parsed()) {
    done = inspect(arguments);
  } else if (compact_->parsed()) {
    done = compact(arguments);
  } else if (export_->parsed()) {
    done = arguments.snapshot ? export_snapshot(arguments) : export_all(arguments, !export_table->empty());
  } else if (import_->parsed()) {
    done = arguments.snapshot ? import_snapshot(arguments) : import_all(arguments);
  } else if (bench_->parsed()) {
    done = run_bench(arguments);
  }
  if (done && std::fflush(stdout) != 0) done = base::fail_errno(errno, "write to stdout");
  if (done) return 0;
  const base::Error& error = done.error();
  std::fprintf(stderr, "novoht: %s; %.*s\n", error.message.c_str(), static_cast<int>(remedy(error).size()), remedy(error).data());
  return base::exit_status_of(error.code);
}

}  // namespace
}  // namespace novoht

int main(int argc, char** argv) {
  try {
    return novoht::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "novoht: %s\n", error.what());
    return 1;
  }
}

// `zht backup` and `zht restore`: one moment of a live cluster, and back into a new one.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "zht/backup/backup.h"
#include "zht/backup/restore.h"
#include "zht/client.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/progress.h"
#include "zht/tool/backup_services.h"
#include "zht/tool/manager.h"
#include "zht/tool/verbs.h"

namespace zht::tool {

using nlohmann::json;

namespace {

struct Arguments {
  std::string folder;
  bool incremental = false, verify = false, list = false;
  std::uint64_t number = 0;
  std::uint32_t instances = 0, partitions = 0, replicas = 3, sync_replicas = 2;
};

json about(const backup::Manifest& manifest) {
  json parts = json::object();
  for (const auto& [name, text] : manifest.parts) parts[name] = json::parse(text, nullptr, false);
  return {{"backup", manifest.number},
          {"builds_on", manifest.parent == 0 ? json() : json(manifest.parent)},
          {"made", support::iso_time(manifest.made)},
          {"cluster", manifest.cluster},
          {"partitions", manifest.partitions},
          {"entries", manifest.entries},
          {"removed", manifest.removed},
          {"data_size_bytes", manifest.data_size},
          {"pause_us", manifest.pause_us},
          {"duration_ms", manifest.seconds_ms},
          {"parts", parts}};
}

Result<void> make(const support::Program& program, const Arguments& arguments) {
  const support::CommonFlags& common = program.common();
  backup::MakeOptions options;
  options.folder = arguments.folder;
  options.incremental = arguments.incremental;
  TRY_LET(addresses, managers(program));
  options.addresses = addresses;
  options.opener = addresses.front().opener;
  TRY_LET(data, support::data_folder(common.data));
  options.services = backup_services();
  TRY_LET(client, connect(common.looking_options()));
  support::Progress bar("partitions", 0, common.quiet || common.json);
  options.tell = [&](const std::string& line) {
    bar.clear();
    if (!common.quiet) std::cerr << "zht: " << line << "\n";
  };
  options.progress = [&](std::uint64_t done, std::uint64_t total, std::uint64_t bytes) {
    bar.total(total);
    bar.set(done, support::human_size(bytes));
  };
  options.place = {.client = client.get(), .cluster = common.cluster, .data = data, .tell = options.tell};
  TRY_LET(made, backup::make(options));
  bar.finish();
  if (common.json) {
    json value = about(made.manifest);
    value["folder"] = made.folder;
    value["size_bytes"] = made.size;
    value["changed_partitions"] = made.changed;
    support::print_json(value);
    return {};
  }
  std::cout << "backup " << made.manifest.number << ": "
            << (made.manifest.parent == 0 ? "whole" : "on top of backup " + std::to_string(made.manifest.parent)) << ", "
            << support::human_count(made.manifest.entries) << " keys, " << support::human_size(made.size) << ", as of "
            << support::iso_time(made.manifest.made) << "; changes waited "
            << support::human_duration(std::chrono::microseconds(made.manifest.pause_us)) << "\n";
  return {};
}

Result<void> verify(const support::Program& program, const Arguments& arguments) {
  const support::CommonFlags& common = program.common();
  support::Progress bar("partitions", 0, common.quiet || common.json);
  TRY_LET(found, backup::verify(arguments.folder, arguments.number, backup_services(), [&](std::uint64_t done, std::uint64_t total) {
    bar.total(total);
    bar.set(done);
  }));
  bar.finish();
  if (common.json) {
    json value = about(found.manifest);
    value["needs"] = found.chain;
    value["keys"] = found.keys;
    value["value_bytes"] = found.value_bytes;
    support::print_json(value);
    return {};
  }
  std::cout << "backup " << found.manifest.number << " is well: " << support::human_count(found.keys) << " keys with "
            << support::human_size(found.value_bytes) << " of values, as of " << support::iso_time(found.manifest.made) << "\n";
  return {};
}

Result<void> list(const support::Program& program, const Arguments& arguments) {
  TRY_LET(folder, backup::Folder::open(arguments.folder, backup::Folder::Mode::read));
  json all = json::array();
  support::Table table({"BACKUP", "BUILDS ON", "MADE", "KEYS", "REMOVED", "SIZE"});
  for (const std::uint64_t number : folder.numbers()) {
    TRY_LET(manifest, folder.manifest(number));
    const std::uint64_t size = backup::size_of_folder(folder.folder_of(number));
    json one = about(manifest);
    one["size_bytes"] = size;
    all.push_back(one);
    table.row({std::to_string(number), manifest.parent == 0 ? "-" : std::to_string(manifest.parent), support::iso_time(manifest.made),
               support::human_count(manifest.entries), support::human_count(manifest.removed), support::human_size(size)});
  }
  if (program.common().json) support::print_json(all);
  else table.print();
  return {};
}

Result<void> restore(const support::Program& program, const Arguments& arguments) {
  const support::CommonFlags& common = program.common();
  if (common.data.empty())
    return fail(Code::invalid, "restore needs --data FOLDER: the data folder that is to be made, of a node that begins a new cluster");
  backup::RestoreOptions options;
  options.folder = arguments.folder;
  options.number = arguments.number;
  options.data = common.data;
  options.instances = std::max<std::uint32_t>(arguments.instances, 1);
  options.partitions = arguments.partitions;
  options.copies = arguments.replicas;
  options.sync_copies = arguments.sync_replicas;
  options.services = backup_services();
  support::Progress bar("partitions", 0, common.quiet || common.json);
  options.tell = [&](const std::string& line) {
    bar.clear();
    if (!common.quiet) std::cerr << "zht: " << line << "\n";
  };
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    bar.total(total);
    bar.set(done);
  };
  const base::Time began = base::SystemClock().now();
  TRY_LET(done, backup::restore(options));
  bar.finish();
  const base::Duration took = base::SystemClock().now() - began;
  if (common.json) {
    json parts = json::object();
    for (const auto& [name, text] : done.parts) parts[name] = json::parse(text, nullptr, false);
    support::print_json({{"backup", done.manifest.number},
                         {"made", support::iso_time(done.manifest.made)},
                         {"data", common.data},
                         {"keys", done.keys},
                         {"value_bytes", done.value_bytes},
                         {"partitions", done.partitions},
                         {"duration_ms", took / std::chrono::milliseconds(1)},
                         {"parts", parts}});
    return {};
  }
  std::cout << "restored " << support::human_count(done.keys) << " keys with " << support::human_size(done.value_bytes) << " of values, as of "
            << support::iso_time(done.manifest.made) << "; go on with: zht serve --data " << common.data << "\n";
  return {};
}

}  // namespace

void add_backup_verbs(support::Program& program) {
  const auto arguments = std::make_shared<Arguments>();
  auto& backup = program.verb("backup", "Backs up a live cluster as it is at one moment, or reads a backup over.",
                              {"zht backup /backups/store", "zht backup /backups/store --incremental"});
  backup.options().add_option("folder", arguments->folder, "where backups are kept; made when it is not there")->required();
  auto* incremental = backup.options().add_flag("--incremental", arguments->incremental, "only what is not as in the newest backup there");
  auto* verify_flag = backup.options().add_flag("--verify", arguments->verify,
                                                "back nothing up: read all that a restore would, and say whether it is well");
  backup.options().add_flag("--list", arguments->list, "back nothing up: which backups there are")->excludes(incremental)->excludes(verify_flag);
  verify_flag->excludes(incremental);
  backup.options().add_option("--number", arguments->number, "with --verify: which one (default: the newest)");
  backup.action([&program, arguments]() -> Result<void> {
    if (arguments->list) return list(program, *arguments);
    return arguments->verify ? verify(program, *arguments) : make(program, *arguments);
  });
  auto& restores = program.verb("restore", "Makes the data folder of a new cluster's first node out of a backup.",
                                {"zht restore /backups/store --data /var/lib/zht-again", "zht restore /backups/store --number 3 --data /tmp/look"});
  restores.options().add_option("folder", arguments->folder, "where backups are kept")->required();
  restores.options().add_option("--number", arguments->number, "which one (default: the newest)");
  restores.options().add_option("--instances", arguments->instances, "of the node (default: 1)")->check(CLI::Range(1u, 1024u));
  restores.options().add_option("--partitions", arguments->partitions, "of the new cluster (default: as it was)")->check(CLI::Range(1u, 1u << 20));
  restores.options().add_option("--replicas", arguments->replicas, "copies of each partition, as soon as there are so many nodes (default: 3)");
  restores.options().add_option("--sync-replicas", arguments->sync_replicas, "of these, those that have every acknowledged change (default: 2)");
  restores.action([&program, arguments] { return restore(program, *arguments); });
}

}  // namespace zht::tool

// The cluster's secret: making it, finding it, and the token that is made of it for /metrics.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "zht/security/guard.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using base::Code;
using base::fail;
using base::Result;

// --file, else $ZHT_SECRET_FILE, else `secret` in the data folder.
Result<std::string> place_of(const support::Program& program, const std::string& file) {
  if (!file.empty()) return support::absolute_path(file);
  if (const char* set = std::getenv("ZHT_SECRET_FILE"); set != nullptr && *set != '\0') return std::string(set);
  TRY_LET(folder, support::data_folder(program.common().data));
  return security::secret_path(folder);
}

Result<void> secret(const support::Program& program, const std::string& action, const std::string& file) {
  TRY_LET(path, place_of(program, file));
  std::string shown = path;
  if (security::Munge::is_meant(path)) {
    if (action != "path")
      return fail(Code::invalid, "there is no secret where munge vouches (", path, "): the token of /metrics is what `munge -s zht` prints");
    TRY(security::Munge::open(path));
  } else if (action == "new") {
    if (file.empty()) {
      TRY_LET(folder, support::data_folder(program.common().data));
      if (path == security::secret_path(folder)) TRY(support::make_private_folder(folder));
    }
    TRY(security::make_secret(path));
  } else {
    TRY_LET(read, security::Secret::load(path));
    if (action == "token") shown = read.metrics_token();
  }
  if (program.common().json)
    support::print_json({{action == "token" ? "token" : "path", shown}});
  else
    std::cout << shown << "\n";
  return {};
}

}  // namespace

void add_secret_verb(support::Program& program) {
  struct Flags {
    std::string action, file;
  };
  auto flags = std::make_shared<Flags>();
  auto& verb = program.verb("secret",
                            "The cluster's secret, which nodes and clients prove to each other. new: makes one, in the data folder or "
                            "--file; copy that file to the other machines (mode 600) and name it in $ZHT_SECRET_FILE. path: checks it and "
                            "says where it is. token: prints what lets Prometheus read /metrics. Where all machines run munged with one key, "
                            "ZHT_SECRET_FILE=munge does instead, on nodes and clients.",
                            {"zht secret new && zht serve --listen 0.0.0.0:5470 --data ~/.local/share/zht",
                             "ZHT_SECRET_FILE=/etc/zht/secret zht --cluster node7:5470 lookup greeting"});
  verb.options().add_option("action", flags->action, "new, path or token")->required()->check(CLI::IsMember({"new", "path", "token"}));
  verb.options().add_option("--file", flags->file, "the file (default: $ZHT_SECRET_FILE, else `secret` in the data folder)");
  verb.action([&program, flags] { return secret(program, flags->action, flags->file); });
}

}  // namespace zht::tool

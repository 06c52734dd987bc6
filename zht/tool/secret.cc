// The cluster's secret: making it, finding it, and the token that is made of it for /metrics.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "zht/client/known_secrets.h"
#include "zht/security/guard.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using base::Code;
using base::fail;
using base::Result;

// --file, else $ZHT_SECRET_FILE, else that of the cluster which is named, else `secret` in the data folder.
Result<std::string> place_of(const support::Program& program, const std::string& file) {
  if (!file.empty()) return support::absolute_path(file);
  if (const char* set = std::getenv("ZHT_SECRET_FILE"); set != nullptr && *set != '\0') return std::string(set);
  const std::string cluster = program.common().named_cluster();
  if (const auto at = client::parse_cluster(cluster); !cluster.empty() && at)
    for (const client::Address& one : *at)
      if (const auto known = client::known_secret(one.text())) return *known;
  TRY_LET(folder, support::data_folder(program.common().data));
  return security::secret_path(folder);
}

struct Flags {
  std::string action, name = "default", file;
};

Result<void> secret(const support::Program& program, const Flags& flags) {
  const auto& [action, name, file] = flags;
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
    if (action == "show" || action == "client") {
      TRY_LET(key, read.key("client:" + name));
      shown = action == "show" ? key.word() : key.text();
    }
  }
  if (shown.ends_with('\n')) shown.pop_back();
  if (program.common().json)
    support::print_json({{action == "token" ? "token" : action == "show" ? "password" : action == "client" ? "key" : "path", shown}});
  else
    std::cout << shown << "\n";
  return {};
}

}  // namespace

void add_secret_verb(support::Program& program) {
  auto flags = std::make_shared<Flags>();
  auto& verb = program.verb("secret",
                            "The cluster's secret, which its nodes prove to each other, and the keys made of it. A node that listens makes one "
                            "by itself, and this user's tools on the machine find it. new: makes one, in the data folder or --file; copy that "
                            "file to the other nodes' data folders (mode 600). client: prints a client's key; in a file of mode 600 that "
                            "$ZHT_SECRET_FILE names it lets another user or machine read and write data, and no more. show: prints that key as "
                            "Redis clients say it (AUTH). path: checks the secret and says where it is. token: what lets Prometheus read "
                            "/metrics. Where all machines run munged with one key, ZHT_SECRET_FILE=munge does instead, on nodes and clients.",
                            {"REDISCLI_AUTH=$(zht secret show) redis-cli -p 6379 get k",
                             "zht secret client alice | ssh alice@desk 'umask 077; cat > zht.key'"});
  verb.options().add_option("action", flags->action, "new, client, show, path or token")
      ->required()->check(CLI::IsMember({"new", "client", "show", "path", "token"}));
  verb.options().add_option("name", flags->name, "client, show: whose key (Redis: AUTH NAME KEY), 1 to 32 letters, digits, -_. (default)");
  verb.options().add_option("--file", flags->file, "the secret's file (default: $ZHT_SECRET_FILE, else `secret` in the data folder)");
  verb.action([&program, flags] { return secret(program, *flags); });
}

}  // namespace zht::tool

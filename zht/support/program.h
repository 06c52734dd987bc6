// A command line program with the house conventions, so that every tool of the platform feels alike.
//
//   int main(int argc, char** argv) {
//     support::Program program("zht", "the zero-hop hash table", {"zht insert greeting hello", "zht lookup greeting"});
//     std::string key;
//     auto& lookup = program.verb("lookup", "Prints the value of a key.", {"zht lookup greeting", "zht lookup k --json"});
//     lookup.options().add_option("key", key, "1 to 65535 bytes")->required();       // CLI::App, from <CLI/CLI.hpp>
//     lookup.action([&]() -> base::Result<int> { ...; return 0; });                  // or Result<void>, or int
//     return program.run(argc, argv);
//   }
//
// What comes for free: --help at every level, opening with the examples; --version; the common flags; `help VERB`; a
// wrong verb, option or value is exit status 2 and one line that names it and the remedy; an Error returned by an action
// is one line and the exit status of its code; an action's exit status passes through.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "novoht/base/result.h"
#include "zht/client.h"

namespace CLI {
class App;
class Option;
}

namespace support {

// The flags every verb takes. `timeout` 0: not given.
struct CommonFlags {
  std::string cluster;
  std::string data;
  std::chrono::milliseconds timeout{0};
  bool json = false;
  bool quiet = false;
  int verbosity = 0;  // how many -v: 1 info, 2 debug
  // The cluster that is meant: --cluster, else, unless --data names a node's folder, $ZHT_CLUSTER; empty: the local node. What was
  // said on the command line wins over the environment.
  std::string named_cluster() const;
  zht::ClientOptions client_options() const;
  // The same for what only looks: a folder that was named and in which no node has ever been is a mistyped one, and no node is
  // started in it.
  zht::ClientOptions looking_options() const;
};

class Verb {
 public:
  using Action = std::function<base::Result<int>()>;  // the value is the exit status
  Verb(std::string name, std::string summary, std::vector<std::string> examples, std::string title);
  ~Verb();
  CLI::App& options() { return *app_; }
  // `act` returns Result<int>, int, Result<void> or nothing.
  template <typename Function>
  Verb& action(Function act) {
    using Returned = std::invoke_result_t<Function>;
    if constexpr (std::is_same_v<Returned, base::Result<void>>)
      action_ = [act = std::move(act)]() -> base::Result<int> { TRY(act()); return 0; };
    else if constexpr (std::is_void_v<Returned>)
      action_ = [act = std::move(act)]() -> base::Result<int> { act(); return 0; };
    else
      action_ = [act = std::move(act)]() -> base::Result<int> { return act(); };
    return *this;
  }
  // Everything after the verb's own options belongs to another command, options included: `matrix run -c 2 ls -l`.
  // Read it with options().remaining().
  Verb& takes_command();

 private:
  friend class Program;
  std::string name_, summary_;
  std::vector<std::string> examples_;
  std::unique_ptr<CLI::App> app_;
  Action action_;
};

class Program {
 public:
  // examples: two whole command lines, shown first by --help.
  Program(std::string name, std::string summary, std::vector<std::string> examples);
  ~Program();
  // A verb may be two words ("ec set"). The reference stays valid as long as the program.
  Verb& verb(std::string name, std::string summary, std::vector<std::string> examples);
  const CommonFlags& common() const { return common_; }  // filled when an action runs
  int run(int argc, char** argv);

 private:
  int dispatch(std::vector<std::string> arguments);
  int run_verb(Verb& verb, std::vector<std::string> arguments);
  int usage_error(const std::string& what, const std::string& help_of);
  std::string help(const std::string& beginning = {}) const;  // of verbs that begin so
  std::string words_after(const std::string& first) const;
  std::string nearest(const std::string& typed) const;

  std::string name_, summary_;
  std::vector<std::string> examples_;
  std::vector<std::unique_ptr<Verb>> verbs_;
  CommonFlags common_;
};

// Options with units: "10ms", "2s", "1h" and "64MiB", "1k". A value without a unit is refused, 0 aside.
CLI::Option* add_duration(CLI::App& app, const std::string& name, std::chrono::milliseconds& to, const std::string& help);
CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& to, const std::string& help);

// One line on stderr: "<program>: <message>". Control characters in it are escaped: what was typed is quoted back safely.
void complain(const std::string& program, const std::string& message);

}  // namespace support

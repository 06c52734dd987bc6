#include "zht/support/program.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "zht/support/config.h"
#include "zht/support/log.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"

namespace support {
namespace {

// Common flags that take a value: the word after them is not the verb.
bool takes_value(const std::string& flag) { return flag == "--cluster" || flag == "--data" || flag == "--timeout"; }

void add_common(CLI::App& app, CommonFlags& common) {
  const std::string group = "Common options";
  app.add_option("--cluster", common.cluster,
                 "host:port[,host:port...] or a file of them; default $ZHT_CLUSTER (unless --data is given), else the local node")
      ->group(group);
  app.add_option("--data", common.data, "data folder of the local node; default $ZHT_DATA, else ~/.local/share/zht")
      ->group(group);
  add_duration(app, "--timeout", common.timeout, "how long to try, such as 500ms or 10s")->group(group);
  app.add_flag("--json", common.json, "print exactly one JSON value")->group(group);
  app.add_flag("-q,--quiet", common.quiet, "no progress and no remarks")->group(group);
  app.add_flag("-v,--verbose", common.verbosity, "say more; twice: still more")->group(group);
}

std::string show_examples(const std::vector<std::string>& examples) {
  std::string text = "Examples:\n";
  for (const std::string& example : examples) text += "  " + example + "\n";
  return text + "\n";
}

// CLI11's messages are sentences; ours are one line without a full stop.
std::string tidy(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.' || text.back() == ' ')) text.pop_back();
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    for (const std::string& word : app.remaining()) {
      if (word == "--") continue;
      if (word.size() < 2 || word[0] != '-') return "unexpected argument '" + word + "'";
      std::vector<std::string> known;
      for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
      const std::string near = nearest_of(word.substr(0, word.find('=')), known);
      return "unknown option '" + word + "'" + (near.empty() ? "" : ", did you mean '" + near + "'?");
    }
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    std::string what = tidy(error.what());
    const std::string tail = " is required";
    if (what.ends_with(tail)) return what.substr(0, what.size() - tail.size()) + " is missing";
    return what;
  }
  // "Could not convert: --offset = x"
  const std::string text = tidy(error.what()), could_not = "Could not convert: ";
  const std::size_t equals = text.find(" = ");
  if (dynamic_cast<const CLI::ConversionError*>(&error) && text.starts_with(could_not) && equals != std::string::npos)
    return text.substr(could_not.size(), equals - could_not.size()) + ": '" + text.substr(equals + 3) + "' is not a number";
  return text;
}

template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, Value& to, const std::string& help, Parse parse) {
  const std::string shown = name.substr(name.rfind(',') == std::string::npos ? 0 : name.rfind(',') + 1);
  return app.add_option_function<std::string>(
      name,
      [&to, parse, shown](const std::string& text) {
        auto parsed = parse(text);
        if (!parsed) throw CLI::ValidationError(shown, parsed.error().message);
        to = *parsed;
      },
      help);
}

}  // namespace

std::string CommonFlags::named_cluster() const {
  const char* set = std::getenv("ZHT_CLUSTER");
  return cluster.empty() && data.empty() && set != nullptr ? set : cluster;
}

zht::ClientOptions CommonFlags::looking_options() const {
  zht::ClientOptions options = client_options();
  const char* set = std::getenv("ZHT_DATA");
  if (data.empty() && (set == nullptr || *set == '\0')) return options;
  const auto folder = data_folder(data);
  if (folder && access((*folder + "/node.json").c_str(), F_OK) != 0) options.start_node = false;
  return options;
}

zht::ClientOptions CommonFlags::client_options() const {
  zht::ClientOptions options;
  options.cluster = named_cluster();
  options.data_folder = data;
  if (timeout.count() > 0) options.timeout = timeout;
  options.quiet = quiet;
  return options;
}

CLI::Option* add_duration(CLI::App& app, const std::string& name, std::chrono::milliseconds& to,
                          const std::string& help) {
  auto* option =
      add_parsed(app, name, to, help, [](const std::string& text) -> base::Result<std::chrono::milliseconds> {
        TRY_LET(duration, parse_duration(text));
        const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(duration);
        if (millis.count() == 0 && duration.count() > 0)
          return base::fail(base::Code::invalid, "'", text, "' is less than 1ms");
        return millis;
      });
  return option->type_name("DURATION");
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& to, const std::string& help) {
  return add_parsed(app, name, to, help, [](const std::string& text) { return parse_size(text); })->type_name("SIZE");
}

void complain(const std::string& program, const std::string& message) {
  std::string line;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f)
      line += c;
    else
      line += base::escape(std::string_view(&c, 1));
  }
  std::fprintf(stderr, "%s: %s\n", program.c_str(), line.c_str());
}

Verb::Verb(std::string name, std::string summary, std::vector<std::string> examples, std::string title)
    : name_(std::move(name)),
      summary_(std::move(summary)),
      examples_(std::move(examples)),
      app_(std::make_unique<CLI::App>(summary_, std::move(title))) {}
Verb::~Verb() = default;

Verb& Verb::takes_command() {
  app_->prefix_command();
  return *this;
}

Program::Program(std::string name, std::string summary, std::vector<std::string> examples)
    : name_(std::move(name)), summary_(std::move(summary)), examples_(std::move(examples)) {}
Program::~Program() = default;

Verb& Program::verb(std::string name, std::string summary, std::vector<std::string> examples) {
  const std::string title = name_ + " " + name;
  verbs_.push_back(std::make_unique<Verb>(std::move(name), std::move(summary), std::move(examples), title));
  add_common(verbs_.back()->options(), common_);
  return *verbs_.back();
}

// "it goes on with up, down or status"; empty: no verb of two words begins so.
std::string Program::words_after(const std::string& first) const {
  std::vector<std::string> words;
  for (const auto& verb : verbs_)
    if (verb->name_.starts_with(first + " ")) words.push_back(verb->name_.substr(first.size() + 1));
  std::string text;
  for (std::size_t i = 0; i < words.size(); i++) text += (i == 0 ? "it goes on with " : i + 1 < words.size() ? ", " : " or ") + words[i];
  return text;
}

std::string Program::help(const std::string& beginning) const {
  std::string text;
  if (beginning.empty())
    text = show_examples(examples_) + name_ + ": " + summary_ + "\n\nUsage: " + name_ + " VERB [OPTIONS] ...\n\nVerbs:\n";
  else
    text = "Usage: " + name_ + " " + beginning + "VERB [OPTIONS] ...\n\nVerbs:\n";
  std::size_t width = 0;
  for (const auto& verb : verbs_) width = std::max(width, verb->name_.size());
  for (const auto& verb : verbs_)
    if (verb->name_.starts_with(beginning)) text += "  " + verb->name_ + std::string(width - verb->name_.size() + 2, ' ') + verb->summary_ + "\n";
  return text + "\nEvery verb takes --cluster, --data, --timeout, --json, --quiet, -v and --help.\n";
}

std::string Program::nearest(const std::string& typed) const {
  std::vector<std::string> names;
  for (const auto& verb : verbs_) names.push_back(verb->name_);
  return nearest_of(typed, names);
}

int Program::usage_error(const std::string& what, const std::string& help_of) {
  complain(name_, what + "; try '" + help_of + " --help'");
  return 2;
}

int Program::run(int argc, char** argv) {
  int status = 1;
  try {
    status = dispatch({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    complain(name_, std::string("unexpected: ") + error.what());
  }
  std::cout.flush();
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout) && status == 0) {
    complain(name_, "standard output cannot be written (full disk or closed pipe); free space or read all of it");
    status = base::exit_status_of(base::Code::io);
  }
  return status;
}

int Program::dispatch(std::vector<std::string> arguments) {
  // Common flags may stand before the verb; they are handed to it.
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at][0] == '-') {
    const std::string& flag = arguments[at];
    if (flag == "--help" || flag == "-h") {
      std::cout << help();
      return 0;
    }
    if (flag == "--version") {
      std::cout << name_ << " " ZHT_VERSION "\n";
      return 0;
    }
    at += takes_value(flag) ? 2 : 1;
  }
  if (at >= arguments.size()) {
    if (!arguments.empty() && arguments[0][0] == '-') {
      static const std::vector<std::string> common{"--json", "--quiet", "-q", "-v", "--verbose"};
      const std::string flag = arguments[0].substr(0, arguments[0].find('='));
      if (!takes_value(flag) && std::find(common.begin(), common.end(), flag) == common.end())
        return usage_error("unknown option '" + arguments[0] + "'", name_);
    }
    return usage_error("no verb given", name_);
  }
  if (arguments[at] == "help") {
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
    if (at >= arguments.size()) {
      std::cout << help();
      return 0;
    }
    arguments.push_back("--help");
  }
  // The longest verb that matches: "ec set" before "ec".
  Verb* found = nullptr;
  std::size_t words = 0;
  for (const auto& verb : verbs_) {
    const auto count = static_cast<std::size_t>(std::count(verb->name_.begin(), verb->name_.end(), ' ')) + 1;
    if (at + count > arguments.size() || count <= words) continue;
    std::string typed = arguments[at];
    for (std::size_t i = 1; i < count; i++) typed += " " + arguments[at + i];
    if (typed != verb->name_) continue;
    found = verb.get();
    words = count;
  }
  if (const auto rest = words_after(arguments[at]); !found && !rest.empty()) {
    const bool asks = at + 1 < arguments.size() && (arguments[at + 1] == "--help" || arguments[at + 1] == "-h");
    if (asks) {
      std::cout << help(arguments[at] + " ");
      return 0;
    }
    return usage_error(at + 1 < arguments.size() ? "'" + arguments[at] + " " + arguments[at + 1] + "' is no verb; " + rest
                                                 : "'" + arguments[at] + "' alone is no verb; " + rest,
                       name_ + " " + arguments[at]);
  }
  if (!found) {
    const std::string near = nearest(arguments[at]);
    return usage_error("unknown verb '" + arguments[at] + "'" + (near.empty() ? "" : ", did you mean '" + near + "'?"),
                       name_);
  }
  const auto first = arguments.begin() + static_cast<std::ptrdiff_t>(at);
  arguments.erase(first, first + static_cast<std::ptrdiff_t>(words));
  return run_verb(*found, std::move(arguments));
}

int Program::run_verb(Verb& verb, std::vector<std::string> arguments) {
  const std::string title = name_ + " " + verb.name_;
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    verb.app_->parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    std::cout << show_examples(verb.examples_) << verb.app_->help();
    return 0;
  } catch (const CLI::ParseError& error) {
    return usage_error(describe(error, *verb.app_), title);
  }
  if (auto set = set_log({.level = level_from(common_.verbosity, Level::warn)}); !set) {
    complain(name_, set.error().message);
    return base::exit_status_of(set.error().code);
  }
  CHECK(verb.action_ != nullptr, verb.name_);
  auto result = verb.action_();
  if (result) return *result;
  complain(name_, result.error().message);
  return base::exit_status_of(result.error().code);
}

}  // namespace support

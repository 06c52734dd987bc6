// The operations on keys.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/tool/pipe_line.h"
#include "zht/tool/values.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using nlohmann::json;

// Everything a verb on one key was told; verbs use what they have options for.
struct Request {
  std::string key;
  ValueSource value;
  Millis ttl{0};
  std::uint64_t limit = 0, version = 0, after = 0, offset = 0, size = 0, tail = 0;
  bool only_new = false, missing_ok = false, raw = false, absent = false, present = false, changed = false,
       removes = false;
  bool info = false, eventual = false;
  std::string expect, equals, procedure, arguments;
};

std::shared_ptr<Request> add_key(CLI::App& app) {
  auto request = std::make_shared<Request>();
  app.add_option("key", request->key, "1 to 65535 bytes; keys that begin with one {tag} live together")->required();
  return request;
}

// One operation, its errors about its key.
Result<Outcome> run(support::Program& program, Operation operation, Millis timeout = {}) {
  const bool looks = operation.kind == OpKind::lookup || operation.kind == OpKind::callback;
  TRY_LET(client, connect(looks ? program.common().looking_options() : program.common().client_options()));
  const std::string key = operation.key;
  Outcome outcome = client->call(std::move(operation), timeout);
  if (!outcome.ok()) {
    if (outcome.code == Code::conflict && program.common().json) return outcome;
    return error_of(outcome, key);
  }
  return outcome;
}

void print_version(const support::Program& program, const Outcome& outcome, json more = json::object()) {
  if (!program.common().json) return;
  more["version"] = outcome.version;
  support::print_json(more);
}

json value_json(const std::string& key, const Outcome& outcome) {
  json value;
  put_bytes(value, "key", key);
  if (outcome.present) {
    put_bytes(value, "value", outcome.value);
    value["size_bytes"] = outcome.size;
    value["offset"] = outcome.offset;
    value["fragment_count"] = outcome.fragment_count;
  } else {
    value["value"] = nullptr;
  }
  value["version"] = outcome.version;
  return value;
}

void add_insert(support::Program& program) {
  auto& verb = program.verb("insert", "Sets the value of a key.",
                            {"zht insert greeting hello", "zht insert picture --file p.jpg --ttl 1h"});
  auto request = add_key(verb.options());
  request->value.add_to(verb.options(), "value", "the value");
  support::add_duration(verb.options(), "--ttl", request->ttl, "forget the key after this long");
  verb.options().add_flag("--new", request->only_new, "only when the key is not there (exit status 4 when it is)");
  verb.action([&program, &verb, request]() -> Result<int> {
    if (verb.options().get_option("value")->count() == 0 && request->value.file.empty())
      return fail(Code::invalid, "value is missing; try 'zht insert --help'");
    TRY_LET(value, request->value.read());
    Operation operation = request->only_new ? Operation::insert_new(request->key, std::move(value), request->ttl)
                                            : Operation::insert(request->key, std::move(value), request->ttl);
    TRY_LET(outcome, run(program, std::move(operation)));
    print_version(program, outcome);
    return base::exit_status_of(outcome.code);
  });
}

void add_lookup(support::Program& program) {
  auto& verb = program.verb("lookup", "Prints the value of a key.",
                            {"zht lookup greeting", "zht lookup log --tail 3", "zht lookup greeting --eventual"});
  auto request = add_key(verb.options());
  verb.options().add_flag("--raw", request->raw, "the bytes alone, no newline after them");
  verb.options().add_option("--offset", request->offset, "first byte to print");
  verb.options().add_option("--size", request->size, "how many bytes at most");
  verb.options().add_option("--tail", request->tail, "the last so many fragments: what the last appends added")->check(CLI::PositiveNumber);
  verb.options().add_flag("--info", request->info, "version, size and fragments instead of the value");
  auto* const eventual = verb.options().add_flag("--eventual", request->eventual, "of any copy, which may be old: also while nobody leads");
  verb.options().add_option("--at-least", request->version, "only of a copy that has seen this version of the partition")->needs(eventual);
  verb.action([&program, &verb, request]() -> Result<void> {
    Range range;
    const bool part = verb.options().get_option("--offset")->count() + verb.options().get_option("--size")->count() > 0;
    if (part && request->tail > 0) return fail(Code::invalid, "--tail and --offset or --size are given; leave one out");
    if (part) range = Range::bytes(request->offset, request->size > 0 ? request->size : UINT64_MAX - request->offset);
    if (request->tail > 0) range = Range::tail(request->tail);
    if (request->info) range = Range::nothing();
    TRY_LET(outcome, run(program, request->eventual ? Operation::lookup_eventual(request->key, request->version, range)
                                                    : Operation::lookup(request->key, range)));
    if (program.common().json) {
      json value = value_json(request->key, outcome);
      if (request->info) value.erase("value");
      support::print_json(value);
    } else if (request->info) {
      support::Table table({"VERSION", "SIZE", "FRAGMENTS"});
      table.row(
          {std::to_string(outcome.version), support::human_size(outcome.size), std::to_string(outcome.fragment_count)});
      table.print();
    } else {
      print_value(outcome.value, request->raw);
    }
    return {};
  });
}

void add_remove(support::Program& program) {
  auto& verb = program.verb("remove", "Removes a key.", {"zht remove greeting", "zht remove greeting --missing-ok"});
  auto request = add_key(verb.options());
  verb.options().add_flag("--missing-ok", request->missing_ok, "fine when it is not there");
  verb.options().add_option("--version", request->version, "only when this is the key's version");
  verb.action([&program, request]() -> Result<int> {
    Operation operation = Operation::remove(request->key, request->missing_ok);
    if (request->version != 0) operation.condition = Condition::at_version(request->version);
    TRY_LET(outcome, run(program, std::move(operation)));
    print_version(program, outcome);
    return base::exit_status_of(outcome.code);
  });
}

void add_append(support::Program& program) {
  auto& verb = program.verb("append", "Adds to the end of a key's value; an absent key is made.",
                            {"zht append log 'one more line'", "date | zht append log - --limit 1MiB"});
  auto request = add_key(verb.options());
  request->value.add_to(verb.options(), "value", "what to add");
  support::add_size(verb.options(), "--limit", request->limit, "refuse to grow the value past this (exit status 6)");
  verb.action([&program, &verb, request]() -> Result<void> {
    if (verb.options().get_option("value")->count() == 0 && request->value.file.empty())
      return fail(Code::invalid, "value is missing; try 'zht append --help'");
    TRY_LET(value, request->value.read());
    TRY_LET(outcome, run(program, Operation::append(request->key, std::move(value), request->limit)));
    print_version(program, outcome, {{"size_bytes", outcome.size}, {"fragment_index", outcome.fragment_index}});
    return {};
  });
}

void add_cswap(support::Program& program) {
  auto& verb =
      program.verb("cswap", "Replaces a key's value only when it is the expected one (exit status 4 when it is not).",
                   {"zht cswap counter 41 42", "zht cswap lock --absent me"});
  auto request = add_key(verb.options());
  auto words = std::make_shared<std::vector<std::string>>();
  verb.options()
      .add_option("values", *words,
                  "EXPECTED NEW; or only NEW after --absent or --version; - reads NEW from standard input")
      ->expected(0, 2);
  verb.options().add_option("--file", request->value.file, "read the new value from this file");
  verb.options().add_flag("--absent", request->absent, "expect that the key is not there");
  verb.options().add_option("--version", request->version, "expect this version");
  verb.options().add_flag("--remove", request->removes, "remove the key instead of giving it a new value");
  support::add_duration(verb.options(), "--ttl", request->ttl, "forget the key after this long");
  verb.action([&program, &verb, request, words]() -> Result<int> {
    const bool by_version = verb.options().get_option("--version")->count() > 0;
    if (request->absent && by_version) return fail(Code::invalid, "--absent and --version are given; leave one out");
    const bool by_value = !request->absent && !by_version;
    const bool new_word = !request->removes && request->value.file.empty();
    const std::size_t wanted = (by_value ? 1u : 0u) + (new_word ? 1u : 0u);
    if (words->size() != wanted)
      return fail(Code::invalid, words->size(), " values are given, ", wanted,
                  " needed", by_value && new_word ? " (expected, new)" : by_value ? " (expected)" : new_word ? " (new)" : "",
                  "; try 'zht cswap --help'");
    const Condition expected = request->absent ? Condition::absent()
                               : by_version    ? Condition::at_version(request->version)
                                               : Condition::equals((*words)[0]);
    if (new_word) request->value.argument = words->back();
    std::string desired;
    if (!request->removes) {
      TRY_LET(value, request->value.read());
      desired = std::move(value);
    }
    Operation operation = request->removes ? Operation::cswap_remove(request->key, expected)
                                           : Operation::cswap(request->key, expected, std::move(desired), request->ttl);
    TRY_LET(client, connect(program.common().client_options()));
    const Outcome outcome = client->call(std::move(operation));
    if (!outcome.ok() && outcome.code != Code::conflict) return error_of(outcome, request->key);
    if (program.common().json) {
      json answer{{"swapped", outcome.ok()}, {"version", outcome.version}};
      if (!outcome.ok() && outcome.present)
        put_bytes(answer, "current", outcome.value);
      else if (!outcome.ok())
        answer["current"] = nullptr;
      support::print_json(answer);
    } else if (!outcome.ok()) {
      return fail(Code::conflict, "key \"", base::escape(request->key, 60), "\" ",
                  outcome.present ? "holds \"" + base::escape(outcome.value, 60) + "\" (version " +
                                        std::to_string(outcome.version) + ")"
                                  : std::string("is not there"),
                  "; nothing was changed");
    }
    return base::exit_status_of(outcome.code);
  });
}

void add_callback(support::Program& program) {
  auto& verb = program.verb(
      "callback",
      "Waits until a key changes or is as wanted, and prints its value (exit status 5 when --timeout ends first).",
      {"zht callback counter --changed", "zht callback state --equals done --timeout 1min"});
  auto request = add_key(verb.options());
  verb.options().add_flag("--changed", request->changed, "until it changes, from now on (the default)");
  verb.options().add_option("--equals", request->equals, "until it has this value");
  verb.options().add_flag("--present", request->present, "until it is there");
  verb.options().add_flag("--absent", request->absent, "until it is not there");
  verb.options().add_option("--after", request->after, "until its version is later than this");
  verb.options().add_flag("--raw", request->raw, "the bytes alone, no newline after them");
  verb.action([&program, &verb, request]() -> Result<void> {
    const bool equals = verb.options().get_option("--equals")->count() > 0,
               after = verb.options().get_option("--after")->count() > 0;
    if (int{request->changed} + int{equals} + int{request->present} + int{request->absent} + int{after} > 1)
      return fail(Code::invalid,
                  "more than one condition is given; leave one of --changed, --equals, --present, --absent, --after");
    TRY_LET(client, connect(program.common().looking_options()));
    Condition condition = Condition::after_version(request->after);
    if (equals)
      condition = Condition::equals(request->equals);
    else if (request->present)
      condition = Condition::present();
    else if (request->absent)
      condition = Condition::absent();
    else if (!after) {
      const Outcome seen = client->call(Operation::lookup(request->key, Range::nothing()));
      if (!seen.ok() && seen.code != Code::not_found) return error_of(seen, request->key);
      condition = Condition::after_version(seen.version);
    }
    constexpr Millis for_ever = std::chrono::hours(24 * 365);
    const Millis timeout = program.common().timeout.count() > 0 ? program.common().timeout : for_ever;
    const Outcome outcome = client->call(Operation::callback(request->key, condition), timeout);
    if (!outcome.ok()) return error_of(outcome, request->key);
    if (program.common().json)
      support::print_json(value_json(request->key, outcome));
    else if (outcome.present)
      print_value(outcome.value, request->raw);
    return {};
  });
}

void add_update(support::Program& program) {
  auto& verb = program.verb("update", "Runs a procedure of the store on a key and prints its result.",
                            {"zht update counter add 1", "zht update highest max 17"});
  auto request = add_key(verb.options());
  verb.options()
      .add_option("procedure", request->procedure, "add, max, set_if, list_take, or one of a service")
      ->required();
  verb.options().add_option("arguments", request->arguments,
                            "what the procedure is given; after -- when it begins with a dash");
  verb.options().add_flag("--raw", request->raw, "the bytes alone, no newline after them");
  verb.action([&program, request]() -> Result<void> {
    TRY_LET(outcome, run(program, Operation::update(request->key, request->procedure, request->arguments)));
    if (!program.common().json) {
      print_value(outcome.value, request->raw);
      return {};
    }
    json answer;
    put_bytes(answer, "result", outcome.value);
    support::print_json(answer);
    return {};
  });
}

void add_scan(support::Program& program) {
  auto& verb =
      program.verb("scan", "Lists keys, with their versions and sizes.", {"zht scan", "zht scan user: --json"});
  struct Options {
    std::string prefix;
    std::uint64_t limit = 0;
    std::optional<std::uint32_t> partition;
    bool count = false;
  };
  auto options = std::make_shared<Options>();
  verb.options().add_option("prefix", options->prefix, "only keys that begin so");
  verb.options().add_option("--limit", options->limit, "at most so many");
  verb.options().add_option("--partition", options->partition, "only this partition");
  verb.options().add_flag("--count", options->count, "only how many");
  verb.action([&program, options]() -> Result<void> {
    TRY_LET(client, connect(program.common().looking_options()));
    std::uint32_t first = 0, last = client->partition_count();
    // A whole tag in the prefix says where all such keys are.
    if (hash_tag(options->prefix).size() != options->prefix.size())
      options->partition = static_cast<std::uint32_t>(partition_of(options->prefix, client->partition_count()));
    if (options->partition) first = *options->partition, last = first + 1;
    std::uint64_t found = 0;
    json list = json::array();
    for (std::uint32_t partition = first; partition < last; partition++) {
      std::uint64_t cursor = 0;
      do {
        const Outcome page = client->call(Operation::scan(PartitionId{partition}, cursor, options->prefix, 1000));
        if (!page.ok()) return base::add_context("partition " + std::to_string(partition), page.error());
        for (const ScanEntry& entry : page.entries) {
          if (options->limit > 0 && found == options->limit) break;
          found++;
          if (options->count) continue;
          if (program.common().json) {
            json one{{"version", entry.version}, {"size_bytes", entry.size}};
            put_bytes(one, "key", entry.key);
            list.push_back(std::move(one));
          } else {
            std::cout << base::escape(entry.key, kMaxKeySize) << "\t" << entry.version << "\t" << entry.size << "\n";
          }
        }
        cursor = page.cursor;
      } while (cursor != 0 && (options->limit == 0 || found < options->limit));
      if (options->limit > 0 && found == options->limit) break;
    }
    if (options->count && !program.common().json) std::cout << found << "\n";
    if (program.common().json) support::print_json(options->count ? json{{"count", found}} : list);
    return {};
  });
}

void add_batch(support::Program& program) {
  auto& verb = program.verb(
      "batch", "Runs the operations of a file or of stdin, lines as `zht pipe` takes them, as one: all or none.",
      {"zht batch changes.jsonl",
       R"(printf '%s\n' '{"op":"insert","key":"{t}a","value":"1"}' '{"op":"remove","key":"{t}b"}' | zht batch)"});
  auto file = std::make_shared<std::string>("-");
  verb.options().add_option("file", *file, "one JSON operation a line, keys of one {tag}; - is standard input");
  verb.action([&program, file]() -> Result<int> {
    ValueSource source;
    if (*file == "-")
      source.argument = "-";
    else
      source.file = *file;
    TRY_LET(text, source.read());
    std::vector<Operation> operations;
    std::istringstream lines(text);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      number++;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      auto parsed = parse_line(line);
      if (!parsed)
        return base::add_context((*file == "-" ? "standard input" : *file) + ":" + std::to_string(number),
                                 std::move(parsed).error());
      operations.push_back(std::move(parsed->operation));
    }
    TRY_LET(client, connect(program.common().client_options()));
    const Outcome outcome = client->call(Operation::batch(operations));
    if (!outcome.ok()) return outcome.error();  // names the operation
    json answers = json::array();
    for (std::size_t i = 0; i < outcome.outcomes.size(); i++)
      answers.push_back(json::parse(answer_of(operations[i], outcome.outcomes[i])));
    if (program.common().json)
      support::print_json(answers);
    else
      for (const json& answer : answers) std::cout << answer.dump() << "\n";
    return 0;
  });
}

}  // namespace

void add_key_verbs(support::Program& program) {
  add_insert(program);
  add_lookup(program);
  add_remove(program);
  add_append(program);
  add_cswap(program);
  add_callback(program);
  add_update(program);
  add_scan(program);
  add_batch(program);
}

}  // namespace zht::tool

#include "zht/resp/commands.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "zht/resp/scan.h"

namespace zht::resp {
namespace {

using Outcomes = std::vector<Outcome>;

// Of one transaction: what it queues must fit one request of the store.
constexpr std::size_t kMaxQueued = std::size_t{15} << 20;
constexpr std::size_t kMaxQueuedCommands = 10'000;
constexpr std::string_view kNoInteger = "ERR value is not an integer or out of range";

// What planning has at hand.
struct Context {
  Session& session;
  Command& command;
  std::uint32_t partition_count;

  std::string& word(std::size_t i) { return command[i]; }
  Plan error(std::string_view text) const {
    return ready([&](Reply& out) { out.error(text); });
  }
  template <typename Write>
  Plan ready(Write write) const {
    Plan plan;
    Reply out(plan.reply, session.protocol);
    write(out);
    return plan;
  }
  Plan ok() const {
    return ready([](Reply& out) { out.simple("OK"); });
  }
};

void add_failure(Reply& out, const Outcome& outcome) {
  const char* kind = outcome.code == Code::no_space      ? "OOM "
                     : outcome.code == Code::unavailable ? "TRYAGAIN "
                     : outcome.code == Code::timeout     ? "TIMEOUT it may have happened: "
                     : outcome.code == Code::io          ? "MISCONF "
                                                         : "ERR ";
  out.error(kind + outcome.message);
}

// One operation whose outcome `render` puts into words; errors other than `expected` become error replies.
template <typename Render>
Plan one(Operation operation, Render render, Code expected = Code::ok) {
  Plan plan;
  plan.operations.push_back(std::move(operation));
  plan.render = [render = std::move(render), expected](Outcomes& outcomes, const Facts&, Reply& out) {
    const Outcome& outcome = outcomes[0];
    outcome.ok() || outcome.code == expected ? render(outcome, out) : add_failure(out, outcome);
  };
  return plan;
}

void value_or_nil(const Outcome& outcome, Reply& out) { outcome.present ? out.bulk(outcome.value) : out.nil(); }
std::int64_t whole(std::uint64_t number) { return static_cast<std::int64_t>(number); }

// The whole command inside the store, atomically: its keys have one tag.
Plan in_store(Context& context) {
  context.command[0] = upper(context.command[0]);
  const std::string key = context.word(1);
  Script script{context.session.protocol, false, {}, {}};
  script.commands.push_back(std::move(context.command));
  return one(Operation::update(key, std::string(kProcedure), encode(script)),
             [](const Outcome& outcome, Reply& out) { out.raw(outcome.value); });
}

bool one_tag(const std::vector<std::string_view>& keys) {
  return std::all_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return hash_tag(key) == hash_tag(keys[0]); });
}

constexpr std::string_view kCrossSlot = "CROSSSLOT Keys in request don't hash to the same slot; give them one {tag}";

Plan in_store_with_one_tag(Context& context) {
  return one_tag(keys_of(*find_spec(upper(context.word(0))), context.command)) ? in_store(context)
                                                                               : context.error(kCrossSlot);
}

// --- strings ---

Plan get(Context& context) { return one(Operation::lookup(std::move(context.word(1))), value_or_nil, Code::not_found); }

// The usual forms are one plain operation; the others run inside the store, which also words their errors.
Plan set(Context& context) {
  Command& command = context.command;
  bool nx = false, xx = false, timed = false;
  std::int64_t ttl = 0;
  for (std::size_t i = 3; i < command.size(); i++) {
    const std::string option = upper(command[i]);
    std::int64_t number = 0;
    if (set_flag(option, {{"NX", &nx}, {"XX", &xx}})) continue;
    if ((option == "EX" || option == "PX") && i + 1 < command.size() && !timed &&
             read_integer(command[i + 1], number) && read_expiry(option, number, 0, ttl)) {
      timed = true;
      i++;
    } else
      return in_store(context);
  }
  if (nx && xx) return in_store(context);
  const std::chrono::milliseconds time(ttl);
  Operation operation = xx ? Operation::cswap(std::move(command[1]), Condition::present(), std::move(command[2]), time)
                           : Operation::insert(std::move(command[1]), std::move(command[2]), time);
  if (nx) operation.condition = Condition::absent();
  return one(
      std::move(operation), [](const Outcome& outcome, Reply& out) { outcome.ok() ? out.simple("OK") : out.nil(); },
      nx || xx ? Code::conflict : Code::ok);
}

Plan setnx(Context& context) {
  return one(
      Operation::insert_new(std::move(context.word(1)), std::move(context.word(2))),
      [](const Outcome& outcome, Reply& out) { out.integer(outcome.ok() ? 1 : 0); }, Code::conflict);
}

Plan append(Context& context) {
  return one(Operation::append(std::move(context.word(1)), std::move(context.word(2))),
             [](const Outcome& outcome, Reply& out) { out.integer(whole(outcome.size)); });
}

Plan strlen(Context& context) {
  return one(
      Operation::lookup(std::move(context.word(1)), Range::nothing()),
      [](const Outcome& outcome, Reply& out) { out.integer(outcome.ok() ? whole(outcome.size) : 0); }, Code::not_found);
}

// Both ends count; negative ones, from the value's end, are resolved inside the store.
Plan getrange(Context& context) {
  std::int64_t first = 0, last = 0;
  if (!read_integer(context.word(2), first) || !read_integer(context.word(3), last)) return context.error(kNoInteger);
  if (first < 0 || last < first || last == INT64_MAX) return in_store(context);
  const auto range = Range::bytes(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last - first) + 1);
  return one(
      Operation::lookup(std::move(context.word(1)), range),
      [](const Outcome& outcome, Reply& out) {
        out.bulk(outcome.ok() ? std::string_view(outcome.value) : std::string_view());
      },
      Code::not_found);
}

// --- several keys: each on its own, together on the way ---

template <typename Make>
Plan count_of(Context& context, Make make) {
  Plan plan;
  for (std::size_t i = 1; i < context.command.size(); i++) plan.operations.push_back(make(std::move(context.word(i))));
  plan.render = [](Outcomes& outcomes, const Facts&, Reply& out) {
    std::int64_t count = 0;
    for (const Outcome& outcome : outcomes) {
      if (outcome.ok())
        count++;
      else if (outcome.code != Code::not_found)
        return add_failure(out, outcome);
    }
    out.integer(count);
  };
  return plan;
}
Plan del(Context& context) {
  return count_of(context, [](std::string key) { return Operation::remove(std::move(key)); });
}
Plan exists(Context& context) {
  return count_of(context, [](std::string key) { return Operation::lookup(std::move(key), Range::nothing()); });
}

Plan mget(Context& context) {
  Plan plan;
  for (std::size_t i = 1; i < context.command.size(); i++)
    plan.operations.push_back(Operation::lookup(std::move(context.word(i))));
  plan.render = [](Outcomes& outcomes, const Facts&, Reply& out) {
    for (const Outcome& outcome : outcomes)
      if (!outcome.ok() && outcome.code != Code::not_found) return add_failure(out, outcome);
    out.array(outcomes.size());
    for (const Outcome& outcome : outcomes) value_or_nil(outcome, out);
  };
  return plan;
}

// One atomic batch when all keys are in one partition; else each key by itself (MSET), or refused (MSETNX).
Plan mset(Context& context, bool only_new) {
  Command& command = context.command;
  if (command.size() % 2 == 0) return context.error(wrong_arity(command[0]));
  std::vector<Operation> all;
  bool together = true;
  for (std::size_t i = 1; i < command.size(); i += 2) {
    together &= partition_of(command[i], context.partition_count) == partition_of(command[1], context.partition_count);
    all.push_back(only_new ? Operation::insert_new(command[i], std::move(command[i + 1]))
                           : Operation::insert(command[i], std::move(command[i + 1])));
  }
  if (together && all.size() <= kMaxBatchSize)
    return one(
        Operation::batch(std::move(all)),
        [only_new](const Outcome& outcome, Reply& out) {
          if (only_new)
            out.integer(outcome.ok() ? 1 : 0);
          else
            out.simple("OK");
        },
        only_new ? Code::conflict : Code::ok);
  if (only_new) return context.error(kCrossSlot);
  Plan plan;
  plan.operations = std::move(all);
  plan.render = [](Outcomes& outcomes, const Facts&, Reply& out) {
    for (const Outcome& outcome : outcomes)
      if (!outcome.ok()) return add_failure(out, outcome);
    out.simple("OK");
  };
  return plan;
}

// --- transactions ---

Plan queue(Context& context, const Spec& spec) {
  Session& session = context.session;
  for (const std::string& word : context.command) session.queued_bytes += word.size() + 16;
  if (session.queued_bytes > kMaxQueued || session.queued.size() >= kMaxQueuedCommands) {
    session.spoiled = true;
    return context.error("ERR a transaction holds at most 10000 commands and 15 MiB");
  }
  context.command[0] = std::string(spec.name);
  session.queued.push_back(std::move(context.command));
  return context.ready([](Reply& out) { out.simple("QUEUED"); });
}

// With one tag: atomically, inside the store. With several, or with commands that do not run there: one after another,
// as Redis's replies have them but not as one; a WATCH could then not be kept, so it is refused.
Plan exec(Context& context) {
  Session& session = context.session;
  if (!session.in_multi) return context.error("ERR EXEC without MULTI");
  Script script{session.protocol, true, std::move(session.watched), std::move(session.queued)};
  const bool spoiled = session.spoiled;
  session.end_multi();
  if (spoiled) return context.error("EXECABORT Transaction discarded because of previous errors.");
  std::vector<std::string_view> keys;
  bool inside = true;
  for (const Watched& one : script.watched) keys.push_back(one.key);
  for (const Command& command : script.commands) {
    const Spec* spec = find_spec(command[0]);
    inside &= spec->in_store;
    for (std::string_view key : keys_of(*spec, command)) keys.push_back(key);
  }
  if (!keys.empty() && inside && one_tag(keys))
    return one(Operation::update(std::string(keys[0]), std::string(kProcedure), encode(script)),
               [](const Outcome& outcome, Reply& out) { out.raw(outcome.value); });
  if (!script.watched.empty()) return context.error(kCrossSlot);
  Plan plan = context.ready([&](Reply& out) { out.array(script.commands.size()); });
  plan.follow = std::move(script.commands);
  return plan;
}

Plan watch(Context& context) {
  if (context.session.in_multi) return context.error("ERR WATCH inside MULTI is not allowed");
  Plan plan;
  auto keys = std::make_shared<std::vector<std::string>>(context.command.begin() + 1, context.command.end());
  if (context.session.watched.size() + keys->size() > 1000)
    return context.error("ERR at most 1000 keys can be watched");
  for (const std::string& key : *keys) plan.operations.push_back(Operation::lookup(key, Range::nothing()));
  plan.barrier = true;
  plan.render = [keys, &session = context.session](Outcomes& outcomes, const Facts&, Reply& out) {
    for (const Outcome& outcome : outcomes)
      if (!outcome.ok() && outcome.code != Code::not_found) return add_failure(out, outcome);
    for (std::size_t i = 0; i < outcomes.size(); i++)
      session.watched.push_back({(*keys)[i], outcomes[i].ok() ? outcomes[i].version : 0});
    out.simple("OK");
  };
  return plan;
}

Plan discard(Context& context) {
  if (!context.session.in_multi) return context.error("ERR DISCARD without MULTI");
  context.session.end_multi();
  return context.ok();
}

// --- the store's own ---

// ZHT.CSWAP key expected new | key VERSION n new
Plan cswap(Context& context) {
  Command& command = context.command;
  Condition condition;
  std::int64_t version = 0;
  if (command.size() == 4)
    condition = Condition::equals(std::move(command[2]));
  else if (command.size() == 5 && upper(command[2]) == "VERSION" && read_integer(command[3], version) && version > 0)
    condition = Condition::at_version(static_cast<Version>(version));
  else
    return context.error("ERR syntax error; ZHT.CSWAP key expected new, or ZHT.CSWAP key VERSION n new");
  return one(
      Operation::cswap(std::move(command[1]), std::move(condition), std::move(command.back())),
      [](const Outcome& outcome, Reply& out) { outcome.ok() ? out.integer(whole(outcome.version)) : out.nil(); },
      Code::conflict);
}

Plan callback(Context& context) {
  Command& command = context.command;
  std::int64_t timeout = 0, after = 0;
  if (!read_integer(command[2], timeout) || timeout < 0 || timeout > 1'000'000'000)
    return context.error("ERR timeout is not a number of milliseconds");
  Condition condition = Condition::present();
  if (command.size() > 3) {
    const std::string kind = upper(command[3]);
    if (kind == "VALUE" && command.size() == 5)
      condition = Condition::equals(std::move(command[4]));
    else if (kind == "AFTER" && command.size() == 5 && read_integer(command[4], after) && after >= 0)
      condition = Condition::after_version(static_cast<Version>(after));
    else if (kind == "ABSENT" && command.size() == 4)
      condition = Condition::absent();
    else if (kind != "PRESENT" || command.size() != 4)
      return context.error("ERR syntax error");
  }
  Plan plan = one(
      Operation::callback(std::move(command[1]), std::move(condition)),
      [](const Outcome& outcome, Reply& out) {
        if (!outcome.ok()) return out.nil();
        out.array(2);
        out.integer(whole(outcome.version));
        value_or_nil(outcome, out);
      },
      Code::timeout);
  plan.timeout = std::chrono::milliseconds(std::max<std::int64_t>(1, timeout));
  return plan;
}

Plan version(Context& context) {
  return one(
      Operation::lookup(std::move(context.word(1)), Range::nothing()),
      [](const Outcome& outcome, Reply& out) { outcome.ok() ? out.integer(whole(outcome.version)) : out.nil(); },
      Code::not_found);
}

// ZHT.BATCH INSERT k v | NEW k v | LOOKUP k | REMOVE k | APPEND k v | CSWAP k expected new | ABSENT k ...: all or
// nothing on keys of one partition. Answers each with its version (APPEND: the length, LOOKUP: the value).
Plan batch(Context& context) {
  Command& command = context.command;
  std::vector<Operation> all;
  for (std::size_t i = 1; i < command.size();) {
    const std::string name = upper(command[i]);
    const std::size_t words = name == "CSWAP" ? 4 : name == "LOOKUP" || name == "REMOVE" || name == "ABSENT" ? 2 : 3;
    if (i + words > command.size()) return context.error("ERR ZHT.BATCH: " + name + " lacks arguments");
    std::string& key = command[i + 1];
    if (name == "INSERT")
      all.push_back(Operation::insert(std::move(key), std::move(command[i + 2])));
    else if (name == "NEW")
      all.push_back(Operation::insert_new(std::move(key), std::move(command[i + 2])));
    else if (name == "LOOKUP")
      all.push_back(Operation::lookup(std::move(key)));
    else if (name == "REMOVE")
      all.push_back(Operation::remove(std::move(key)));
    else if (name == "ABSENT")
      all.push_back(Operation::check(std::move(key), Condition::absent()));
    else if (name == "APPEND")
      all.push_back(Operation::append(std::move(key), std::move(command[i + 2])));
    else if (name == "CSWAP")
      all.push_back(
          Operation::cswap(std::move(key), Condition::equals(std::move(command[i + 2])), std::move(command[i + 3])));
    else
      return context.error("ERR ZHT.BATCH: unknown operation '" + base::escape(command[i], 64) + "'");
    i += words;
  }
  auto kinds = std::make_shared<std::vector<OpKind>>();
  for (const Operation& operation : all) kinds->push_back(operation.kind);
  Plan plan;
  plan.operations.push_back(Operation::batch(std::move(all)));
  plan.render = [kinds](Outcomes& outcomes, const Facts&, Reply& out) {
    const Outcome& outcome = outcomes[0];
    if (outcome.code == Code::conflict || outcome.code == Code::not_found)
      return out.error("CONFLICT " + outcome.message);
    if (!outcome.ok()) return add_failure(out, outcome);
    out.array(outcome.outcomes.size());
    for (std::size_t i = 0; i < outcome.outcomes.size(); i++) {
      const Outcome& part = outcome.outcomes[i];
      if ((*kinds)[i] == OpKind::lookup)
        value_or_nil(part, out);
      else
        out.integer(whole((*kinds)[i] == OpKind::append ? part.size : part.version));
    }
  };
  return plan;
}

// --- the connection and the node ---

Plan ping(Context& context) {
  if (context.command.size() > 2) return context.error(wrong_arity("ping"));
  return context.ready(
      [&](Reply& out) { context.command.size() == 2 ? out.bulk(context.word(1)) : out.simple("PONG"); });
}

// Why not; empty: the connection is let in.
std::string authenticate(Session& session, const std::string& user, const std::string& password) {
  if (session.prover == nullptr)
    return "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
           "configuration is correct?";
  if (!session.prover->admits(user, password)) return "WRONGPASS invalid username-password pair or user is disabled.";
  session.authenticated = true;
  return {};
}

Plan auth(Context& context) {
  const Command& command = context.command;
  if (command.size() > 3) return context.error("ERR syntax error");
  const std::string refusal = authenticate(context.session, command.size() == 3 ? command[1] : "default", command.back());
  return refusal.empty() ? context.ok() : context.error(refusal);
}

Plan hello(Context& context) {
  Session& session = context.session;
  const Command& command = context.command;
  std::int64_t wanted = session.protocol;
  std::string name = session.name;
  if (command.size() > 1 && !read_integer(command[1], wanted))
    return context.error("ERR Protocol version is not an integer or out of range");
  if (wanted != 2 && wanted != 3) return context.error("NOPROTO unsupported protocol version");
  for (std::size_t i = 2; i < command.size(); i++) {
    if (upper(command[i]) == "SETNAME" && i + 1 < command.size())
      name = command[++i];
    else if (upper(command[i]) == "AUTH" && i + 2 < command.size()) {
      if (const std::string refusal = authenticate(session, command[i + 1], command[i + 2]); !refusal.empty())
        return context.error(refusal);
      i += 2;
    }
    else
      return context.error("ERR Syntax error in HELLO option '" + base::escape(command[i], 64) + "'");
  }
  if (!session.let_in())
    return context.error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
                         "<pass> option can be used to authenticate the client and select the RESP protocol version at the same time");
  session.protocol = static_cast<int>(wanted);
  session.name = name;
  return context.ready([&](Reply& out) {
    out.map(7);
    for (const char* text : {"server", "redis", "version", "7.0.0", "proto"}) out.bulk(text);
    out.integer(session.protocol);
    out.bulk("id");
    out.integer(whole(session.id));
    for (const char* text : {"mode", "standalone", "role", "master", "modules"}) out.bulk(text);
    out.array(0);
  });
}

std::string describe(const Session& session) {
  return "id=" + std::to_string(session.id) + " addr=" + session.peer + " name=" + session.name +
         " db=0 multi=" + std::to_string(session.in_multi ? session.queued.size() : 0) +
         " resp=" + std::to_string(session.protocol) + " lib-name=" + session.library +
         " lib-ver=" + session.library_version + "\n";
}

Plan client(Context& context) {
  Session& session = context.session;
  const Command& command = context.command;
  const std::string what = upper(command[1]);
  const auto printable = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  };
  if (what == "ID" && command.size() == 2) return context.ready([&](Reply& out) { out.integer(whole(session.id)); });
  if (what == "GETNAME" && command.size() == 2)
    return context.ready([&](Reply& out) { session.name.empty() ? out.nil() : out.bulk(session.name); });
  if (what == "SETNAME" && command.size() == 3) {
    if (!printable(command[2]) || command[2].size() > 1024)
      return context.error("ERR Client names cannot contain spaces, newlines or special characters.");
    session.name = command[2];
    return context.ok();
  }
  if (what == "SETINFO" && command.size() == 4) {
    const std::string attribute = upper(command[2]);
    if (!printable(command[3]) || command[3].size() > 1024)
      return context.error("ERR " + lower(attribute) + " cannot contain spaces, newlines or special characters.");
    if (attribute == "LIB-NAME")
      session.library = command[3];
    else if (attribute == "LIB-VER")
      session.library_version = command[3];
    else
      return context.error("ERR Unrecognized option '" + base::escape(command[2], 64) + "'");
    return context.ok();
  }
  if ((what == "NO-EVICT" || what == "NO-TOUCH") && command.size() == 3) return context.ok();
  if (what == "INFO" || what == "LIST") return context.ready([&](Reply& out) { out.bulk(describe(session)); });
  return context.error("ERR unknown subcommand or wrong number of arguments for '" + base::escape(command[1], 64) +
                       "'. Try CLIENT HELP.");
}

void write_spec(Reply& out, const Spec& spec) {
  out.array(10);  // as Redis 7 has it; the last four are empty
  out.bulk(lower(spec.name));
  out.integer(spec.arity);
  out.array(1);
  out.simple(spec.writes ? "write" : "readonly");
  out.integer(spec.first);
  out.integer(spec.last);
  out.integer(spec.step);
  for (int i = 0; i < 4; i++) out.array(0);
}

Plan command(Context& context) {
  const Command& words = context.command;
  const std::string what = words.size() > 1 ? upper(words[1]) : "";
  if (what.empty() || (what == "INFO" && words.size() == 2))
    return context.ready([&](Reply& out) {
      out.array(all_specs().size());
      for (const Spec& spec : all_specs()) write_spec(out, spec);
    });
  if (what == "COUNT") return context.ready([&](Reply& out) { out.integer(whole(all_specs().size())); });
  if (what == "DOCS") return context.ready([&](Reply& out) { out.map(0); });
  if (what == "LIST")
    return context.ready([&](Reply& out) {
      out.array(all_specs().size());
      for (const Spec& spec : all_specs()) out.bulk(lower(spec.name));
    });
  if (what == "INFO")
    return context.ready([&](Reply& out) {
      out.array(words.size() - 2);
      for (std::size_t i = 2; i < words.size(); i++) {
        const Spec* spec = find_spec(upper(words[i]));
        spec != nullptr ? write_spec(out, *spec) : out.nil_array();
      }
    });
  return context.error("ERR unknown subcommand '" + base::escape(words[1], 64) + "'. Try COMMAND HELP.");
}

// Tools ask before they start (redis-benchmark for save and appendonly); settings are made with `zht serve`.
Plan config(Context& context) {
  const std::string what = upper(context.word(1));
  if (what == "RESETSTAT") return context.ok();
  if (what != "GET" || context.command.size() < 3)
    return context.error("ERR CONFIG " + base::escape(what, 64) + " is not supported; settings are those of zht serve");
  Plan plan;
  plan.asks_node = true;
  std::vector<std::string> patterns(context.command.begin() + 2, context.command.end());
  for (std::string& pattern : patterns) pattern = lower(pattern);
  plan.render = [patterns](Outcomes&, const Facts& facts, Reply& out) {
    const std::map<std::string, std::string> all = {
        {"appendfsync", facts.durability == "always" ? "always"
                        : facts.durability == "none" ? "no"
                                                     : "everysec"},
        {"appendonly", "yes"},
        {"databases", "1"},
        {"maxclients", std::to_string(facts.max_connections)},
        {"maxmemory", "0"},
        {"maxmemory-policy", "noeviction"},
        {"proto-max-bulk-len", std::to_string(kMaxValueSize)},
        {"save", ""},
        {"timeout", "0"},
    };
    std::vector<std::pair<std::string, std::string>> found;
    for (const auto& setting : all)
      if (std::any_of(patterns.begin(), patterns.end(),
                      [&](const std::string& pattern) { return glob_matches(pattern, setting.first); }))
        found.push_back(setting);
    out.map(found.size());
    for (const auto& [name, value] : found) {
      out.bulk(name);
      out.bulk(value);
    }
  };
  return plan;
}

Plan info(Context&) {
  Plan plan;
  plan.asks_node = true;
  plan.render = [](Outcomes&, const Facts& facts, Reply& out) {
    const auto line = [](const char* name, std::uint64_t value) {
      return std::string(name) + ":" + std::to_string(value) + "\r\n";
    };
    out.bulk("# Server\r\nredis_version:7.0.0\r\nserver_name:zht\r\nredis_mode:standalone\r\narch_bits:64\r\n" +
             line("uptime_in_seconds", facts.uptime_ms / 1000) + "\r\n# Clients\r\n" +
             line("connected_clients", facts.connections) + line("maxclients", facts.max_connections) +
             "\r\n# Memory\r\n" + line("used_memory", facts.memory_bytes) + line("maxmemory", 0) +
             "\r\n# Persistence\r\nloading:0\r\naof_enabled:1\r\n" + line("aof_current_size", facts.disk_bytes) +
             "\r\n# Stats\r\n" + line("total_connections_received", facts.accepted) +
             line("total_commands_processed", facts.commands) + line("rejected_connections", facts.refused) +
             line("zht_operations", facts.operations) +
             "\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Keyspace\r\n" +
             (facts.keys > 0 ? "db0:keys=" + std::to_string(facts.keys) + ",expires=0,avg_ttl=0\r\n" : ""));
  };
  return plan;
}

Plan dbsize(Context&) {
  Plan plan;
  plan.asks_node = true;
  plan.render = [](Outcomes&, const Facts& facts, Reply& out) { out.integer(whole(facts.keys)); };
  return plan;
}

Plan flush(Context& context) {
  return context.error(
      "ERR " + context.word(0) +
      " is refused: the platform's services keep their records in this store too; remove keys by name");
}

Plan object(Context& context) {
  const std::string what = upper(context.word(1));
  if (context.command.size() != 3 || (what != "ENCODING" && what != "REFCOUNT" && what != "IDLETIME" && what != "FREQ"))
    return context.error("ERR unknown subcommand or wrong number of arguments for '" +
                         base::escape(context.word(1), 64) + "'. Try OBJECT HELP.");
  return one(
      Operation::lookup(std::move(context.word(2)), Range::nothing()),
      [what](const Outcome& outcome, Reply& out) {
        if (!outcome.ok()) return out.nil();
        if (what == "ENCODING")
          out.bulk("raw");
        else
          out.integer(what == "REFCOUNT" ? 1 : 0);
      },
      Code::not_found);
}

Plan memory(Context& context) {
  if (upper(context.word(1)) != "USAGE" || context.command.size() < 3)
    return context.error("ERR unknown subcommand; MEMORY USAGE key is");
  const std::size_t key_size = context.word(2).size();
  return one(
      Operation::lookup(std::move(context.word(2)), Range::nothing()),
      [key_size](const Outcome& outcome, Reply& out) {
        outcome.ok() ? out.integer(whole(outcome.size + key_size + 32))
                     : out.nil();  // 32: a record's header and its index entry
      },
      Code::not_found);
}

Plan reset(Context& context) {
  Session& session = context.session;
  session.end_multi();
  session.authenticated = false;
  session.protocol = 2;
  session.name.clear();
  return context.ready([](Reply& out) { out.simple("RESET"); });
}

Plan time_now(Context& context) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return context.ready([&](Reply& out) {
    out.array(2);
    out.bulk(std::to_string(micros / 1'000'000));
    out.bulk(std::to_string(micros % 1'000'000));
  });
}

Plan type(Context& context) {
  return one(
      Operation::lookup(std::move(context.word(1)), Range::nothing()),
      [](const Outcome& outcome, Reply& out) { out.simple(outcome.ok() ? "string" : "none"); }, Code::not_found);
}

using Make = Plan (*)(Context&);

// Commands of the table that are not here run inside the store.
const std::map<std::string_view, Make>& makers() {
  static const std::map<std::string_view, Make> all = {
      {"APPEND", append},
      {"AUTH", auth},
      {"CLIENT", client},
      {"COMMAND", command},
      {"CONFIG", config},
      {"COPY", in_store_with_one_tag},
      {"DBSIZE", dbsize},
      {"DEL", del},
      {"DISCARD", discard},
      {"ECHO", [](Context& c) { return c.ready([&](Reply& out) { out.bulk(c.word(1)); }); }},
      {"EXEC", exec},
      {"EXISTS", exists},
      {"FLUSHALL", flush},
      {"FLUSHDB", flush},
      {"GET", get},
      {"GETRANGE", getrange},
      {"HELLO", hello},
      {"INFO", info},
      {"KEYS", [](Context& c) { return plan_keys(c.word(1), c.partition_count, c.session.protocol); }},
      {"MEMORY", memory},
      {"MGET", mget},
      {"MSET", [](Context& c) { return mset(c, false); }},
      {"MSETNX", [](Context& c) { return mset(c, true); }},
      {"MULTI",
       [](Context& c) {
         if (c.session.in_multi) return c.error("ERR MULTI calls can not be nested");
         c.session.in_multi = true;
         return c.ok();
       }},
      {"OBJECT", object},
      {"PING", ping},
      {"QUIT",
       [](Context& c) {
         Plan plan = c.ok();
         plan.close = true;
         return plan;
       }},
      {"RENAME", in_store_with_one_tag},
      {"RENAMENX", in_store_with_one_tag},
      {"RESET", reset},
      {"SCAN", [](Context& c) { return plan_scan(c.command, c.partition_count, c.session.protocol); }},
      {"SELECT", [](Context& c) { return c.word(1) == "0" ? c.ok() : c.error("ERR DB index is out of range"); }},
      {"SET", set},
      {"SETNX", setnx},
      {"STRLEN", strlen},
      {"SUBSTR", getrange},
      {"TIME", time_now},
      {"TOUCH", exists},
      {"TYPE", type},
      {"UNLINK", del},
      {"UNWATCH",
       [](Context& c) {
         c.session.watched.clear();
         return c.ok();
       }},
      {"WAIT", [](Context& c) { return c.ready([](Reply& out) { out.integer(0); }); }},
      {"WATCH", watch},
      {"ZHT.BATCH", batch},
      {"ZHT.CALLBACK", callback},
      {"ZHT.CSWAP", cswap},
      {"ZHT.VERSION", version},
  };
  return all;
}

}  // namespace

Plan plan(Session& session, Command words, std::uint32_t partition_count) {
  Context context{session, words, partition_count};
  const std::string name = upper(words[0]);
  const Spec* spec = find_spec(name);
  // A browser that a page has sent here: its lines, the page's own among them, would be taken for commands. Every HTTP request
  // has one of these before its body.
  if (name == "POST" || name == "HOST:") {
    Plan refused = context.error("ERR this is no web server: HTTP is refused here, and the connection is closed");
    refused.close = true;
    return refused;
  }
  if (!session.let_in() && name != "AUTH" && name != "HELLO" && name != "QUIT" && name != "RESET")
    return context.error("NOAUTH Authentication required.");
  if (spec == nullptr || !arity_fits(*spec, words.size())) {
    session.spoiled |= session.in_multi;
    return context.error(spec == nullptr ? unknown_command(words) : wrong_arity(name));
  }
  static const std::vector<std::string_view> at_once = {"EXEC", "DISCARD", "MULTI", "WATCH", "QUIT", "RESET"};
  if (session.in_multi && std::find(at_once.begin(), at_once.end(), name) == at_once.end())
    return queue(context, *spec);
  const auto maker = makers().find(name);
  Plan made = maker != makers().end() ? maker->second(context) : in_store(context);
  // A single operation is checked by the client; of several, none is begun when one cannot be.
  if (made.operations.size() > 1)
    for (const Operation& operation : made.operations)
      if (auto valid = validate(operation, partition_count); !valid)
        return context.error("ERR " + valid.error().message);
  return made;
}

}  // namespace zht::resp

// The `fabriq` program: queues from the command line. Each verb is a thin layer over fabriq.h.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "fabriq/fabriq.h"
#include "novoht/base/random.h"
#include "zht/support/output.h"
#include "zht/support/program.h"

namespace {

using base::Code;
using base::fail;
using base::Result;
using fabriq::Consumer;
using fabriq::Delivery;
using fabriq::Millis;
using fabriq::Producer;
using fabriq::Queue;
using fabriq::Receipt;
using nlohmann::json;

json json_of(const Delivery& delivery) {
  json value{
      {"id", delivery.id}, {"deliveries", delivery.deliveries}, {"pushed_at", support::iso_time(delivery.pushed_at)}};
  if (support::is_utf8(delivery.body))
    value["body"] = delivery.body;
  else
    value["body_b64"] = support::to_base64(delivery.body);
  if (delivery.receipt.count > 0) value["receipt"] = delivery.receipt.text();
  if (!delivery.producer.empty()) {
    value["producer"] = delivery.producer;
    value["sequence"] = delivery.sequence;
  }
  return value;
}

json json_of(const fabriq::Info& info) {
  return {{"ready", info.ready},
          {"in_flight", info.leased},
          {"delayed", info.waiting},
          {"dead", info.dead},
          {"bytes", info.bytes},
          {"pushed", info.pushed},
          {"settled", info.acked},
          {"redelivered", info.redelivered},
          {"leases_expired", info.expired},
          {"purged", info.purged},
          {"oldest_ms", info.oldest_ms}};
}

Result<void> write_out(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return base::fail_errno(errno, "standard output");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<std::string> read_all(std::istream& in, const std::string& what) {
  std::string bytes;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    bytes.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (bytes.size() > fabriq::kMaxMessageSize)
      return fail(Code::invalid, what, " has more than ", fabriq::kMaxMessageSize,
                  " bytes, the most that one message may have; split it, or use --lines");
  }
  if (in.bad()) return fail(Code::io, what, ": cannot be read");
  return bytes;
}

// What the verbs share: the client, made when first needed, and the queue's name.
class Tool {
 public:
  explicit Tool(support::Program& program) : program_(program) {}
  const support::CommonFlags& common() const { return program_.common(); }
  // A queue is in a fresh folder only once it is made there: the other verbs start no node in a mistyped one.
  Result<zht::Client*> client(bool makes = false) {
    if (!client_) {
      TRY_LET(made, zht::connect(makes ? common().client_options() : common().looking_options()));
      client_ = std::move(made);
    }
    return client_.get();
  }
  Result<Queue> queue() {
    TRY(fabriq::check_name(name));
    TRY_LET(it, client());
    return Queue::open(*it, name);
  }
  support::Verb& verb(const std::string& verb_name, const std::string& summary, std::vector<std::string> examples) {
    auto& verb = program_.verb(verb_name, summary, std::move(examples));
    verb.options().add_option("queue", name, "name of the queue: letters, digits, '.', '_', '-'")->required();
    return verb;
  }
  Result<std::vector<Receipt>> receipts(const std::vector<std::string>& texts) const {
    std::vector<Receipt> all;
    for (const std::string& text : texts) {
      TRY_LET(receipt, Receipt::parse(text));
      all.push_back(receipt);
    }
    return all;
  }
  void say(const std::string& text) const {
    if (!common().quiet) std::cerr << text << '\n';
  }

  std::string name;

 private:
  support::Program& program_;
  std::unique_ptr<zht::Client> client_;
};

void add_create(Tool& tool) {
  struct Flags {
    std::uint32_t partitions = 4, max_deliveries = 0;
    Millis visibility{30'000};
    std::uint64_t max_bytes = std::uint64_t{4} << 30;
  };
  auto flags = std::make_shared<Flags>();
  auto& verb = tool.verb("create", "Makes a queue.",
                         {"fabriq create jobs", "fabriq create orders --partitions 1 --max-deliveries 5"});
  verb.options().add_option("--partitions", flags->partitions, "1 to 1024; 1: strict order of arrival (default 4)");
  support::add_duration(verb.options(), "--visibility", flags->visibility, "how long a lease lasts (default 30s)");
  verb.options().add_option("--max-deliveries", flags->max_deliveries,
                            "then to the dead-letter list (default 0: never)");
  support::add_size(verb.options(), "--max-bytes", flags->max_bytes,
                    "kept at most, else pushes are refused (default 4GiB, 0: any)");
  verb.action([&tool, flags]() -> Result<void> {
    TRY(fabriq::check_name(tool.name));
    TRY_LET(client, tool.client(true));
    TRY_LET(queue, Queue::create(*client, tool.name,
                                 {flags->partitions, flags->visibility, flags->max_deliveries, flags->max_bytes}));
    if (tool.common().json) support::print_json({{"queue", queue.name()}, {"partitions", queue.partitions()}});
    return {};
  });
}

void add_list(Tool& tool, support::Program& program) {
  auto& verb = program.verb("list", "Lists the queues.", {"fabriq list", "fabriq list --json"});
  verb.action([&tool]() -> Result<void> {
    TRY_LET(client, tool.client());
    TRY_LET(names, Queue::list(*client));
    json all = json::array();
    support::Table table({"QUEUE", "PARTITIONS", "READY", "IN FLIGHT", "DELAYED", "DEAD", "BYTES"});
    for (const std::string& name : names) {
      auto queue = Queue::open(*client, name);
      if (!queue && queue.code() == Code::not_found) continue;  // deleted meanwhile
      if (!queue) return queue.error();
      TRY_LET(info, queue->info());
      json one = json_of(info.total);
      one["queue"] = name;
      one["partitions"] = queue->partitions();
      all.push_back(one);
      const fabriq::Info& total = info.total;
      table.row({name, std::to_string(queue->partitions()), support::human_count(total.ready),
                 support::human_count(total.leased), support::human_count(total.waiting),
                 support::human_count(total.dead), support::human_size(total.bytes)});
    }
    if (tool.common().json)
      support::print_json(all);
    else
      table.print();
    return {};
  });
}

void add_info(Tool& tool) {
  auto& verb =
      tool.verb("info", "Shows what a queue holds, and how evenly.", {"fabriq info jobs", "fabriq info jobs --json"});
  verb.action([&tool]() -> Result<void> {
    TRY_LET(queue, tool.queue());
    TRY_LET(info, queue.info());
    const auto& record = queue.record();
    if (tool.common().json) {
      json value = json_of(info.total);
      value["queue"] = queue.name();
      value["visibility_ms"] = record.visibility_ms;
      value["max_deliveries"] = record.max_deliveries;
      value["max_bytes"] = record.max_bytes;
      value["created_at"] = support::iso_time(base::from_millis(record.created_ms));
      value["push_imbalance"] = info.imbalance();
      value["partitions"] = json::array();
      for (const fabriq::Info& partition : info.partitions) value["partitions"].push_back(json_of(partition));
      support::print_json(value);
      return {};
    }
    support::Table table(
        {"PARTITION", "READY", "IN FLIGHT", "DELAYED", "DEAD", "BYTES", "PUSHED", "SETTLED", "REDELIVERED", "OLDEST"});
    const auto row = [&table](const std::string& name, const fabriq::Info& of) {
      table.row({name, support::human_count(of.ready), support::human_count(of.leased),
                 support::human_count(of.waiting), support::human_count(of.dead), support::human_size(of.bytes),
                 support::human_count(of.pushed), support::human_count(of.acked), support::human_count(of.redelivered),
                 of.ready > 0 ? support::human_duration(Millis(of.oldest_ms)) : "-"});
    };
    for (std::size_t p = 0; p < info.partitions.size(); p++) row(std::to_string(p), info.partitions[p]);
    row("all", info.total);
    char line[200];
    std::snprintf(line, sizeof line, "lease %s, dead after %s deliveries, at most %s; pushes within %.1f%% of even\n",
                  support::human_duration(Millis(record.visibility_ms)).c_str(),
                  record.max_deliveries == 0 ? "any number of" : std::to_string(record.max_deliveries).c_str(),
                  record.max_bytes == 0 ? "any size" : support::human_size(record.max_bytes).c_str(),
                  info.imbalance() * 100);
    return write_out(table.text() + line);
  });
}

struct PushFlags {
  std::string message, file, producer, id;
  std::uint64_t sequence = 0;
  Millis delay{0};
  bool lines = false;
};

// One line, one message, sent on while the rest is read.
Result<void> push_lines(Tool& tool, const Queue& queue, const PushFlags& flags, std::istream& in,
                        const std::string& what) {
  struct Shared {
    std::mutex mutex;
    std::map<std::uint64_t, Result<fabriq::Pushed>> answers;  // those not printed yet
    std::optional<base::Error> error;
    std::uint64_t failed_line = 0;
  } shared;
  std::uint64_t line_number = 0, printed = 0, repeated = 0;
  const auto print = [&]() -> Result<void> {
    std::string text;
    const std::lock_guard lock(shared.mutex);
    while (!shared.answers.empty() && shared.answers.begin()->first == printed) {
      const auto& answer = shared.answers.begin()->second;
      if (!answer && !shared.error) {
        shared.error = answer.error();
        shared.failed_line = printed + 1;
      }
      if (answer) {
        text += answer->id + "\n";
        if (answer->repeated) repeated++;
      }
      shared.answers.erase(shared.answers.begin());
      printed++;
    }
    if (tool.common().quiet || tool.common().json) return {};
    return write_out(text);
  };
  {
    Producer producer(queue, {flags.producer, flags.sequence, flags.delay});
    std::string line;
    while (std::getline(in, line)) {
      const std::uint64_t at = line_number++;
      producer.push_async(std::move(line), [&shared, at](Result<fabriq::Pushed> answer) {
        const std::lock_guard lock(shared.mutex);
        shared.answers.emplace(at, std::move(answer));
      });
      line.clear();
      if (at % 1024 == 1023) TRY(print());
      if (shared.error) break;
    }
    producer.flush();
  }
  if (in.bad()) return fail(Code::io, what, ": cannot be read");
  TRY(print());
  if (shared.error) {
    shared.error->message = "line " + std::to_string(shared.failed_line) + ": " + shared.error->message;
    return *shared.error;
  }
  if (tool.common().json) support::print_json({{"pushed", printed - repeated}, {"repeated", repeated}});
  return {};
}

void add_push(Tool& tool) {
  auto flags = std::make_shared<PushFlags>();
  auto& verb = tool.verb("push", "Pushes a message, or one for each line; prints the id of each.",
                         {"fabriq push jobs 'resize 17.png'", "seq 1000 | fabriq push jobs --lines --quiet"});
  auto& options = verb.options();
  auto* message = options.add_option("message", flags->message, "the message; '-': standard input to its end");
  auto* file = options.add_option("--file", flags->file, "the message is this file's content; '-': standard input");
  options.add_flag("--lines", flags->lines, "each line of the input is a message");
  auto* producer =
      options.add_option("--producer", flags->producer,
                         "who pushes; with the same sequence again, nothing new is stored, also after a crash");
  auto* sequence =
      options.add_option("--sequence", flags->sequence, "number of the (first) message among this producer's");
  auto* id = options.add_option("--id", flags->id, "name of the message; again within a day, nothing new is stored");
  support::add_duration(options, "--delay", flags->delay, "not to be popped before (at most 365d)");
  file->excludes(message);
  producer->needs(sequence);
  sequence->needs(producer);
  id->excludes(producer);
  verb.action([&tool, flags, message, file]() -> Result<void> {
    if (flags->lines && message->count() > 0 && flags->message != "-")
      return fail(Code::invalid, "--lines reads standard input or --file; leave the message away");
    if (!flags->lines && message->count() == 0 && file->count() == 0)
      return fail(Code::invalid, "no message; give it as an argument, '-' for standard input, --file or --lines");
    if (flags->lines && !flags->id.empty())
      return fail(Code::invalid, "--id names one message; use --producer and --sequence with --lines");
    if (flags->delay.count() < 0 || static_cast<std::uint64_t>(flags->delay.count()) > fabriq::kMaxDelayMillis)
      return fail(Code::invalid, "--delay is at most 365d");
    TRY(fabriq::check_name(tool.name));
    const bool from_file = file->count() > 0 && flags->file != "-";
    std::ifstream opened;
    if (from_file) {
      opened.open(flags->file, std::ios::binary);
      if (!opened) return base::fail_errno(errno, flags->file);
    }
    std::istream& in = from_file ? static_cast<std::istream&>(opened) : std::cin;
    const std::string what = from_file ? flags->file : "standard input";
    std::string body = flags->message;
    if (!flags->lines && (file->count() > 0 || flags->message == "-")) {
      TRY_LET(read, read_all(in, what));
      body = std::move(read);
    }
    TRY_LET(queue, tool.queue());
    if (flags->lines) return push_lines(tool, queue, *flags, in, what);
    Producer pusher(queue, {flags->producer, flags->sequence, flags->delay});
    auto pushed = flags->id.empty() ? pusher.push(body) : pusher.push_named(flags->id, body);
    if (!pushed) return pushed.error();
    if (tool.common().json)
      support::print_json({{"id", pushed->id}, {"repeated", pushed->repeated}});
    else if (!tool.common().quiet)
      TRY(write_out(pushed->id + "\n"));
    return {};
  });
}

void add_pop(Tool& tool) {
  struct Flags {
    Millis wait{0}, lease{0};
    std::uint32_t count = 1;
    bool at_once = false, raw = false;
  };
  auto flags = std::make_shared<Flags>();
  auto& verb = tool.verb("pop", "Takes messages under a lease and prints them; receipts go to stderr, or into --json.",
                         {"fabriq pop jobs --wait 30s --json", "fabriq pop jobs --ack"});
  auto& options = verb.options();
  support::add_duration(options, "--wait", flags->wait, "for a message, when there is none");
  auto* count =
      options.add_option("-n,--count", flags->count, "messages at most, 1 to 1024; --json then prints a list")
          ->check(CLI::Range(1u, fabriq::kMaxBatch));
  support::add_duration(options, "--lease", flags->lease, "until others may have it (default: the queue's)");
  options.add_flag("--ack,--at-most-once", flags->at_once, "settle at once: no receipt, lost if we die with it");
  options.add_flag("--raw", flags->raw, "the messages' bytes only, without a newline after each");
  verb.action([&tool, flags, count]() -> Result<void> {
    if (flags->lease.count() < 0 || static_cast<std::uint64_t>(flags->lease.count()) > fabriq::kMaxLeaseMillis)
      return fail(Code::invalid, "--lease is at most 12h");
    TRY_LET(queue, tool.queue());
    Consumer consumer(queue, {.lease = flags->lease, .at_most_once = flags->at_once, .oldest_first = true});
    std::vector<Delivery> deliveries;
    const auto deadline = std::chrono::steady_clock::now() + flags->wait;
    while (deliveries.size() < flags->count) {
      // Waits for the first one only.
      const auto left = std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now());
      const Millis wait = deliveries.empty() ? std::max(left, Millis{0}) : Millis{0};
      auto batch = consumer.pop_batch(flags->count - static_cast<std::uint32_t>(deliveries.size()), wait);
      if (!batch && deliveries.empty()) return batch.error();
      if (!batch || batch->deliveries.empty()) break;
      for (Delivery& delivery : batch->deliveries) deliveries.push_back(std::move(delivery));
    }
    if (deliveries.empty())
      return fail(Code::not_found, "queue \"", queue.name(), "\" has no message ready",
                  flags->wait.count() > 0 ? "; none came in time" : "; wait for one with --wait 30s");
    if (tool.common().json) {
      json all = json::array();
      for (const Delivery& delivery : deliveries) all.push_back(json_of(delivery));
      support::print_json(count->count() > 0 ? all : all[0]);
      return {};
    }
    for (const Delivery& delivery : deliveries) {
      TRY(write_out(flags->raw ? delivery.body : delivery.body + "\n"));
      if (!flags->at_once) tool.say("receipt " + delivery.receipt.text());
    }
    return {};
  });
}

void add_settlement(Tool& tool, const std::string& name, const std::string& summary, std::vector<std::string> examples,
                    fabriq::Settle::Kind kind) {
  struct Flags {
    std::vector<std::string> receipts;
    Millis time{0};
  };
  auto flags = std::make_shared<Flags>();
  auto& verb = tool.verb(name, summary, std::move(examples));
  verb.options().add_option("receipt", flags->receipts, "what pop printed; several are fine")->required();
  if (kind == fabriq::Settle::Kind::give_back)
    support::add_duration(verb.options(), "--delay", flags->time, "not to be popped again before (at most 365d)");
  if (kind == fabriq::Settle::Kind::extend)
    support::add_duration(verb.options(), "--lease", flags->time, "from now on (at most 12h)")->required();
  verb.action([&tool, flags, kind]() -> Result<void> {
    const std::uint64_t most = kind == fabriq::Settle::Kind::extend ? fabriq::kMaxLeaseMillis : fabriq::kMaxDelayMillis;
    if (flags->time.count() < 0 || static_cast<std::uint64_t>(flags->time.count()) > most)
      return fail(Code::invalid, flags->time.count(), " ms; at most ", most, " ms");
    if (kind == fabriq::Settle::Kind::extend && flags->time.count() == 0)
      return fail(Code::invalid, "--lease 0; to give a message back use: fabriq nack");
    TRY_LET(receipts, tool.receipts(flags->receipts));
    TRY_LET(queue, tool.queue());
    std::vector<fabriq::Settle> items;
    for (const Receipt& receipt : receipts)
      items.push_back({kind, receipt, static_cast<std::uint64_t>(flags->time.count())});
    TRY_LET(settled, queue.settle(items));
    std::size_t refused = 0;
    std::optional<base::Error> first;
    for (std::size_t i = 0; i < settled.size(); i++) {
      const auto judged = queue.judge(settled[i]);
      if (judged) continue;
      refused++;
      if (!first) first = judged.error();
    }
    if (tool.common().json && !first) support::print_json({{"done", settled.size()}});
    if (!first) return {};
    if (settled.size() > 1)
      first->message =
          std::to_string(refused) + " of " + std::to_string(settled.size()) + " refused: " + first->message;
    return *first;
  });
}

void add_peek(Tool& tool) {
  struct Flags {
    std::uint32_t count = 10;
    bool dead = false;
  };
  auto flags = std::make_shared<Flags>();
  auto& verb = tool.verb("peek", "Prints messages without taking them.",
                         {"fabriq peek jobs -n 5", "fabriq peek jobs --dead --json"});
  verb.options()
      .add_option("-n,--count", flags->count, "messages at most (default 10)")
      ->check(CLI::Range(1u, fabriq::kMaxBatch));
  verb.options().add_flag("--dead", flags->dead, "those of the dead-letter list");
  verb.action([&tool, flags]() -> Result<void> {
    TRY_LET(queue, tool.queue());
    TRY_LET(deliveries, queue.peek(flags->count, flags->dead));
    if (tool.common().json) {
      json all = json::array();
      for (const Delivery& delivery : deliveries) all.push_back(json_of(delivery));
      support::print_json(all);
      return {};
    }
    for (const Delivery& delivery : deliveries) TRY(write_out(delivery.body + "\n"));
    return {};
  });
}

// Destructive verbs want --yes, or an answer on the terminal.
Result<void> confirm(bool yes, const std::string& what) {
  if (yes) return {};
  if (::isatty(STDIN_FILENO) == 0 || !support::stderr_is_tty())
    return fail(Code::invalid, what, " cannot be undone; confirm with --yes");
  std::cerr << what << ". This cannot be undone. Go on? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return {};
  return fail(Code::invalid, "not confirmed; nothing was changed");
}

void add_removals(Tool& tool) {
  auto yes = std::make_shared<bool>(false);
  auto& purge = tool.verb("purge", "Drops every message of a queue, those in flight and dead ones included.",
                          {"fabriq purge jobs --yes", "fabriq purge jobs --yes --json"});
  purge.options().add_flag("--yes", *yes, "do not ask");
  purge.action([&tool, yes]() -> Result<void> {
    TRY_LET(queue, tool.queue());
    TRY(confirm(*yes, "purge drops every message of queue \"" + tool.name + "\""));
    TRY_LET(count, queue.purge());
    if (tool.common().json)
      support::print_json({{"purged", count}});
    else
      tool.say("purged " + support::human_count(count) + " messages");
    return {};
  });
  auto& remove = tool.verb("delete", "Takes a queue away with everything in it.",
                           {"fabriq delete jobs --yes", "fabriq delete old --yes --quiet"});
  remove.options().add_flag("--yes", *yes, "do not ask");
  remove.action([&tool, yes]() -> Result<void> {
    TRY(fabriq::check_name(tool.name));
    TRY_LET(client, tool.client());
    TRY(confirm(*yes, "delete takes queue \"" + tool.name + "\" away with every message"));
    return Queue::destroy(*client, tool.name);
  });
}

void add_redrive(Tool& tool) {
  auto most = std::make_shared<std::uint64_t>(UINT64_MAX);
  auto& verb = tool.verb("redrive", "Makes messages of the dead-letter list ready again.",
                         {"fabriq redrive jobs", "fabriq redrive jobs -n 10"});
  verb.options().add_option("-n,--count", *most, "messages at most (default: all)");
  verb.action([&tool, most]() -> Result<void> {
    TRY_LET(queue, tool.queue());
    TRY_LET(count, queue.redrive(*most));
    if (tool.common().json)
      support::print_json({{"redriven", count}});
    else
      tool.say("redriven " + support::human_count(count) + " messages");
    return {};
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  support::Program program(
      "fabriq", "message queues with exactly-once hand-over",
      {"fabriq create jobs && fabriq push jobs 'first message'", "fabriq pop jobs --wait 30s --json"});
  Tool tool(program);
  add_create(tool);
  add_list(tool, program);
  add_info(tool);
  add_push(tool);
  add_pop(tool);
  add_settlement(tool, "ack", "Settles messages: they are done, for good.",
                 {"fabriq ack jobs RECEIPT", "fabriq ack jobs R1 R2 R3"}, fabriq::Settle::Kind::acknowledge);
  add_settlement(tool, "nack", "Gives messages back: others may have them.",
                 {"fabriq nack jobs RECEIPT", "fabriq nack jobs RECEIPT --delay 1m"}, fabriq::Settle::Kind::give_back);
  add_settlement(tool, "extend", "Keeps messages for longer.",
                 {"fabriq extend jobs RECEIPT --lease 5m", "fabriq extend jobs R1 R2 --lease 1h"},
                 fabriq::Settle::Kind::extend);
  add_peek(tool);
  add_removals(tool);
  add_redrive(tool);
  return program.run(argc, argv);
}

// `zht recover`: why partitions are not served and what would help; and the last resort, going on without what is lost.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "zht/core/replication/recovery.h"
#include "zht/server/founding.h"
#include "zht/server/manager_codec.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/tool/manager.h"
#include "zht/tool/verbs.h"

namespace zht::tool {

using namespace std::chrono_literals;
using nlohmann::json;
using replication::CopyReport;
using replication::Prognosis;
using replication::View;
using server::node_of;

namespace {

struct Flags {
  std::vector<std::uint32_t> partitions;
  std::vector<std::uint64_t> gone;
  bool accept = false, yes = false;
};

struct Partition {
  View view;
  std::vector<CopyReport> copies;
};

// What all nodes that answer know together.
struct Picture {
  struct Node {
    std::string address;  // of its manager; empty: the one that was asked first
    bool keeper = false, answers = false;
    bool lost = false;               // it answers, but has lost what it kept, and cannot vote
    std::uint64_t table_version = 0;
  };
  std::map<std::uint64_t, Node> nodes;
  std::uint32_t partition_count = 0;
  std::map<std::uint32_t, Partition> partitions;  // those looked at
  std::size_t keepers = 0, living_keepers = 0;
  std::uint64_t config = 0;  // of the keepers, the newest that any node told of

  std::string name(std::uint64_t node) const {
    const auto found = nodes.find(node);
    const std::string where = found == nodes.end() ? std::string() : found->second.address;
    return "node " + std::to_string(node) + (where.empty() ? "" : " (" + where + ")");
  }
  bool answers(std::uint64_t node) const {
    const auto found = nodes.find(node);
    return found != nodes.end() && found->second.answers;
  }
  bool may_decide() const { return living_keepers * 2 > keepers; }
  std::string lost_keepers() const {
    std::string names;
    for (const auto& [number, node] : nodes)
      if (node.keeper && !node.answers) names += (names.empty() ? "" : ", ") + name(number);
    return names;
  }
};

CopyReport from_proto(const wire::CopyReport& from) {
  CopyReport one;
  one.self = {InstanceId{from.self().instance()}, from.self().incarnation()};
  one.epoch = Epoch{from.epoch()};
  one.follows = from.follows();
  one.whole = from.whole();
  one.origin = {from.since(), from.sure()};
  one.end = {Epoch{from.end_epoch()}, from.end()};
  one.durable = from.durable();
  one.commit = from.commit();
  one.known_end = from.known_end();
  one.known_commit = from.known_commit();
  one.heard = std::chrono::milliseconds(from.heard_ms());
  one.was_in_step = from.was_in_step();
  one.in_step = std::chrono::milliseconds(from.in_step_ms());
  return one;
}

class Recovery {
 public:
  Recovery(const support::Program& program, const Flags& flags) : program_(program), flags_(flags) {}
  Result<int> run();

 private:
  Result<void> look();
  Result<void> ask_all(const wire::RecoverRequest& request, std::set<std::uint32_t>& named);
  Result<wire::RecoverReply> ask(std::uint64_t node, const wire::RecoverRequest& request) const;
  bool gone(std::uint64_t node) const { return std::find(flags_.gone.begin(), flags_.gone.end(), node) != flags_.gone.end(); }
  Prognosis prognosis_of(const Partition& one) const;
  // Why it is not served and what would help; empty: nothing is wrong.
  std::string words_for(const Partition& one) const;
  Result<int> report() const;
  Result<int> accept();
  std::string why_not(const Partition& one, const Prognosis& is) const;
  std::string silent_nodes() const;
  Result<void> keep_alone();
  bool is_named(std::uint64_t node) const;
  Result<bool> confirmed(const std::string& question) const;
  Result<void> wait_for(const std::map<std::uint32_t, std::uint64_t>& before);
  json to_json(std::uint32_t number, const Partition& one) const;

  const support::Program& program_;
  const Flags& flags_;
  std::vector<client::Address> addresses_;
  security::Opener opener_;
  Picture picture_;
};

std::string list_of(const std::vector<std::uint32_t>& numbers) {  // in order
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) end++;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]) + (end > i + 1 ? "-" + std::to_string(numbers[end - 1]) : "");
    i = end;
  }
  return text;
}

Result<wire::RecoverReply> Recovery::ask(std::uint64_t node, const wire::RecoverRequest& request) const {
  const auto found = picture_.nodes.find(node);
  if (found == picture_.nodes.end()) return fail(Code::not_found, "node ", node, " is not known");
  if (found->second.address.empty()) return client::ask_to_recover(addresses_.front(), request, patience(program_, 5s));
  TRY_LET(at, client::parse_cluster(found->second.address, opener_));
  return client::ask_to_recover(at.front(), request, patience(program_, 5s));
}

// Nodes that do not answer are what this is about: no errors. `named`: partitions that any of them has named.
Result<void> Recovery::ask_all(const wire::RecoverRequest& request, std::set<std::uint32_t>& named) {
  picture_.living_keepers = picture_.config = 0;
  for (auto& [number, node] : picture_.nodes) {
    const auto reply = ask(number, request);
    if (!reply && reply.code() == Code::unsupported) return base::add_context(picture_.name(number), reply.error());
    node.answers = reply && reply->node() == number;
    if (!node.answers) continue;
    node.lost = reply->lost_registers();
    node.table_version = reply->table_version();
    if (reply->config() > picture_.config) {
      picture_.config = reply->config();
      picture_.keepers = static_cast<std::size_t>(reply->keepers_size());
      const std::set<std::uint64_t> keepers(reply->keepers().begin(), reply->keepers().end());
      for (auto& [other, one] : picture_.nodes) one.keeper = keepers.contains(other);
    }
    for (const wire::PartitionReport& report : reply->partitions()) {
      named.insert(report.partition());
      Partition& one = picture_.partitions[report.partition()];
      if (View view = server::from_proto(report.view()); view.epoch > one.view.epoch) one.view = std::move(view);
      for (const wire::CopyReport& copy : report.copies()) one.copies.push_back(from_proto(copy));
    }
  }
  for (const auto& [number, node] : picture_.nodes) picture_.living_keepers += node.keeper && node.answers && !node.lost;
  return {};
}

Result<void> Recovery::look() {
  TRY_LET(addresses, managers(program_));
  addresses_ = std::move(addresses);
  opener_ = addresses_.front().opener;
  TRY_LET(status, status_of(addresses_, patience(program_, 5s)));
  picture_.partition_count = status.partition_count();
  picture_.keepers = static_cast<std::size_t>(status.cluster().keepers_size());
  for (const wire::ClusterNode& one : status.cluster().nodes()) picture_.nodes[one.node()] = {one.address(), one.keeper(), false};
  if (picture_.nodes.size() == 1) picture_.nodes.begin()->second.address.clear();  // it has answered, wherever it listens
  std::set<std::uint32_t> wanted(flags_.partitions.begin(), flags_.partitions.end()), named;
  if (!wanted.empty() && *wanted.rbegin() >= picture_.partition_count)
    return fail(Code::invalid, "partition ", *wanted.rbegin(), " of ", picture_.partition_count);
  if (wanted.empty()) {
    TRY(ask_all({}, wanted));
    picture_.partitions.clear();
  }
  wire::RecoverRequest all;
  for (std::uint32_t p : wanted) all.add_partitions(p);
  if (!wanted.empty()) TRY(ask_all(all, named));
  return {};
}

Prognosis Recovery::prognosis_of(const Partition& one) const {
  return replication::prognosis(one.view, one.copies, [this](InstanceId instance) { return gone(node_of(instance)); });
}

std::string Recovery::words_for(const Partition& one) const {
  if (one.view.epoch == Epoch{0}) return "no node that answers knows who holds it";
  const Prognosis is = prognosis_of(one);
  const auto names = [&](const replication::Members& members) {
    std::string text;
    for (replication::Member member : members) text += (text.empty() ? "" : " or ") + picture_.name(node_of(member.instance));
    return text;
  };
  const std::string keepers = picture_.may_decide() ? "" : ", when a majority of the keepers is there";
  switch (is.outlook) {
    case Prognosis::Outlook::served:
      if (server::nodes_of(one.view.sync) >= one.view.need) return {};
      return picture_.name(node_of(one.view.primary.instance)) + " leads; changes wait for a second synchronous copy: start another node";
    case Prognosis::Outlook::returns: return "will be led again by itself" + keepers;
    case Prognosis::Outlook::waits: {
      std::string text = "no synchronous copy answers: start " + names(is.awaited);
      if (!is.back.empty())
        text = names(is.back) + " has come back and may lack its last changes, so it does not lead alone: start " + names(is.awaited);
      return text + keepers;
    }
    case Prognosis::Outlook::lost: break;
  }
  std::string text = "every synchronous copy is lost; ";
  if (!is.best || one.copies[*is.best].end.sequence == 0) return text + "no other copy has anything of it";
  const CopyReport& best = one.copies[*is.best];
  return text + "the best that is left is that of " + picture_.name(node_of(best.self.instance));
}

json Recovery::to_json(std::uint32_t number, const Partition& one) const {
  const Prognosis is = prognosis_of(one);
  constexpr const char* kNames[] = {"served", "returns", "waits", "lost"};
  json made{{"partition", number},
            {"epoch", replication::number(one.view.epoch)},
            {"outlook", one.view.epoch == Epoch{0} ? "unknown" : kNames[static_cast<int>(is.outlook)]},
            {"why", words_for(one)},
            {"known_end", is.known_end},
            {"known_commit", is.known_commit}};
  json awaited = json::array(), copies = json::array();
  for (replication::Member member : is.awaited) awaited.push_back(node_of(member.instance));
  for (std::size_t i = 0; i < one.copies.size(); i++) {
    const CopyReport& copy = one.copies[i];
    json line{{"node", node_of(copy.self.instance)}, {"instance", static_cast<std::uint32_t>(copy.self.instance)},
              {"end_epoch", replication::number(copy.end.epoch)}, {"end", copy.end.sequence}, {"durable", copy.durable},
              {"commit", copy.commit}, {"whole", copy.whole}, {"best", is.best == i}};
    if (copy.was_in_step) line["in_step_ms_ago"] = std::chrono::duration_cast<std::chrono::milliseconds>(copy.in_step).count();
    copies.push_back(std::move(line));
  }
  made["awaited"] = std::move(awaited);
  made["copies"] = std::move(copies);
  return made;
}

Result<int> Recovery::report() const {
  std::map<std::string, std::vector<std::uint32_t>> why;
  json list = json::array();
  std::set<std::uint64_t> awaited;
  for (const auto& [number, one] : picture_.partitions) {
    list.push_back(to_json(number, one));
    const std::string words = words_for(one);
    if (!words.empty()) why[words].push_back(number);
    if (const Prognosis is = prognosis_of(one); is.outlook == Prognosis::Outlook::waits)
      for (replication::Member member : is.awaited) awaited.insert(node_of(member.instance));
  }
  const int status = why.empty() && picture_.may_decide() ? 0 : base::exit_status_of(Code::unavailable);
  if (program_.common().json) {
    support::print_json({{"keepers", picture_.keepers}, {"living_keepers", picture_.living_keepers}, {"partitions", std::move(list)}});
    return status;
  }
  if (!picture_.may_decide())
    std::cout << picture_.living_keepers << " of " << picture_.keepers
              << " keepers can vote: nothing can be decided before there is a majority. "
              << (picture_.lost_keepers().empty() ? "What those that answer had kept is lost; to go on without: zht recover --accept-data-loss"
                                                  : "Start " + picture_.lost_keepers())
              << "\n";
  else if (why.empty())
    std::cout << (flags_.partitions.empty() ? "every partition is served\n" : "these are served\n");
  for (const auto& [words, numbers] : why)
    std::cout << (numbers.size() == 1 ? "partition " : std::to_string(numbers.size()) + " partitions (") << list_of(numbers)
              << (numbers.size() == 1 ? ": " : "): ") << words << "\n";
  if (!picture_.may_decide())
    for (const auto& [number, node] : picture_.nodes)
      if (node.keeper && !node.answers) awaited.insert(number);
  std::string nodes;
  for (std::uint64_t node : awaited) nodes += (nodes.empty() ? "" : ",") + std::to_string(node);
  if (!nodes.empty())
    std::cout << "If these nodes' data are gone for good: zht recover --accept-data-loss --gone " << nodes << "\n";
  return status;
}

// Empty: it may be given up.
std::string Recovery::why_not(const Partition& one, const Prognosis& is) const {
  if (one.view.epoch == Epoch{0}) return "no node that answers knows who holds it";
  std::string text;
  switch (is.outlook) {
    case Prognosis::Outlook::served: return "is served by " + picture_.name(node_of(one.view.primary.instance)) + ": nothing is lost";
    case Prognosis::Outlook::returns: return "will be led again by itself: nothing is lost";
    case Prognosis::Outlook::waits:
      for (replication::Member member : is.awaited) {
        const std::uint64_t node = node_of(member.instance);
        text += (text.empty() ? "" : ", ") + picture_.name(node);
      }
      return "may come back with " + text + ": start that, or declare it gone for good with --gone NODE";
    case Prognosis::Outlook::lost: break;
  }
  return is.best ? "" : "no node answers that could lead it";
}

std::string Recovery::silent_nodes() const {
  std::string names;
  for (const auto& [number, node] : picture_.nodes)
    if (!node.answers && !gone(number)) names += (names.empty() ? "" : ", ") + picture_.name(number);
  return names;
}

Result<bool> Recovery::confirmed(const std::string& question) const {
  if (flags_.yes) return true;
  if (::isatty(STDIN_FILENO) == 0) return fail(Code::invalid, "this loses data; say --yes to do it without being asked");
  std::cerr << question << " Type yes: " << std::flush;
  std::string word;
  return std::getline(std::cin, word) && word == "yes";
}

// A majority of the keepers is gone for good: another node keeps from now on, and others with it as soon as there are three.
Result<void> Recovery::keep_alone() {
  std::string silent, given_up;
  const std::uint64_t* who = nullptr;
  const auto rank = [&](std::uint64_t number) {
    const Picture::Node& node = picture_.nodes.at(number);
    return std::pair(node.keeper && !node.lost, node.table_version);
  };
  for (const auto& [number, node] : picture_.nodes) {
    if (node.keeper && !node.answers) {
      if (!gone(number)) silent += (silent.empty() ? "" : ", ") + picture_.name(number);
      given_up += (given_up.empty() ? "" : ", ") + picture_.name(number);
    }
    if (node.answers && (who == nullptr || rank(*who) < rank(number))) who = &number;
  }
  if (!silent.empty())
    return fail(Code::unavailable, picture_.living_keepers, " of ", picture_.keepers,
                " keepers can vote, and only a majority decides who leads; start ", silent, ", or declare what is gone for good with --gone");
  if (who == nullptr) return fail(Code::unavailable, "no node answers that could keep");
  const std::uint64_t chosen = *who;
  std::cerr << "zht: " << picture_.living_keepers << " of " << picture_.keepers << " keepers can vote. " << picture_.name(chosen)
            << " is to keep alone, and others with it as soon as there are three nodes.\n"
            << "What the lost keepers" << (given_up.empty() ? "" : ", " + given_up + ",")
            << " have decided last, and no node here has heard of, is undone; changes acknowledged under it may be lost.\n"
            << "They must be off. Should they come back they are told, and keep no more; one that is cut off from all others would not be.\n";
  TRY_LET(yes, confirmed("Go on without these keepers?"));
  if (!yes) return fail(Code::conflict, "nothing was changed");
  wire::RecoverRequest request;
  request.mutable_keep_alone()->set_config(picture_.config);
  request.mutable_keep_alone()->mutable_gone()->Add(flags_.gone.begin(), flags_.gone.end());
  if (const auto reply = ask(chosen, request); !reply) return base::add_context(picture_.name(chosen), reply.error());
  if (!program_.common().quiet) std::cerr << "zht: " << picture_.name(chosen) << " keeps\n";
  // What needs no more than keepers is served again by itself.
  const auto limit = std::chrono::steady_clock::now() + patience(program_, 30s);
  for (bool again = true; again;) {
    std::this_thread::sleep_for(200ms);
    picture_.partitions.clear();
    TRY(look());
    again = !picture_.may_decide();
    for (const auto& [number, one] : picture_.partitions) again = again || prognosis_of(one).outlook == Prognosis::Outlook::returns;
    if (again && std::chrono::steady_clock::now() > limit)
      return fail(Code::timeout, picture_.name(chosen), " keeps, but not every partition is led yet; see: zht recover");
  }
  return {};
}

// Whether a partition's view has it, though the cluster never gave anybody that number: the view was forged, and waits for ever.
bool Recovery::is_named(std::uint64_t node) const {
  for (const auto& [number, one] : picture_.partitions)
    for (const replication::Member& member : one.view.sync)
      if (node_of(member.instance) == node) return true;
  return false;
}

Result<int> Recovery::accept() {
  for (std::uint64_t node : flags_.gone) {
    if (!picture_.nodes.contains(node) && !is_named(node)) return fail(Code::invalid, "--gone ", node, ": there is no such node; see: zht members");
    if (picture_.answers(node)) return fail(Code::conflict, picture_.name(node), " was declared gone, and answers");
  }
  const bool kept = picture_.may_decide();
  if (!kept) TRY(keep_alone());
  std::map<std::string, std::vector<std::uint32_t>> refused;
  std::map<std::uint64_t, wire::RecoverRequest> orders;  // by node
  std::map<std::uint32_t, std::uint64_t> before;         // the views' epochs
  support::Table table({"PARTITION", "GOES ON WITH", "HAS ENTRIES UP TO", "KNOWN UP TO", "LOST AT LEAST", "LAST IN STEP"});
  for (const auto& [number, one] : picture_.partitions) {
    const Prognosis is = prognosis_of(one);
    if (const std::string words = why_not(one, is); !words.empty()) {
      if (is.outlook != Prognosis::Outlook::served || !flags_.partitions.empty()) refused[words].push_back(number);
      continue;
    }
    const CopyReport& best = one.copies[*is.best];
    const std::uint64_t node = node_of(best.self.instance);
    wire::TakeOver& order = *orders[node].add_take_over();
    order.set_partition(number);
    order.set_epoch(replication::number(one.view.epoch));
    order.set_instance(static_cast<std::uint32_t>(best.self.instance));
    order.set_end_epoch(replication::number(best.end.epoch));
    order.set_end(best.end.sequence);
    order.mutable_gone()->Add(flags_.gone.begin(), flags_.gone.end());
    before[number] = replication::number(one.view.epoch);
    table.row({std::to_string(number), best.end.sequence == 0 ? "nothing, at node " + std::to_string(node) : "node " + std::to_string(node),
               std::to_string(best.end.sequence), std::to_string(is.known_end), std::to_string(is.known_end - best.end.sequence),
               best.was_in_step ? support::human_duration(best.in_step) + " ago" : "not known"});
  }
  for (const auto& [words, numbers] : refused)
    std::cerr << "zht: " << (numbers.size() == 1 ? "partition " : "partitions ") << list_of(numbers) << ": " << words << "\n";
  if (before.empty()) {
    if (refused.empty() && !kept) {
      if (program_.common().json) support::print_json({{"recovered", json::array()}});
      return 0;
    }
    if (refused.empty()) return fail(Code::invalid, "every partition is served: there is nothing to recover");
    return fail(Code::conflict, "nothing was changed");
  }
  if (!program_.common().json || !flags_.yes) {
    std::cerr << table.text()
              << "What was acknowledged and no node here knows of is lost besides. A copy that comes back later is thrown away.\n";
    if (const std::string silent = silent_nodes(); !silent.empty())
      std::cerr << "Not heard, nor given up, and perhaps with better copies: " << silent << ". Start those first, if that is possible.\n";
  }
  TRY_LET(yes, confirmed("Go on without what is lost in " + std::to_string(before.size()) + " partitions?"));
  if (!yes) return fail(Code::conflict, "nothing was changed");
  for (const auto& [node, request] : orders) {
    TRY_LET(reply, ask(node, request));
    std::string why;
    for (const std::string& one : reply.refused()) why += (why.empty() ? "" : "; ") + one;
    if (!why.empty()) return fail(Code::conflict, picture_.name(node), " refused: ", why);
  }
  TRY(wait_for(before));
  if (program_.common().json) {
    json list = json::array();
    for (const auto& [number, epoch] : before) list.push_back(number);
    support::print_json({{"recovered", std::move(list)}});
  } else if (!program_.common().quiet) {
    std::cerr << "zht: " << before.size() << (before.size() == 1 ? " partition is" : " partitions are") << " led again\n";
  }
  return refused.empty() ? 0 : base::exit_status_of(Code::conflict);
}

Result<void> Recovery::wait_for(const std::map<std::uint32_t, std::uint64_t>& before) {
  const auto limit = std::chrono::steady_clock::now() + patience(program_, 30s);
  wire::RecoverRequest request;
  for (const auto& [number, epoch] : before) request.add_partitions(number);
  for (;;) {
    picture_.partitions.clear();
    std::set<std::uint32_t> named;
    TRY(ask_all(request, named));
    std::vector<std::uint32_t> left;
    for (const auto& [number, epoch] : before) {
      const Partition& one = picture_.partitions[number];
      if (replication::number(one.view.epoch) <= epoch || prognosis_of(one).outlook != Prognosis::Outlook::served) left.push_back(number);
    }
    if (left.empty()) return {};
    if (std::chrono::steady_clock::now() > limit)
      return fail(Code::timeout, "partitions ", list_of(left), " are not led yet; the nodes were told to, see: zht recover");
    std::this_thread::sleep_for(100ms);
  }
}

Result<int> Recovery::run() {
  if (!flags_.accept && (!flags_.gone.empty() || flags_.yes)) return fail(Code::invalid, "--gone and --yes belong to --accept-data-loss");
  TRY(look());
  return flags_.accept ? accept() : report();
}

}  // namespace

void add_recover_verb(support::Program& program) {
  auto flags = std::make_shared<Flags>();
  auto& verb = program.verb("recover",
                            "Says of each partition that is not served why, and which node to start. With --accept-data-loss, the last resort: "
                            "goes on with the best copy that is left of partitions whose synchronous copies are all gone for good, and has "
                            "another node keep where a majority of the keepers is.",
                            {"zht recover", "zht recover --accept-data-loss --gone 2,3"});
  auto& app = verb.options();
  app.add_option("partition", flags->partitions, "these partitions (default: all that want something)");
  app.add_flag("--accept-data-loss", flags->accept, "what only lost copies had is given up");
  app.add_option("--gone", flags->gone, "nodes whose data are gone for good: switched off, and never started again")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--yes", flags->yes, "do not ask");
  verb.action([&program, flags] { return Recovery(program, *flags).run(); });
}

}  // namespace zht::tool

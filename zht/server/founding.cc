#include "zht/server/founding.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "novoht/base/bytes.h"
#include "zht/net/listen.h"
#include "zht/support/paths.h"

namespace zht::server {

using base::Code;
using base::Result;
using base::fail;
using replication::Member;
using replication::View;

std::uint32_t rack_number(const std::string& name) {
  return name.empty() ? 0 : static_cast<std::uint32_t>(base::hash64(name) >> 32) | 1;
}

std::vector<View> first_views(const Founding& founding) {
  struct Place {
    std::size_t node;
    std::uint32_t instance;
  };
  std::vector<Place> places;
  for (std::size_t n = 0; n < founding.nodes.size(); n++)
    for (std::uint32_t i = 0; i < founding.nodes[n].instances; i++) places.push_back({n, first_instance(n + 1) + i});
  std::vector<View> views(founding.partitions);
  const std::size_t count = founding.nodes.size();
  const std::size_t copies = std::min<std::size_t>(founding.copies, count);
  for (std::uint32_t p = 0; p < founding.partitions && !places.empty(); p++) {
    const Place& primary = places[std::uint64_t{p} * places.size() / founding.partitions];
    View& view = views[p];
    view.epoch = Epoch{1};
    view.primary = {InstanceId{primary.instance}, 1};
    view.sync = {view.primary};
    std::vector<std::size_t> nodes = {primary.node};
    while (nodes.size() < copies) {
      // The others in turn, beginning at another for each partition, so that the load of one that dies is spread.
      std::size_t best = count;
      bool best_shares = true;
      for (std::size_t step = 0; step + 1 < count; step++) {
        const std::size_t n = (primary.node + 1 + (p + step) % (count - 1)) % count;
        if (std::find(nodes.begin(), nodes.end(), n) != nodes.end()) continue;
        const bool shares = std::any_of(nodes.begin(), nodes.end(), [&](std::size_t other) {
          return rack_number(founding.nodes[other].rack) == rack_number(founding.nodes[n].rack);
        });
        if (best != count && (shares || !best_shares)) continue;
        best = n;
        best_shares = shares;
      }
      nodes.push_back(best);
      const Member member{InstanceId{first_instance(best + 1) + p % founding.nodes[best].instances}, 1};
      (view.sync.size() < founding.sync_copies ? view.sync : view.learners).push_back(member);
    }
    view.need = static_cast<std::uint32_t>(view.sync.size());
  }
  return views;
}

std::uint64_t cluster_id(const Founding& founding) {
  std::ostringstream text;
  text << "zht cluster " << founding.partitions << ' ' << founding.copies << ' ' << founding.sync_copies;
  for (const Founder& one : founding.nodes) text << '\n' << one.address << ' ' << one.instances << ' ' << one.rack;
  return base::hash64(text.str()) | 1;
}

Result<std::vector<std::string>> expand_hosts(const std::string& list) {
  std::vector<std::string> out;
  const auto bad = [&] { return fail(Code::invalid, "\"", list, "\" is not a list of hosts such as node[01-04,7],login"); };
  for (std::size_t at = 0; at < list.size();) {
    std::size_t end = at, open = std::string::npos, close = std::string::npos;
    for (; end < list.size() && (list[end] != ',' || (open != std::string::npos && close == std::string::npos)); end++) {
      if (list[end] == '[' && open == std::string::npos) open = end;
      else if (list[end] == ']' && close == std::string::npos) close = end;
    }
    const std::string part = list.substr(at, end - at);
    if (part.empty() || (open != std::string::npos) != (close != std::string::npos)) return bad();
    at = end + 1;
    if (open == std::string::npos) {
      out.push_back(part);
      continue;
    }
    const std::size_t base = end - part.size();
    const std::string before = list.substr(base, open - base), after = list.substr(close + 1, end - close - 1);
    std::istringstream ranges(list.substr(open + 1, close - open - 1));
    for (std::string range; std::getline(ranges, range, ',');) {
      const std::size_t dash = range.find('-');
      const std::string low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
      const auto digits = [](const std::string& s) { return !s.empty() && s.size() < 9 && s.find_first_not_of("0123456789") == std::string::npos; };
      if (!digits(low) || !digits(high)) return bad();
      const unsigned long first = std::strtoul(low.c_str(), nullptr, 10), last = std::strtoul(high.c_str(), nullptr, 10);
      if (first > last || last - first > 100'000) return bad();
      for (unsigned long n = first; n <= last; n++) {
        std::string number = std::to_string(n);
        if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
        out.push_back(before + number + after);
      }
    }
  }
  if (out.empty()) return bad();
  return out;
}

Result<std::vector<Founder>> parse_nodes(const std::string& text, std::uint16_t port, std::uint32_t instances) {
  std::vector<Founder> nodes;
  std::set<std::string> seen;
  const auto add = [&](Founder one, const std::string& where) -> Result<void> {
    if (!seen.insert(one.address).second) return fail(Code::invalid, where, ": ", one.address, " is named twice");
    nodes.push_back(std::move(one));
    return {};
  };
  if (text.rfind("slurm:", 0) == 0) {
    std::string list = text.substr(6);
    if (list.empty())
      if (const char* set = std::getenv("SLURM_JOB_NODELIST"); set != nullptr) list = set;
    if (list.empty()) return fail(Code::invalid, "--nodes slurm: takes a list, or $SLURM_JOB_NODELIST");
    TRY_LET(hosts, expand_hosts(list));
    for (const std::string& host : hosts) TRY(add({host + ":" + std::to_string(port), instances, {}}, "--nodes " + text));
    return nodes;
  }
  TRY_LET(lines, support::read_file(text));
  std::istringstream in(lines);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = text + ":" + std::to_string(++number);
    std::istringstream words(line.substr(0, line.find('#')));
    Founder one;
    one.instances = instances;
    if (!(words >> one.address)) continue;
    if (auto parsed = net::parse_address(one.address); !parsed) return base::add_context(where, std::move(parsed).error());
    for (std::string word; words >> word;) {
      const std::string value = word.substr(std::min(word.size(), word.find('=') + 1));
      if (word.rfind("rack=", 0) == 0) {
        one.rack = value;
      } else if (word.rfind("instances=", 0) == 0) {
        one.instances = static_cast<std::uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
        if (one.instances == 0 || one.instances > kInstancesOfNode) return fail(Code::invalid, where, ": ", word, "; 1 to 1024 are possible");
      } else {
        return fail(Code::invalid, where, ": \"", word, "\" is neither instances=N nor rack=NAME");
      }
    }
    TRY(add(std::move(one), where));
  }
  if (nodes.empty()) return fail(Code::invalid, text, " names no node");
  return nodes;
}

}  // namespace zht::server

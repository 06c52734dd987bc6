// Runs simulated clusters: one seed, one run, repeated exactly.
//   zht_sim --seeds 1000 [--from 1] [--defect NAME] [--seconds 5] [--verbose | --messages]
//           [--protocol] [--power | --stalls | --loaded | --starved | --refusals | --keepers | --rot | --disaster | --lost-keepers |
//            --old-copies]
//           [--node-dies | --process-dies]
//   zht_sim ... --stats       what the world did to them, by kind
//   zht_sim --list
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "tests/sim/cluster.h"
#include "tests/sim/defects.h"

using namespace zht::sim;

int main(int argc, char** argv) {
  std::uint64_t from = 1, seeds = 100;
  RunOptions options;
  std::string defect = "none";
  bool stats = false;
  for (int i = 1; i < argc; i++) {
    const std::string flag = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : (std::exit(2), ""); };
    if (flag == "--seeds") seeds = std::strtoull(value(), nullptr, 10);
    else if (flag == "--from") from = std::strtoull(value(), nullptr, 10);
    else if (flag == "--seconds") options.seconds = std::atof(value());
    else if (flag == "--verbose") options.verbose = true;
    else if (flag == "--messages") options.verbose = options.messages = true;
    else if (flag == "--stats") stats = true;
    else if (flag == "--power") options.emphasis = RunOptions::Emphasis::power;
    else if (flag == "--stalls") options.emphasis = RunOptions::Emphasis::stalls;
    else if (flag == "--loaded") options.emphasis = RunOptions::Emphasis::loaded;
    else if (flag == "--starved") options.emphasis = RunOptions::Emphasis::starved;
    else if (flag == "--refusals") options.emphasis = RunOptions::Emphasis::refusals;
    else if (flag == "--keepers") options.emphasis = RunOptions::Emphasis::keepers;
    else if (flag == "--rot") options.emphasis = RunOptions::Emphasis::rot;
    else if (flag == "--disaster") options.emphasis = RunOptions::Emphasis::disaster;
    else if (flag == "--lost-keepers") options.emphasis = RunOptions::Emphasis::lost_keepers;
    else if (flag == "--old-copies") options.emphasis = RunOptions::Emphasis::old_copies;
    else if (flag == "--protocol") options.instances = false;
    else if (flag == "--node-dies") options.scenario = RunOptions::Scenario::node_dies;
    else if (flag == "--process-dies") options.scenario = RunOptions::Scenario::process_dies;
    else if (flag == "--defect") {
      defect = value();
      const KnownDefect* const known = find_defect(defect);
      if (known == nullptr) return std::fprintf(stderr, "zht_sim: no defect \"%s\"; see --list\n", defect.c_str()), 2;
      options.defects = known->all();
      options.instances = known->instances;
      options.emphasis = known->emphasis;
    } else if (flag == "--list") {
      for (const KnownDefect& one : known_defects())
        std::printf("%-28s found within %llu seeds%s\n", one.name, static_cast<unsigned long long>(one.seeds),
                    one.instances ? "" : ", by the bare protocol");
      return 0;
    } else {
      std::fprintf(stderr, "zht_sim --seeds N [--from N] [--defect NAME] [--seconds S] [--verbose | --messages] [--stats]\n"
                           "        [--protocol] [--power | --stalls | --loaded | --starved | --refusals | --keepers | --rot | --disaster |\n"
                           "        --lost-keepers | --old-copies]\n"
                           "        [--node-dies | --process-dies]\n"
                           "zht_sim --list\n");
      return flag == "--help" ? 0 : 2;
    }
  }
  std::map<std::string, std::pair<int, std::uint64_t>> kinds;
  RunResult sum;
  std::uint64_t bad = 0, lost = 0;
  std::vector<Micros> gaps;
  for (std::uint64_t seed = from; seed < from + seeds; seed++) {
    const RunResult one = run_cluster(seed, options);
    sum.operations += one.operations;
    sum.answered += one.answered;
    sum.given_up += one.given_up;
    sum.events += one.events;
    sum.views += one.views;
    sum.faults += one.faults;
    sum.snapshots += one.snapshots;
    sum.rewinds += one.rewinds;
    sum.alone += one.alone;
    sum.unsure += one.unsure;
    sum.damaged += one.damaged;
    lost += one.sole_copy_lost;
    sum.last_second_lost += one.last_second_lost;
    sum.disasters += one.disasters;
    sum.abandoned += one.abandoned;
    sum.kept_alone += one.kept_alone;
    sum.undone += one.undone;
    sum.put_back += one.put_back;
    sum.all_put_back += one.all_put_back;
    sum.happened += one.happened;
    gaps.push_back(one.longest_gap);
    bad += !one.violations.empty();
    std::set<std::string> once;
    for (const Violation& violation : one.violations) {
      if (!once.insert(violation.kind).second) continue;
      auto& kind = kinds[violation.kind];
      if (kind.first++ == 0) kind.second = seed;
      if (options.verbose || (defect == "none" && bad <= 3 && once.size() < 4))
        std::fprintf(stderr, "seed %llu: %s: %s\n", static_cast<unsigned long long>(seed), violation.kind.c_str(), violation.text.c_str());
    }
  }
  std::sort(gaps.begin(), gaps.end());
  const auto count = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("defect %s: %llu seeds, %llu bad | %llu operations, %llu answered, %llu given up | %llu views, "
              "%llu faults, %llu snapshots, %llu events, %llu rewinds, %llu alone, %llu unsure, %llu damaged | "
              "longest gap p50 %lld p99 %lld max %lld ms | sole copy lost in %llu, last second lost in %llu\n",
              defect.c_str(), count(seeds), count(bad), count(sum.operations), count(sum.answered), count(sum.given_up), count(sum.views),
              count(sum.faults), count(sum.snapshots), count(sum.events), count(sum.rewinds), count(sum.alone), count(sum.unsure),
              count(sum.damaged), static_cast<long long>(gaps[gaps.size() / 2] / 1000),
              static_cast<long long>(gaps[gaps.size() * 99 / 100] / 1000), static_cast<long long>(gaps.back() / 1000), count(lost),
              count(sum.last_second_lost));
  for (std::size_t i = 0; stats && i < static_cast<std::size_t>(Happened::count); i++) {
    const auto kind = static_cast<Happened>(i);
    std::printf("    %-36s %12llu\n", name_of(kind), count(sum.happened.of(kind)));
  }
  if (sum.disasters > 0) std::printf("    disasters %llu, partitions given up %llu\n", count(sum.disasters), count(sum.abandoned));
  if (sum.put_back > 0)
    std::printf("    older copies put back %llu, of all nodes %llu; partitions given up %llu\n", count(sum.put_back), count(sum.all_put_back),
                count(sum.abandoned));
  if (sum.kept_alone > 0)
    std::printf("    kept alone %llu, partitions whose newest view was undone %llu\n", count(sum.kept_alone), count(sum.undone));
  for (const auto& [kind, seen] : kinds)
    std::printf("    %-42s in %d seeds, first %llu\n", kind.c_str(), seen.first, count(seen.second));
  return bad > 0 ? 1 : 0;
}

#include "tests/sim/defects.h"

namespace zht::sim {
namespace {

using replication::Defect;
using Emphasis = RunOptions::Emphasis;

constexpr KnownDefect kKnown[] = {
    {"promote_learner_blindly", Defect::promote_learner_blindly, 300},
    {"acknowledge_early", Defect::acknowledge_early, 300},
    {"acknowledge_unsynced", Defect::acknowledge_unsynced, 2'000, false, Emphasis::power, Defect::trust_old_copy},
    {"no_fence", Defect::no_fence, 300},
    {"drop_tail", Defect::drop_tail, 300},
    {"no_lease", Defect::no_lease, 500, false},
    {"dirty_read", Defect::dirty_read, 300},
    {"few_copies", Defect::few_copies, 300},
    {"same_incarnation", Defect::same_incarnation, 300},
    {"trust_damage", Defect::trust_damage, 300, false, Emphasis::none, Defect::trust_old_copy},
    {"forget_loss", Defect::forget_loss, 400, false, Emphasis::none, Defect::trust_old_copy},
    {"keeper_unsynced", Defect::keeper_unsynced, 300},
    {"keeper_amnesia", Defect::keeper_amnesia, 300},
    {"install_from_one", Defect::install_from_one, 1000, true, Emphasis::keepers, Defect::vote_from_old_copy},
    {"vote_unasked", Defect::vote_unasked, 400, true, Emphasis::lost_keepers, Defect::vote_from_old_copy},
    {"same_generation", Defect::same_generation, 400, true, Emphasis::lost_keepers},
    {"trust_old_refusal", Defect::trust_old_refusal, 300, true, Emphasis::refusals},
    {"no_retry_table", Defect::no_retry_table, 300},
    {"forget_refusals", Defect::forget_refusals, 400, false},
    {"keep_results_of_truncated", Defect::keep_results_of_truncated, 1'000},
    {"copies_by_instance", Defect::copies_by_instance, 100},
    {"wake_uncommitted", Defect::wake_uncommitted, 300},
    {"rest_too_soon", Defect::rest_too_soon, 100},
    {"trust_old_copy", Defect::trust_old_copy, 300, true, Emphasis::old_copies},
    {"same_life_again", Defect::same_life_again, 300, true, Emphasis::old_copies},
    {"forget_sightings", Defect::forget_sightings, 300, true, Emphasis::old_copies},
    {"vote_from_old_copy", Defect::vote_from_old_copy, 300, true, Emphasis::old_copies},
    {"forget_unsettled", Defect::forget_unsettled, 2'000},
};

}  // namespace

std::span<const KnownDefect> known_defects() { return kKnown; }

const KnownDefect* find_defect(const std::string& name) {
  for (const KnownDefect& one : kKnown)
    if (one.name == name) return &one;
  return nullptr;
}

}  // namespace zht::sim

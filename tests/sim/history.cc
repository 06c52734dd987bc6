#include "tests/sim/history.h"

#include <algorithm>

namespace zht::sim {

std::size_t History::called(const Request& request, Micros now) {
  calls_.push_back({request, {}, now, -1});
  if (request.changes()) began_[identity(request)] = now;
  return calls_.size() - 1;
}

void History::returned(std::size_t call, const Reply& reply, Micros now) {
  calls_[call].reply = reply;
  calls_[call].ended = now;
}

void History::committed(std::uint32_t partition, const EntryPtr& entry, const std::string& where) {
  if (has_lost(partition)) return;
  std::vector<EntryPtr>& log = log_[partition];
  const Version sequence = entry->at.sequence;
  if (sequence <= log.size()) {
    const Entry& known = *log[sequence - 1];
    if (known.at != entry->at || known.payload != entry->payload)
      bad("members committed different entries", "partition " + std::to_string(partition) + " entry " + std::to_string(sequence) + " at " + where);
    return;
  }
  const std::string what = "partition " + std::to_string(partition) + " entry " + std::to_string(sequence) + " at " + where;
  if (sequence != log.size() + 1) return bad("hole in the committed log", what);
  log.push_back(entry);
  const Resolved change = decode_resolved(entry->payload);
  if (!where_.emplace(Identity{partition, change.client, change.sequence}, sequence).second)
    bad("request executed twice", "client " + std::to_string(change.client) + " request " + std::to_string(change.sequence));
  auto& states = states_[{partition, change.key}];
  std::optional<std::string> value = states.empty() ? std::nullopt : states.rbegin()->second;
  switch (change.kind) {
    case Resolved::Kind::insert: value = change.value; break;
    case Resolved::Kind::append: value = value.value_or("") + change.value; break;
    case Resolved::Kind::remove: value.reset(); break;
  }
  states[sequence] = std::move(value);
}

void History::abandoned(std::uint32_t partition, Epoch base, Micros now) {
  since_[partition] = now;
  abandoning_[partition] = base;
}

bool History::of_given_up_log(std::uint32_t partition, Position at) const {
  const auto cuts = cuts_.find(partition);
  return cuts != cuts_.end() && std::any_of(cuts->second.begin(), cuts->second.end(), [&](const Cut& cut) {
    return at.epoch <= cut.base && at.sequence > cut.kept;
  });
}

void History::forget_after(std::uint32_t partition, Version kept) {
  places_[partition].resize(kept);
  for (auto whose = whose_.lower_bound({partition, kept + 1}); whose != whose_.end() && whose->first.first == partition;) {
    where_.erase(whose->second);
    whose = whose_.erase(whose);
  }
  for (auto& [key, states] : states_)
    if (key.first == partition) states.erase(states.upper_bound(kept), states.end());
}

void History::committed(std::uint32_t partition, const Ledger& ledger, Position to, const std::string& where) {
  if (has_lost(partition) || of_given_up_log(partition, to)) return;
  std::vector<Position>& log = places_[partition];
  const std::string what = "partition " + std::to_string(partition) + " entry " + std::to_string(to.sequence) + " at " + where;
  if (to.sequence <= log.size()) {
    if (to.sequence > 0 && log[to.sequence - 1] != to) bad("members committed different entries", what);
    return;
  }
  const auto path = ledger.path(partition, log.size(), to);
  if (!path) return bad("committed what nobody made", what);
  if (!path->empty() && path->front()->previous != (log.empty() ? Position{} : log.back()))
    return bad("members committed different entries", what);
  for (const Ledger::Item* item : *path) {
    const Version version = item->at.sequence;
    log.push_back(item->at);
    if (item->client != 0) {
      const Identity who{partition, item->client & 0xffff, item->sequence};
      if (const auto [first, fresh] = where_.emplace(who, version); !fresh)
        bad("request executed twice", "client " + std::to_string(std::get<1>(who)) + " request " + std::to_string(item->sequence) +
                                          " as entries " + std::to_string(first->second) + " and " + std::to_string(version));
      whose_[{partition, version}] = who;
    }
    for (const std::string& key : item->keys) {
      const auto value = item->state.find(key);
      states_[{partition, key.substr(key.find('}') + 1)}][version] =
          value == item->state.end() ? std::nullopt : std::optional(*value->second.bytes);
    }
  }
}

void History::promoted(std::uint32_t partition, const Ledger& ledger, Position end, const std::string& where) {
  const std::vector<Position>& all = places_[partition];
  if (has_lost(partition)) return;
  const auto has = [&](Version version) {
    if (end.sequence < version) return false;
    const auto path = ledger.path(partition, version - 1, end);
    return path && path->front()->at == all[version - 1];
  };
  if (const auto base = abandoning_.find(partition); base != abandoning_.end()) {
    Version kept = all.size();
    while (kept > 0 && !has(kept)) kept--;
    cuts_[partition].push_back({base->second, std::max(kept, end.sequence)});
    forget_after(partition, kept);
    abandoning_.erase(base);
    return;
  }
  if (all.empty()) return;
  if (has(all.size())) {
    may_lose_.erase(partition);  // nothing was lost, and the next loss is looked at anew
    return;
  }
  const std::string what = "partition " + std::to_string(partition) + " entry " + std::to_string(all.size()) + " at " + where;
  const auto forgiven = may_lose_.find(partition);
  if (forgiven == may_lose_.end()) return bad("new primary lacks a committed entry", what);
  if (forgiven->second > 0 && !has(forgiven->second))
    return bad("a loss of power took what was synced", what + ", entry " + std::to_string(forgiven->second) + " was synced");
  lost_.insert(partition);
}

void History::may_lose(std::uint32_t partition, Version kept) {
  may_lose_[partition] = kept;
}

Version History::agreed(std::uint32_t partition, const Ledger& ledger, Position at) const {
  const auto log = places_.find(partition);
  if (log == places_.end()) return 0;
  for (const Ledger::Item* item = ledger.find(partition, at); item != nullptr; item = ledger.find(partition, item->previous))
    if (item->at.sequence <= log->second.size() && log->second[item->at.sequence - 1] == item->at) return item->at.sequence;
  return 0;
}

void History::promoted(std::uint32_t partition, const std::vector<EntryPtr>& log, const std::string& where) {
  if (has_lost(partition)) return;
  const std::vector<EntryPtr>& all = log_[partition];
  for (std::size_t i = 0; i < all.size(); i++) {
    if (i < log.size() && log[i]->at == all[i]->at) continue;
    return bad("new primary lacks a committed entry", "partition " + std::to_string(partition) + " entry " + std::to_string(i + 1) + " at " + where);
  }
}

Version History::position(const Call& call) const {
  if (!call.request.changes() || call.reply.status != Status::ok) return std::max(call.reply.version, call.assigned);
  const auto found = where_.find(identity(call.request));
  return found == where_.end() ? 0 : found->second;
}

void History::judge() {
  std::vector<std::pair<Micros, Call*>> begins, ends;
  for (Call& call : calls_) {
    if (call.ended < 0 || has_lost(call.request.partition)) continue;
    if (const auto since = since_.find(call.request.partition); since != since_.end() && (call.began < since->second || call.request.eventual))
      continue;
    begins.emplace_back(call.began, &call);
    ends.emplace_back(call.ended, &call);
  }
  const auto earlier = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(begins.begin(), begins.end(), earlier);
  std::stable_sort(ends.begin(), ends.end(), earlier);
  std::map<Key, Version> newest;  // that any finished operation has shown
  std::size_t done = 0;
  for (const auto& [when, call] : begins) {
    for (; done < ends.size() && ends[done].first < when; done++) {
      const Call& over = *ends[done].second;
      if (over.request.eventual) continue;
      Version& version = newest[{over.request.partition, over.request.key}];
      version = std::max(version, position(over));
    }
    judge_call(*call, newest[{call->request.partition, call->request.key}]);
  }
}

// An instance remembers no version of what is not there. The earliest state that such an answer can have seen is taken: then
// those that began later have the most to choose from.
bool History::assign(Call& call, Version least) {
  const auto& states = states_[{call.request.partition, call.request.key}];
  if (call.request.verb == Verb::watch) least = std::max(least, call.request.after);
  auto state = states.upper_bound(least);
  if (state == states.begin() ? least == 0 : !std::prev(state)->second.has_value()) {
    call.assigned = least;
    return true;
  }
  for (; state != states.end(); ++state) {
    if (state->second) continue;
    call.assigned = state->first;
    const auto who = whose_.find({call.request.partition, state->first});
    return who == whose_.end() || began_[who->second] <= call.ended;
  }
  return false;
}

void History::judge_call(Call& call, Version least) {
  const Request& request = call.request;
  const std::string what = "client " + std::to_string(request.client) + " request " + std::to_string(request.sequence) + " on " +
                           request.key + " in partition " + std::to_string(request.partition);
  const bool changed = request.changes() && call.reply.status == Status::ok;
  const bool refused = request.changes() && !changed;
  const auto done = where_.find(identity(request));
  if (call.reply.status == Status::expired) return bad("live request refused as expired", what);
  if (changed && done == where_.end()) return bad("acknowledged change lost", what);
  if (refused && done != where_.end()) return bad("refused request was executed", what);
  auto& states = states_[{request.partition, request.key}];
  if (request.eventual) least = request.after;
  if (!changed && call.reply.version == 0 && !places_[request.partition].empty()) {
    if (!assign(call, least)) return bad("read of a state that never was", what + ": nothing there");
    if (request.verb == Verb::cswap && !request.expected) bad("refused when it should have been executed", what);
    return;
  }
  const Version at = position(call);
  if (changed) {  // it must have been due
    const auto here = states.find(at);
    std::optional<std::string> before;
    if (here != states.begin()) before = std::prev(here)->second;
    if (request.verb == Verb::cswap && before != request.expected) bad("executed when it should have been refused", what);
    if (request.verb == Verb::remove && !before) bad("executed when it should have been refused", what);
  }
  if (at < least)
    return bad(changed ? "change ordered before an earlier one" : "stale read",
               what + ": " + std::to_string(at) + " < " + std::to_string(least));
  if (changed && (request.verb == Verb::update || request.verb == Verb::batch))
    if (const auto made = states.find(at); made == states.end() || made->second != call.reply.value)
      bad("answer of a change that was another", what);
  if (changed) return;
  std::optional<std::string> value;
  if (at != 0) {
    const auto seen = states.find(at);
    if (seen == states.end()) return bad("read of a change that was never committed", what);
    value = seen->second;
  }
  if (request.verb == Verb::cswap && value == request.expected) bad("refused when it should have been executed", what);
  if (request.verb == Verb::remove && value) bad("refused when it should have been executed", what);
  if (!refused && (call.reply.status == Status::ok) != value.has_value()) bad("read of a state that never was", what);
  if (!refused && value && value != call.reply.value) bad("read of a value that never was", what);
  if (request.verb == Verb::watch && at <= request.after) bad("watcher woken for nothing", what);
}

}  // namespace zht::sim

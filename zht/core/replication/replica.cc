#include "zht/core/replication/replica.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "novoht/base/mutant.h"

namespace zht::replication {
namespace {

using Kind = Change::Kind;
using Verdict = Ack::Verdict;

constexpr auto kQuestion = std::chrono::milliseconds(500);  // whether the copy of a former member is needed

// Spreads partitions over candidates that are otherwise alike.
std::uint64_t lot(PartitionId partition, InstanceId instance) {
  std::uint64_t x = (std::uint64_t{static_cast<std::uint32_t>(partition)} << 32) ^ static_cast<std::uint32_t>(instance);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

}  // namespace

Replica::Replica(ReplicaHost& host, PartitionId partition) : host_(host), partition_(partition) {
  base_ = end_ = host_.store().end(partition_);
  durable_ = end_.sequence;
  origin_ = host_.store().origin(partition_);
  adopted_at_ = host_.now();
}

Replica::Role Replica::role() const {
  if (is_me(view_.primary)) return Role::primary;
  if (in_sync(view_, host_.self())) return Role::sync;
  if (contains(view_.learners, host_.self())) return Role::learner;
  return Role::stranger;
}

bool Replica::is_alone() const {
  const bool enough = needed() <= 1;
  return role() == Role::primary && view_.sync.size() == 1 && view_.learners.empty() && enough &&
         commit_ == durable_ && durable_ == end_.sequence && held_.empty();
}

std::optional<Position> Replica::position_of(Version sequence) const {
  if (sequence < base_.sequence || sequence > end_.sequence) return {};
  Epoch epoch = base_.epoch;
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    if (run->sequence > sequence) continue;
    epoch = run->epoch;
    break;
  }
  return Position{epoch, sequence};
}

// --- the log ---

void Replica::catch_up() {
  const Position now = host_.store().end(partition_);
  if (now == end_) return;
  base_ = end_ = now;
  runs_.clear();
  clear_tail();
}

void Replica::count_tail(const Entry& entry, bool comes) {
  const std::size_t size = size_of(entry);
  TailBytes& all = host_.tails();
  const bool committed = entry.at.sequence <= commit_;
  if (comes) {
    tail_bytes_ += size;
    all.all += size;
    if (!committed) all.uncommitted += size;
  } else {
    tail_bytes_ -= size;
    all.all -= size;
    if (!committed) all.uncommitted -= size;
  }
}

void Replica::drop_first_of_tail() {
  count_tail(*tail_.front(), false);
  tail_.pop_front();
}

void Replica::clear_tail() {
  while (!tail_.empty()) drop_first_of_tail();
}

Result<void> Replica::take(EntryPtr entry) {
  TRY(host_.store().apply(partition_, *entry));
  if (entry->at.epoch != end_.epoch) runs_.push_back(entry->at);
  end_ = entry->at;
  count_tail(*entry, true);
  tail_.push_back(std::move(entry));
  return {};
}

bool Replica::truncate(Version keep) {
  if (keep >= end_.sequence) return true;
  if (keep < commit_) {
    host_.on_broken(partition_, "a committed entry would be taken back");
    return false;
  }
  const auto to = position_of(keep);
  if (!to || keep < host_.store().floor(partition_)) return false;
  if (!host_.store().rewind(partition_, *to)) {
    cannot_write_ = true;
    return false;
  }
  while (!tail_.empty() && tail_.back()->at.sequence > keep) {
    count_tail(*tail_.back(), false);
    tail_.pop_back();
  }
  while (!runs_.empty() && runs_.back().sequence > keep) runs_.pop_back();
  end_ = *to;
  durable_ = std::min(durable_, keep);
  for (Mark& mark : marks_) mark.end = std::min(mark.end, keep);
  rewinds_++;
  return true;
}

void Replica::forget_log() {
  base_ = end_ = {};
  runs_.clear();
  clear_tail();
  durable_ = commit_ = verified_ = acked_ = 0;
  marks_.clear();
}

bool Replica::note_joined(Epoch epoch) {
  if (!host_.store().note_joined(partition_, epoch)) return false;
  origin_.joined = epoch;
  rewinds_++;  // nothing is acknowledged before that is durable
  return true;
}

bool Replica::is_spare() const {
  const Epoch joined = broken(Defect::forget_by_old_view) ? Epoch{0} : std::max(origin_.joined, end_.epoch);
  if (taking_over_ && !broken(Defect::forget_promise)) return false;
  return role() == Role::stranger && view_.epoch > joined && !member_at(view_, host_.self().instance) &&
         nodes_of(view_.sync) >= std::max<std::size_t>(1, view_.need) && (end_.sequence > 0 || import_);
}

void Replica::ask_whether_needed() {
  if (host_.now() < next_question_) return;
  next_question_ = host_.now() + kQuestion;
  // Who is asked for a view newer than none tells the one it knows.
  for (Member one : view_.sync)
    host_.message_to(one.instance).acks.push_back({.partition = partition_, .epoch = Epoch{0}, .verdict = Verdict::behind});
}

bool Replica::is_vouched() const {
  return broken(Defect::forget_unasked) || std::all_of(view_.sync.begin(), view_.sync.end(), [&](Member one) {
    const auto said = vouched_.find(one);
    return said != vouched_.end() && host_.now() - said->second < 2 * kQuestion;
  });
}

void Replica::on_view_of(Member from, const View& view) {
  if (view.epoch == view_.epoch && in_sync(view_, from)) vouched_[from] = host_.now();
}

void Replica::forget() {
  CHECK(role() == Role::stranger);
  forget_log();
  import_.reset();
  imported_ = {};
  origin_ = host_.store().origin(partition_);
}

void Replica::trim_tail() { trim(host_.timing().tail_bytes, Wanted::keep); }

void Replica::trim(std::size_t most, Wanted wanted) {
  const Timing& timing = host_.timing();
  while (tail_bytes_ > most && !tail_.empty() && tail_.front()->at.sequence <= commit_) {
    const Version first = tail_.front()->at.sequence;
    const bool lacking = std::any_of(followers_.begin(), followers_.end(), [&](const auto& one) {
      const Follower& follower = one.second;
      return follower.snapshot ? follower.snapshot->begun() < first : follower.attached && follower.match < first;
    });
    if (lacking && wanted == Wanted::keep && tail_bytes_ < 4 * timing.tail_bytes) return;
    drop_first_of_tail();
  }
}

void Replica::mark(std::uint64_t serial) {
  const Version marked = marks_.empty() ? durable_ : marks_.back().end;
  const std::uint64_t rewinds = marks_.empty() ? rewinds_durable_ : marks_.back().rewinds;
  if (marked != end_.sequence || rewinds != rewinds_) marks_.push_back({serial, end_.sequence, rewinds_});
}

void Replica::on_durable(std::uint64_t serial) {
  bool changed = false;
  while (!marks_.empty() && marks_.front().serial <= serial) {
    durable_ = std::max(durable_, marks_.front().end);
    rewinds_durable_ = marks_.front().rewinds;
    marks_.pop_front();
    changed = true;
  }
  if (changed && role() == Role::primary) try_commit();
}

void Replica::advance(Version commit) {
  commit = std::min(commit, end_.sequence);
  if (commit <= commit_) return;
  host_.on_committed(partition_, commit_ + 1, commit);
  for (Version one = std::max(commit_ + 1, first_in_memory()); one <= commit; one++)
    host_.tails().uncommitted -= size_of(*tail_[one - first_in_memory()]);
  commit_ = commit;
  host_.store().settle(partition_, commit_);
  for (; !touched_order_.empty() && touched_order_.front().first <= commit_; touched_order_.pop_front()) {
    const auto [sequence, key] = touched_order_.front();
    if (const auto found = touched_.find(key); found != touched_.end() && found->second == sequence) touched_.erase(found);
  }
  trim_tail();
}

// --- views ---

void Replica::adopt(const View& view) {
  if (!may_follow(view_.epoch, view.epoch)) return;
  if (is_alone()) catch_up();
  const base::Time now = host_.now();
  const Role was = role();
  if (was == Role::sync || was == Role::learner) host_.channel(view_.primary).depart(partition_, view_.epoch);
  const View before_view = std::exchange(view_, view);
  const bool counts = was == Role::learner && (role() == Role::sync || role() == Role::primary);
  adopted_at_ = was == Role::stranger && broken(Defect::forget_grace) ? base::Time{} : now;
  deposing_ = taking_over_ = false;
  vouched_.clear();
  verified_ = acked_ = 0;
  ack_due_ = false;
  next_standing_ = {};
  wish_ = {};
  wish_sent_ = full_ = false;
  // Whoever counts was a learner first, or told to take over; so this is durable before it counts, see make_durable().
  const bool joins = role() == Role::learner && (was != Role::learner || view.epoch != next(before_view.epoch));
  cannot_write_ = (joins && !note_joined(view_.epoch)) || (counts && !host_.store().make_durable());
  last_proposed_ = {};
  // Who has just fallen out of the view is not the first to be taken in again.
  std::erase_if(shunned_, [&](const auto& one) { return one.second <= now; });
  const auto shares_node = [&](Member one) {
    const auto here = [&](Member other) { return home_of(other.instance) == home_of(one.instance); };
    return std::any_of(view_.sync.begin(), view_.sync.end(), here) || std::any_of(view_.learners.begin(), view_.learners.end(), here);
  };
  for (const Members* members : {&before_view.sync, &before_view.learners})
    for (Member one : *members)
      if (!shares_node(one)) shunned_[home_of(one.instance)] = now + host_.timing().shun;
  note_short(before_view);
  std::map<Member, Follower> before = std::exchange(followers_, {});
  peers_.clear();
  if (role() != Role::primary) {
    let_go();
    touched_.clear();
    touched_order_.clear();
    goal_.reset();
    return;
  }
  if (was != Role::primary) {
    if (broken(Defect::drop_tail)) (void)truncate(std::max(commit_, base_.sequence));
    takeover_ = {view_.epoch, end_.sequence};
    touched_.clear();
    touched_order_.clear();
    host_.on_promoted(partition_);
  }
  for (const Members* members : {&view_.sync, &view_.learners}) {
    for (Member one : *members) {
      if (is_me(one)) continue;
      Follower& follower = followers_[one];
      follower.next = end_.sequence + 1;
      follower.since = now;
      peers_.push_back(one);
      // A copy under way goes on: it does not depend on the epoch.
      const auto old = before.find(one);
      if (old == before.end()) continue;
      // Who was silent goes on being silent: else views that follow each other fast would keep it for ever.
      if (was == Role::primary && !old->second.attached && !old->second.snapshot) follower.since = old->second.since;
      follower.snapshot_id = old->second.snapshot_id;
      if (!old->second.snapshot) continue;
      follower.snapshot = std::move(old->second.snapshot);
      follower.piece = old->second.piece;
      follower.piece_due = true;
    }
  }
  // What confirmed a read in another epoch counts for nothing.
  for (Held& held : held_) held.after = host_.last_beacon();
  try_commit();
}

bool Replica::follows(Member from, Epoch epoch) const {
  const Role mine = role();
  return (mine == Role::sync || mine == Role::learner) && epoch == view_.epoch && from == view_.primary && !deposing_;
}

// --- as the primary: requests ---

bool Replica::serves(Epoch epoch) const { return role() == Role::primary && epoch == view_.epoch && !hands_over(epoch); }

base::WallTime Replica::time() {
  if (is_alone()) clock_.set(host_.now(), host_.wall());
  return clock_.read(host_.now(), host_.wall());
}

bool Replica::hands_over(Epoch epoch) const {
  return role() == Role::primary && epoch == view_.epoch && wish_.kind == Kind::transfer && !broken(Defect::serve_in_transfer);
}

Result<Version> Replica::append(std::string payload, std::span<const std::uint64_t> keys) {
  CHECK(role() == Role::primary);
  const Version sequence = end_.sequence + 1;
  const Position previous = end_;
  auto taken = take(std::make_shared<Entry>(Entry{{view_.epoch, sequence}, std::move(payload)}));
  full_ = !taken && taken.code() == Code::no_space;
  if (!taken) return std::move(taken).error();
  host_.on_appended(partition_, *tail_.back(), previous);
  for (std::uint64_t key : keys) {
    touched_[key] = sequence;
    touched_order_.emplace_back(sequence, key);
  }
  return sequence;
}

Version Replica::need_of(std::uint64_t key) const {
  const auto found = touched_.find(key);
  return found == touched_.end() ? 0 : found->second;
}

void Replica::hold(Held held) {
  if (held.reads) {
    held.after = host_.last_beacon();
    held.need = broken(Defect::dirty_read) ? 0 : std::max(held.need, takeover_.sequence);
  }
  held_.push_back(held);
}

template <typename Test>
bool Replica::all_of_mine(Test test) const {
  // While a promotion of its own is undecided the primary must be safe whether or not it has taken effect.
  const bool also = wish_.kind == Kind::promote_learner && wish_sent_ && !broken(Defect::promotion_without_lease);
  return std::all_of(view_.sync.begin(), view_.sync.end(), [&](Member one) { return is_me(one) || test(one); }) &&
         (!also || test(wish_.target));
}

base::Time Replica::granted() const {
  base::Time oldest = base::Time::max();
  const bool all = all_of_mine([&](Member one) {
    const Follower& follower = followers_.at(one);
    const Channel& channel = host_.channel(one);
    if (!follower.attached || channel.has_left(partition_, view_.epoch) || channel.answered() <= follower.attached_after)
      return false;
    oldest = std::min(oldest, channel.answered());
    return true;
  });
  return all ? oldest : base::Time{};
}

bool Replica::leased(base::Time granted) const {
  return broken(Defect::no_lease) || granted == base::Time::max() ||
         (granted != base::Time{} && host_.now() < granted + host_.timing().lease);
}

void Replica::release() {
  if (held_.empty()) return;
  const base::Time stamp = granted();
  const bool has_lease = leased(stamp);
  const bool silent = wish_.kind == Kind::transfer && wish_sent_ && !broken(Defect::serve_in_transfer);
  std::deque<Held> later;
  for (Held& held : held_) {
    const bool committed = held.need <= commit_;
    if (committed && (!held.reads || (!silent && (has_lease || stamp > held.after)))) {
      host_.release(partition_, held, true);
      continue;
    }
    if (committed && !silent) host_.want_beacon();
    later.push_back(held);
  }
  held_ = std::move(later);
}

void Replica::note_short(const View& before) {
  for (Member one : before.sync)
    if (!member_at(view_, one.instance)) last_lost_ = one.instance;
  const bool lacks = role() == Role::primary && spread().sync_nodes < needed();
  if (!lacks) short_since_ = {};
  else if (short_since_ == base::Time{}) short_since_ = host_.now();
}

std::string Replica::short_words() const {
  std::ostringstream out;
  out << "partition " << static_cast<std::uint32_t>(partition_) << " has " << spread().sync_nodes << " of "
      << needed() << " synchronous copies, and changes wait for another";
  constexpr std::uint64_t kNodes = 1'000'000;  // of an instance that nobody has told of, the site is no node's
  if (last_lost_ && host_.site_of(*last_lost_).node <= kNodes) out << "; node " << host_.site_of(*last_lost_).node << " was the last to lose one";
  return std::move(out).str();
}

std::size_t Replica::nodes_of(const Members& members, std::optional<Member> except) const {
  std::vector<std::uint64_t> nodes;
  for (Member one : members)
    if (one != except) nodes.push_back(broken(Defect::copies_by_instance) ? static_cast<std::uint32_t>(one.instance) : home_of(one.instance));
  std::sort(nodes.begin(), nodes.end());
  return static_cast<std::size_t>(std::unique(nodes.begin(), nodes.end()) - nodes.begin());
}

// Looked at with every acknowledgement, so remembered.
const Replica::Spread& Replica::spread() const {
  const std::pair is(view_.epoch, host_.sites_version());
  if (spread_of_ == is) return spread_;
  spread_of_ = is;
  Members all = view_.sync;
  all.insert(all.end(), view_.learners.begin(), view_.learners.end());
  const auto racks_of = [&](const Members& members) {
    std::vector<std::uint32_t> racks;
    for (Member one : members) racks.push_back(host_.site_of(one.instance).rack);
    std::sort(racks.begin(), racks.end());
    return static_cast<std::size_t>(std::unique(racks.begin(), racks.end()) - racks.begin());
  };
  spread_ = {nodes_of(all), racks_of(all), nodes_of(view_.sync), racks_of(view_.sync)};
  spread_.grows = spread_.nodes < host_.timing().copies && choose_learner();
  return spread_;
}

std::size_t Replica::needed() const { return std::min<std::size_t>(view_.need, host_.timing().sync_copies); }

template <typename Test>
void Replica::let_go_of(Test test) {
  if (held_.empty()) return;
  std::deque<Held> later;
  for (const Held& held : std::exchange(held_, {})) {
    if (test(held)) host_.release(partition_, held, false);
    else later.push_back(held);
  }
  held_ = std::move(later);
}

// It may have been committed or not, it may be true or not: only asking again can tell.
void Replica::let_go() {
  let_go_of([](const Held&) { return true; });
}

void Replica::try_commit() {
  if (role() != Role::primary) return;
  if (base::kMutant == base::Mutant::one_copy || broken(Defect::acknowledge_early)) return advance(durable_);
  // Fewer than are wanted are enough only for a view that never had as many: a cluster that still grows.
  if (spread().sync_nodes < needed() && !broken(Defect::few_copies)) return;
  Version commit = durable_;
  (void)all_of_mine([&](Member one) {
    commit = std::min(commit, followers_.at(one).match);
    return true;
  });
  // A learner that is a moment behind whenever it is looked at would never count where changes do not pause: they wait for it.
  if (wish_.kind == Kind::promote_learner && !wish_sent_ && host_.now() - wished_at_ > 2 * host_.timing().retry)
    commit = std::min(commit, followers_.at(wish_.target).match);
  advance(commit);
}

// --- as the primary: followers ---

base::Time Replica::heard(Member peer, const Follower& follower) const {
  const Channel& channel = host_.channel(peer);
  const bool here = (follower.attached || follower.snapshot) && !channel.has_left(partition_, view_.epoch);
  return here ? std::max(follower.since, channel.heard()) : follower.since;
}

base::Duration Replica::patience(Member peer, base::Duration least) const {
  const base::Time first = host_.channel(peer).first_heard();
  const bool starting = view_.epoch == Epoch{1} && (first == base::Time{} || host_.now() - first < least);
  // To attach takes two exchanges, of however long a way.
  return std::max(host_.patience(least) + host_.leisure(peer) + 2 * host_.channel(peer).round_trip(),
                  starting ? host_.timing().founding : base::Duration{});
}

// Whether the view is as good without `peer`, or soon will be: another has what it has, or can be taken in.
bool Replica::has_substitute(Member peer) const {
  if (in_sync(view_, peer)) {
    if (nodes_of(view_.sync, peer) >= needed()) return true;
    const auto counts = [&](Member one) {
      const auto here = [&](Member other) { return other != peer && home_of(other.instance) == home_of(one.instance); };
      return std::any_of(view_.sync.begin(), view_.sync.end(), here);
    };
    for (Member one : view_.learners)
      if (one != peer && is_ready(one) && !counts(one)) return true;
  }
  const auto other = choose_learner();
  return other && !is_shunned(home_of(other->instance));
}

// Whether the view had better do without `peer`: nothing says that it follows, for longer than that may be. Where nobody can come in
// its place that is longer, and who speaks and does not follow yet is waited for. A view without it, and two that take it in again,
// would give it yet more to do: who has too much to do already would never be done, and changes wait meanwhile.
bool Replica::is_lost(Member peer, const Follower& follower, base::Duration least) const {
  const base::Time now = host_.now();
  const Timing& timing = host_.timing();
  Channel& channel = host_.channel(peer);
  const base::Duration most = patience(peer, least);
  if (now - heard(peer, follower) <= most) return false;
  const bool mistaken = host_.patience(timing.drop) > timing.drop;  // of late, somebody was taken for dead who was not
  const bool first = !mistaken && in_sync(view_, peer);
  const base::Duration longer = std::max(most, !first ? timing.founding : follower.attached ? least : 3 * least);
  const base::Time here = channel.has_left(partition_, view_.epoch) ? follower.since : std::max(follower.since, channel.heard());
  const bool borne = now - here <= longer && (follower.attached || now - follower.since <= timing.slow);
  if (borne && !has_substitute(peer)) return false;
  channel.suspect();
  return true;
}

void Replica::on_ack(Member from, const Ack& ack) {
  if (ack.epoch > view_.epoch) return ask_view(from);
  if (ack.verdict == Verdict::behind || ack.epoch < view_.epoch) {
    if (ack.verdict == Verdict::behind && ack.epoch < view_.epoch) {
      host_.message_to(from.instance).views.push_back({partition_, view_});
      say_again(from);
    }
    return;
  }
  if (role() != Role::primary) return;
  const auto found = followers_.find(from);
  if (found == followers_.end()) return;
  Follower& follower = found->second;
  switch (ack.verdict) {
    case Verdict::matched:
      if (ack.match > end_.sequence || ack.snapshot < follower.snapshot_id) return;
      follower.match = std::max(follower.match, ack.match);
      follower.commit = std::max(follower.commit, std::min(ack.commit, commit_));
      follower.next = std::max(follower.next, follower.match + 1);
      follower.stuck = follower.full = false;
      // Only now it has dropped what this primary never had; from the next beacon on its answers count.
      if (!follower.attached && ack.match >= takeover_.sequence && !host_.channel(from).has_left(partition_, view_.epoch)) {
        follower.attached = true;
        follower.attached_after = host_.last_beacon();
      }
      return try_commit();
    case Verdict::elsewhere: return resume(follower, ack);
    case Verdict::stuck:
      // Not one that was said before a snapshot and comes after it.
      if (ack.snapshot >= follower.snapshot_id) follower.stuck = true;
      return;
    case Verdict::full: follower.full = true; return;
    case Verdict::behind: return;
  }
}

// What came before the view it belongs to was not taken. It goes out with the view, and the client of a partition that has just been
// handed over does not wait for the next retry; once in a view, for who does not take the view either would be told so without end.
void Replica::say_again(Member to) {
  const auto found = followers_.find(to);
  if (found == followers_.end() || found->second.reminded) return;
  Follower& follower = found->second;
  follower.reminded = true;
  follower.sent = {};
  follower.piece_due = follower.snapshot != nullptr;
}

// The follower has the entry at `hint`; the greatest position that may be common to both logs is sought, an epoch a step.
void Replica::resume(Follower& follower, const Ack& ack) {
  // Repeated messages must not breed repeated searches.
  if (follower.resumed == ack.hint && host_.now() - follower.resumed_at < host_.timing().retry / 2) return;
  follower.resumed = ack.hint;
  follower.resumed_at = host_.now();
  Version at = std::min(ack.hint.sequence, end_.sequence);
  auto mine = position_of(at);
  while (mine && mine->epoch > ack.hint.epoch && at > base_.sequence) {
    const Version first = first_of_epoch(at);
    at = first > base_.sequence ? first - 1 : base_.sequence;
    mine = position_of(at);
  }
  if (!mine || mine->epoch > ack.hint.epoch || at < ack.floor) follower.stuck = true;
  else follower.next = std::max(at, follower.match) + 1;
  follower.sent = {};
}

Version Replica::first_of_epoch(Version sequence) const {
  Version first = base_.sequence;
  for (const Position& run : runs_)
    if (run.sequence <= sequence) first = run.sequence;
  return first;
}

void Replica::send() {
  piece_waits_ = false;
  if (role() != Role::primary) return acknowledge();
  for (Member peer : peers_) send_to(peer, followers_.at(peer));
}

void Replica::send_to(Member peer, Follower& follower) {
  const Timing& timing = host_.timing();
  const base::Time now = host_.now();
  if (!follower.snapshot && (follower.stuck || follower.next < first_in_memory())) {
    const bool being_promoted = wish_.kind == Kind::promote_learner && wish_sent_ && wish_.target == peer;
    follower.stuck = true;
    // Only a learner is ever given a snapshot: what it has counts for nothing. A sync member is dropped first.
    if (!contains(view_.learners, peer) || being_promoted) return;
    begin_snapshot(peer, follower);
  }
  if (follower.snapshot) return send_piece(peer, follower);
  // What is on a long way is not said again before it can have been answered.
  const bool quiet = now - follower.sent >= timing.retry + host_.channel(peer).round_trip();
  const bool unanswered = quiet && (follower.match < end_.sequence || !follower.attached);
  if (unanswered) follower.next = std::min(follower.next, (follower.match == 0 ? end_.sequence : follower.match) + 1);
  const bool news = follower.next <= end_.sequence && follower.next - follower.match <= timing.window + 1;
  const bool told = follower.commit >= commit_ || now - follower.sent < timing.beacon;
  if (!news && told && !unanswered) return;
  const Version first = first_in_memory();
  const auto previous = position_of(follower.next - 1);
  if (!previous || follower.next < first) return;
  Append append{partition_, view_.epoch, *previous, end_.sequence, takeover_, commit_, time(), {}};
  std::size_t bytes = 0;
  for (; follower.next <= end_.sequence && bytes < timing.message_bytes; follower.next++) {
    append.entries.push_back(tail_[follower.next - first]);
    bytes += append.entries.back()->payload.size() + sizeof(Entry);
  }
  follower.sent = now;
  host_.message_to(peer.instance).appends.push_back(std::move(append));
}

void Replica::begin_snapshot(Member, Follower& follower) {
  auto source = host_.store().export_snapshot(partition_);
  if (!source) return;
  follower.snapshot = *std::move(source);
  follower.snapshot_id = next_snapshot_++;
  follower.piece = 0;
  follower.piece_due = true;
  follower.match = follower.commit = 0;
  follower.attached = false;
}

void Replica::send_piece(Member peer, Follower& follower) {
  const base::Time now = host_.now();
  if (!follower.piece_due && now - follower.sent < host_.timing().retry + host_.channel(peer).round_trip()) return;
  if (!host_.may_send_piece()) {
    piece_waits_ = true;
    return;
  }
  auto piece = follower.snapshot->read(follower.piece);
  if (!piece) return follower.snapshot.reset();
  follower.piece_due = false;
  follower.last_piece = piece->last;
  follower.sent = now;
  host_.message_to(peer.instance)
      .pieces.push_back({partition_, view_.epoch, follower.snapshot_id, follower.piece, piece->last,
                         follower.snapshot->at().value_or(Position{}), std::move(piece->bytes)});
}

void Replica::on_piece_ack(Member from, const SnapshotAck& ack) {
  const auto found = followers_.find(from);
  if (role() != Role::primary || ack.epoch != view_.epoch || found == followers_.end()) return;
  Follower& follower = found->second;
  if (!follower.snapshot || ack.id != follower.snapshot_id || ack.next == follower.piece) return;
  // It has lost what it had of this snapshot: another is begun.
  if (ack.next == 0) return follower.snapshot.reset();
  if (ack.next != follower.piece + 1) return;
  if (follower.last_piece) {
    follower.next = follower.snapshot->at()->sequence + 1;
    follower.snapshot.reset();
    follower.stuck = false;
    follower.since = host_.now();
    follower.sent = {};
    return;
  }
  follower.piece = ack.next;
  follower.piece_due = true;
}

// --- as a follower ---

void Replica::answer(Ack ack) {
  ack.partition = partition_;
  ack.epoch = view_.epoch;
  if (imported_.first == view_.primary) ack.snapshot = imported_.second;
  host_.message_to(view_.primary.instance).acks.push_back(ack);
}

void Replica::ask_view(Member of) {
  host_.message_to(of.instance).acks.push_back({.partition = partition_, .epoch = view_.epoch, .verdict = Verdict::behind});
}

void Replica::on_append(Member from, const Append& append) {
  const Role mine = role();
  if (broken(Defect::no_fence)) {
    if (mine == Role::primary) return;
  } else {
    if (append.epoch < view_.epoch) return host_.message_to(from.instance).views.push_back({partition_, view_});
    if (append.epoch > view_.epoch) return ask_view(from);
    if (!follows(from, append.epoch)) return;
  }
  clock_.set(host_.now(), append.time);
  if (cannot_write_) return answer({.verdict = Verdict::full});
  if (import_) return answer({.verdict = Verdict::stuck, .hint = end_});
  const Version before = append.previous.sequence;
  const auto here = position_of(before);
  if (!here) {
    // Either the primary begins too late or too early, or its log ends before what is known here.
    const auto hint = position_of(std::min(end_.sequence, append.end));
    if (!hint) return answer({.verdict = Verdict::stuck, .hint = end_});
    return answer({.verdict = Verdict::elsewhere, .hint = *hint, .floor = base_.sequence});
  }
  if (*here != append.previous) {
    const Version first = first_of_epoch(before);
    if (first <= base_.sequence) return answer({.verdict = Verdict::stuck, .hint = end_});
    return answer({.verdict = Verdict::elsewhere, .hint = *position_of(first - 1), .floor = base_.sequence});
  }
  Version upto = before;
  for (const EntryPtr& entry : append.entries) {
    if (const auto same = position_of(entry->at.sequence); !same || *same != entry->at) {
      if (!truncate(entry->at.sequence - 1)) return answer({.verdict = cannot_write_ ? Verdict::full : Verdict::stuck, .hint = end_});
      if (!take(entry)) {
        cannot_write_ = true;
        break;
      }
    }
    upto = entry->at.sequence;
  }
  verified_ = std::max(verified_, upto);
  // Entries that the primary never had must go before it is told that it is followed: they might rise again here when
  // this member leads, after the primary has refused the very requests.
  if (verified_ >= append.takeover.sequence && end_.sequence > verified_ && !broken(Defect::keep_surplus))
    if (position_of(verified_ + 1)->epoch < append.takeover.epoch && !truncate(verified_))
      return answer({.verdict = cannot_write_ ? Verdict::full : Verdict::stuck, .hint = end_});
  advance(std::min(append.commit, verified_));
  known_end_ = append.end;
  known_commit_ = append.commit;
  known_at_ = host_.now();
  if (verified_ >= append.end) in_step_at_ = known_at_;
  if (cannot_write_) answer({.verdict = Verdict::full});
  ack_due_ = true;
}

void Replica::acknowledge() {
  if (deposing_ || import_ || role() == Role::stranger || view_.epoch == Epoch{0}) return;
  const bool early = broken(Defect::acknowledge_unsynced);
  const Version match = early ? verified_ : std::min(verified_, durable_);
  // What was taken back must stay so, and what was written must be durable, before either is spoken of.
  if (!early && (rewinds_durable_ != rewinds_ || (match < verified_ && match <= acked_))) return;
  if (!ack_due_ && match <= acked_) return;
  ack_due_ = false;
  acked_ = match;
  answer({.verdict = Verdict::matched, .match = match, .commit = commit_});
}

void Replica::on_piece(Member from, const SnapshotPiece& piece) {
  if (piece.epoch > view_.epoch) return ask_view(from);
  if (!follows(from, piece.epoch) || role() != Role::learner) return;
  // Each time: an answer may get lost, and who sends would go on for ever.
  if (cannot_write_) return answer({.verdict = Verdict::full});
  const auto acknowledge_piece = [&](std::uint64_t next) {
    host_.message_to(from.instance).piece_acks.push_back({partition_, view_.epoch, piece.id, next});
  };
  if (imported_.first == from && piece.id <= imported_.second) return acknowledge_piece(piece.index + 1);
  if (!import_ || import_->from != from || piece.id > import_->id) {
    if (piece.index != 0) return acknowledge_piece(0);
    const std::uint64_t since = host_.self().incarnation;
    forget_log();
    origin_.since = origin_.sure = since;
    import_ = Import{from, piece.id, 0};
    if (!host_.store().begin_import(partition_, broken(Defect::vouch_while_importing) ? 0 : since)) cannot_write_ = true;
  }
  if (cannot_write_) return answer({.verdict = Verdict::full});
  if (piece.id != import_->id) return;
  if (piece.index == import_->next) {
    if (!host_.store().import(partition_, piece.bytes)) {
      cannot_write_ = true;
      return answer({.verdict = Verdict::full});
    }
    import_->next++;
    if (piece.last) import_->leads_to = piece.at;
  }
  if (import_->leads_to) return finish_import();
  acknowledge_piece(import_->next);
}

// The last piece is acknowledged when all of it is durable. That takes several ticks where it is much.
void Replica::finish_import() {
  const auto finished = host_.store().end_import(partition_, *import_->leads_to);
  if (!finished) {
    cannot_write_ = true;
    return answer({.verdict = Verdict::full});
  }
  if (!*finished) return;
  base_ = end_ = *import_->leads_to;
  imported_ = {import_->from, import_->id};
  if (import_->from == view_.primary)
    host_.message_to(view_.primary.instance).piece_acks.push_back({partition_, view_.epoch, import_->id, import_->next});
  import_.reset();
}

bool Replica::reads_eventually() const {
  return role() != Role::stranger && !import_ && commit_ >= base_.sequence && view_.epoch != Epoch{0};
}

// --- time ---

void Replica::propose(const Change& change) {
  const base::Time now = host_.now();
  const bool again = change == last_proposed_;
  if (again && now < next_propose_) return;
  // Each time another keeper is asked: soon, for one may be dead, but not all before the first can have answered.
  constexpr unsigned kMostSteps = 3;
  proposed_ = again ? std::min(proposed_ + 1, kMostSteps) : 0;
  last_proposed_ = change;
  next_propose_ = now + host_.timing().retry * (1u << proposed_);
  host_.propose(partition_, change);
}

Result<void> Replica::take_over(Epoch epoch, Position end) {
  const Member self = host_.self();
  if (epoch != view_.epoch) return fail(Code::conflict, "its view is of epoch ", number(view_.epoch), ", not ", number(epoch));
  if (role() == Role::primary || role() == Role::sync) return fail(Code::invalid, "it is synchronous: it may lead without that");
  if (import_) return fail(Code::invalid, "its copy is not whole");
  if (end_.epoch > view_.epoch)
    return fail(Code::conflict, "its log has entries of epoch ", number(end_.epoch), ", and the newest view is of epoch ", number(view_.epoch),
                ": the keepers' folders are older copies");
  if (end != end_) return fail(Code::conflict, "its log ends with entry ", end_.sequence, " of epoch ", number(end_.epoch));
  if (!next_view(view_, {Kind::abandon, view_.epoch, self, self, {}})) return fail(Code::conflict, "a later life of it is in the view");
  // It was perhaps never taken in; and what it has must not go with the last second.
  const bool noted = broken(Defect::forget_promise) || (note_joined(next(epoch)) && host_.store().make_durable());
  if (!noted) return fail(Code::io, "its store cannot write");
  taking_over_ = true;
  if (role() == Role::learner && !broken(Defect::forget_promise)) {
    deposing_ = true;
    host_.channel(view_.primary).depart(partition_, view_.epoch);
  }
  return {};
}

void Replica::tick() {
  const base::Time now = host_.now();
  if (taking_over_) return propose({Kind::abandon, view_.epoch, host_.self(), host_.self(), {}});
  switch (role()) {
    case Role::primary: return tick_primary();
    case Role::learner:
      if (import_ && import_->leads_to && !cannot_write_) finish_import();
      if (broken(Defect::promote_learner_blindly) &&
          now - std::max(adopted_at_, host_.channel(view_.primary).heard()) > 3 * host_.timing().grace && !import_)
        propose({Kind::promote, view_.epoch, host_.self(), host_.self()});
      return;
    case Role::sync:
      if (!deposing_ && now - std::max(adopted_at_, host_.channel(view_.primary).heard()) > patience(view_.primary, host_.timing().grace)) {
        host_.channel(view_.primary).suspect();
        // From here on the primary gets no answer that could count in this partition.
        deposing_ = true;
        if (!broken(Defect::keep_answering)) host_.channel(view_.primary).depart(partition_, view_.epoch);
      }
      if (deposing_) propose({Kind::promote, view_.epoch, host_.self(), host_.self()});
      return;
    case Role::stranger: return tick_stranger();
  }
}

void Replica::excuse(base::Duration time) {
  const base::Time now = host_.now();
  adopted_at_ = std::min(now, adopted_at_ + time);
  for (auto& [peer, follower] : followers_) follower.since = std::min(now, follower.since + time);
}

void Replica::add_to(Figures& figures) const {
  figures.receiving += import_.has_value();
  figures.tail_bytes += tail_bytes_;
  if (role() != Role::primary) return;
  figures.leases += is_alone() || leased(granted());
  figures.waiting += held_.size();
  if (is_alone()) return;  // nobody follows, and what the store has may be past `end_`
  for (const auto& [peer, follower] : followers_) {
    const Version lacks = end_.sequence - std::min(end_.sequence, follower.match);
    std::uint64_t& most = in_sync(view_, peer) ? figures.behind : figures.learners_behind;
    most = std::max(most, lacks);
    figures.sending += follower.snapshot != nullptr;
  }
}

CopyReport Replica::report() const {
  const base::Time now = host_.now();
  CopyReport report;
  report.self = host_.self();
  report.epoch = view_.epoch;
  report.follows = role() == Role::learner;
  report.whole = !import_;
  report.origin = origin_;
  report.end = is_alone() ? host_.store().end(partition_) : end_;
  report.durable = is_alone() ? report.end.sequence : durable_;
  report.commit = is_alone() ? report.end.sequence : commit_;
  if (known_at_ == base::Time{}) return report;
  report.known_end = known_end_;
  report.known_commit = known_commit_;
  report.heard = now - known_at_;
  report.was_in_step = in_step_at_ != base::Time{};
  if (report.was_in_step) report.in_step = now - in_step_at_;
  return report;
}

std::string Replica::story() const {
  std::ostringstream out;
  constexpr const char* kRoles[] = {"stranger", "learner", "sync", "primary"};
  out << kRoles[static_cast<int>(role())] << " end " << end_.sequence << " durable " << durable_ << " commit " << commit_;
  if (wish_.kind != Kind::none) out << ", wishes " << name_of(wish_.kind) << (wish_sent_ ? " (proposed)" : "");
  if (deposing_) out << ", deposing";
  if (import_) out << ", importing";
  if (cannot_write_ || full_) out << ", full";
  if (!held_.empty()) out << ", " << held_.size() << " held";
  for (const auto& [peer, follower] : followers_) {
    out << "; " << static_cast<std::uint32_t>(peer.instance) << "." << peer.incarnation << " match " << follower.match;
    if (!follower.attached) out << " not attached";
    if (follower.stuck) out << " stuck";
    if (follower.full) out << " full";
    if (follower.snapshot) out << " snapshot piece " << follower.piece;
  }
  return std::move(out).str();
}

// --- time, as the primary ---

void Replica::want(Kind kind, Member target, std::size_t copies) {
  Change change{kind, view_.epoch, host_.self(), target, {}};
  change.copies = copies;
  if (kind == Kind::promote_learner) {
    Members sync = view_.sync;
    sync.push_back(target);
    change.copies = std::min(host_.timing().sync_copies, nodes_of(sync));
  }
  if (!next_view(view_, change, host_.defects())) return;
  wish_ = change;
  wished_at_ = host_.now();
  wish_sent_ = kind != Kind::promote_learner && kind != Kind::transfer;
  continue_wish();
}

void Replica::continue_wish() {
  const base::Time now = host_.now();
  const Timing& timing = host_.timing();
  if (wish_.kind == Kind::promote_learner) {
    const Follower& follower = followers_.at(wish_.target);
    if (broken(Defect::abandon_promotion) && now > wished_at_ + 4 * timing.retry) {
      wish_ = {};
      return;
    }
    if (!wish_sent_ && (follower.stuck || follower.full || now - heard(wish_.target, follower) > patience(wish_.target, 2 * timing.drop))) {
      wish_ = {};
      return try_commit();  // nothing waits for it any more
    }
    // From the moment it is proposed every commit and every lease needs the learner too, so it must have all that is
    // committed. Only a newer epoch settles it: what was sent may be decided at any later moment.
    wish_sent_ = wish_sent_ || (follower.attached && follower.match >= commit_);
  }
  if (wish_.kind == Kind::transfer) {
    if (!wish_sent_ && commit_ != end_.sequence && now > wished_at_ + 4 * timing.retry) {
      wish_ = {};
      return;
    }
    wish_sent_ = wish_sent_ || commit_ == end_.sequence;
  }
  if (wish_sent_) propose(wish_);
}

bool Replica::is_ready(Member peer) const {
  const Follower& follower = followers_.at(peer);
  return follower.attached && !follower.stuck && !follower.full && !follower.snapshot &&
         follower.match + 8 >= end_.sequence && host_.now() - heard(peer, follower) < host_.timing().drop + host_.leisure(peer);
}

// Whether `peer` can be made synchronous where nothing waits for that: it was not silent of late, so that changes will not wait for
// it. Who never is that steady is waited for no longer than for one that is slow.
bool Replica::is_steady(Member peer) const {
  const base::Time now = host_.now();
  const Timing& timing = host_.timing();
  const bool urgent = spread().sync_nodes < needed();
  return urgent || now - host_.channel(peer).unsteady() >= timing.grace || now - followers_.at(peer).since > timing.slow;
}

void Replica::tick_primary() {
  const base::Time now = host_.now();
  const Timing& timing = host_.timing();
  // What cannot be shown before sync members are there again.
  if (is_short()) let_go_of([&](const Held& held) { return held.need > commit_; });
  if (wish_.kind != Kind::transfer || now - wished_at_ > timing.drop) let_go_of([](const Held& held) { return held.need == Held::never; });
  if (wish_.kind != Kind::none) return continue_wish();
  for (Member one : view_.sync) {
    if (is_me(one)) continue;
    const Follower& follower = followers_.at(one);
    if (follower.stuck || follower.full || is_lost(one, follower, timing.drop)) return want(Kind::remove, one);
  }
  for (Member one : view_.learners) {
    const Follower& follower = followers_.at(one);
    const bool urgent = spread().sync_nodes < timing.sync_copies;  // changes wait for someone who can be made synchronous
    if (follower.full || is_lost(one, follower, (urgent ? 1 : 3) * timing.drop)) return want(Kind::remove, one);
  }
  if (full_) want_room();
  if (wish_.kind != Kind::none) return;
  if (const auto found = choose_sync()) return want(Kind::promote_learner, *found);
  if (spread().nodes < timing.copies)
    if (const auto found = choose_learner()) return want(Kind::add_learner, *found);
  if (goal_ && !in_reach(*goal_)) goal_.reset();
  if (const auto found = redundant()) return want(Kind::remove, *found);
  // Only what is safe is moved.
  if (goal_ && spread().sync_nodes >= timing.sync_copies) want_goal();
}

// The learner to be made synchronous where a node, or a rack that has a learner, is to count and does not yet; another rack first.
std::optional<Member> Replica::choose_sync() const {
  const std::size_t wanted = host_.timing().sync_copies;
  const Spread& is = spread();
  const bool node = is.sync_nodes < wanted, rack = is.sync_racks < std::min(wanted, is.racks);
  if (!node && !rack) return {};
  std::optional<Member> best;
  bool best_shares = true;
  for (Member one : view_.learners) {
    const Site site = host_.site_of(one.instance);
    bool node_counts = false, rack_counts = false;
    for (Member other : view_.sync) {
      const Site there = host_.site_of(other.instance);
      node_counts = node_counts || (there.node == site.node && !broken(Defect::copies_by_instance));
      rack_counts = rack_counts || there.rack == site.rack;
    }
    if (node_counts || (!node && rack_counts) || (best && (rack_counts || !best_shares)) || !is_ready(one) || !is_steady(one)) continue;
    best = one;
    best_shares = rack_counts;
  }
  return best;
}

// One of two members on a node, which are no more than one: whatever put them there, a move within the node that was not finished, or a
// build that counted instances. A synchronous one stays as long as there are too few nodes; a goal that has one of them decides itself,
// and whoever plans may be about to say so again to a new primary.
std::optional<Member> Replica::redundant() const {
  if (view_.sync.size() + view_.learners.size() <= spread().nodes || host_.now() - adopted_at_ < host_.timing().drop) return {};
  const auto wanted = [&](Member one) {
    const auto here = [&](InstanceId other) { return home_of(other) == home_of(one.instance); };
    return goal_ && std::any_of(goal_->members.begin(), goal_->members.end(), here);
  };
  const auto shares = [&](Member one, const Members& members) {
    const auto here = [&](Member other) { return other != one && home_of(other.instance) == home_of(one.instance); };
    return std::any_of(members.begin(), members.end(), here);
  };
  for (auto one = view_.learners.rbegin(); one != view_.learners.rend(); ++one)
    if (!wanted(*one) && (shares(*one, view_.sync) || shares(*one, view_.learners))) return *one;
  if (spread().sync_nodes < host_.timing().sync_copies) return {};
  for (auto one = view_.sync.rbegin(); one != view_.sync.rend(); ++one)
    if (!is_me(*one) && !wanted(*one) && shares(*one, view_.sync)) return *one;
  return {};
}

bool Replica::has_room(Member peer) const {
  const auto all = host_.candidates();
  return std::any_of(all.begin(), all.end(), [&](const Candidate& one) { return one.member.instance == peer.instance; });
}

bool Replica::another_has_room() const {
  const auto other = [&](Member one) { return !is_me(one) && has_room(one); };
  return full_ && role() == Role::primary &&
         (std::any_of(view_.sync.begin(), view_.sync.end(), other) || std::any_of(view_.learners.begin(), view_.learners.end(), other) ||
          choose_learner());
}

// Without room here, one is to lead that has some: who is synchronous, else a learner, which is made so first, else another that is
// taken in for it. Two without room would hand the lead to each other, and nothing would be written as long as that lasts. Only where
// nobody has any, as far as was told, a synchronous one is tried: told so is who has little.
void Replica::want_room() {
  for (Member one : view_.sync)
    if (!is_me(one) && has_room(one) && is_ready(one)) return want(Kind::transfer, one);
  for (Member one : view_.learners)
    if (has_room(one) && is_ready(one)) return want(Kind::promote_learner, one);
  for (Member one : view_.learners)
    if (has_room(one)) return;  // it is being brought up to date
  if (spread().nodes <= host_.timing().copies)
    if (const auto found = choose_learner()) return want(Kind::add_learner, *found);
  for (Member one : view_.sync)
    if (!is_me(one) && is_ready(one)) return want(Kind::transfer, one);
}

// A copy that takes long looks as one too many to who plans: it is not turned back for evenness' sake.
void Replica::set_goal(Goal goal) {
  std::set<std::uint64_t> nodes;
  for (InstanceId one : goal.members) nodes.insert(home_of(one));
  if (nodes.size() < goal.members.size() && !broken(Defect::copies_by_instance)) return;
  const bool drops = goal.primary == view_.primary.instance && std::all_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) {
    return member_at(view_, one).has_value();
  });
  const bool turns_back = std::any_of(followers_.begin(), followers_.end(), [&](const auto& one) {
    return one.second.snapshot && goal_ && goal_->has(one.first.instance) && !goal.has(one.first.instance);
  });
  if (!drops || !turns_back) goal_ = std::move(goal);
}

// The next step towards the goal, if there is one to take now.
void Replica::want_goal() {
  const std::size_t members = view_.sync.size() + view_.learners.size();
  keep_enough(*goal_);
  bool complete = true;
  for (InstanceId instance : goal_->members) {
    if (member_at(view_, instance)) continue;
    complete = false;
    // One surplus copy at a time: where there is one already, and there may be two that are to go, one of them goes first.
    if (members > std::max(host_.timing().copies, goal_->members.size())) {
      if (const auto found = surplus(*goal_)) return want(Kind::remove, *found);
      continue;
    }
    for (const Candidate& one : host_.candidates())
      if (one.member.instance == instance) return want(Kind::add_learner, one.member);
  }
  std::size_t good = 0;  // sync members that are to stay
  for (Member one : view_.sync) good += goal_->has(one.instance);
  const auto lead = member_at(view_, goal_->primary);
  for (Member one : view_.learners) {
    const bool needed = one.instance == goal_->primary || (complete && good < host_.timing().sync_copies && goal_->has(one.instance));
    if (needed && is_ready(one) && is_steady(one)) return want(Kind::promote_learner, one);
  }
  if (lead && !is_me(*lead)) {
    if (in_sync(view_, *lead) && is_ready(*lead)) want(Kind::transfer, *lead);
    return;
  }
  if (!lead || !complete) return;
  if (good >= std::min(host_.timing().sync_copies, goal_->members.size()))
    for (const Members* all : {&view_.learners, &view_.sync})
      for (Member one : *all) {
        if (goal_->has(one.instance)) continue;
        const std::size_t left = goal_->members.size();
        // The last step: a goal of fewer copies than are wanted must not be there any more when one more is taken in.
        if (members == left + 1) goal_.reset();
        return want(Kind::remove, one, left);
      }
  if (members == goal_->members.size()) goal_.reset();
}

bool Replica::in_reach(const Goal& goal) const {
  return std::all_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) {
    const auto all = host_.candidates();
    return member_at(view_, one) || std::any_of(all.begin(), all.end(), [&](const Candidate& other) { return other.member.instance == one; });
  });
}

// What leaves fewer nodes than changes have to be on, when another node could take a copy, has it do so first: else changes would be
// acknowledged by fewer meanwhile.
void Replica::keep_enough(Goal& goal) const {
  if (goal.members.size() >= std::min<std::size_t>(view_.need, host_.timing().sync_copies)) return;
  const auto is_there = [&](std::uint64_t node) {
    return std::any_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) { return home_of(one) == node; });
  };
  for (const Members* all : {&view_.sync, &view_.learners})
    for (Member one : *all)
      if (has_room(one) && !is_there(home_of(one.instance))) return goal.members.push_back(one.instance);
  if (const auto other = choose_learner()) goal.members.push_back(other->instance);
}

// A member that the goal does without, and so can everyone at once.
std::optional<Member> Replica::surplus(const Goal& goal) const {
  if (broken(Defect::hold_surplus)) return {};
  for (Member one : view_.learners)
    if (!goal.has(one.instance)) return one;
  for (Member one : view_.sync)
    if (!is_me(one) && !goal.has(one.instance) && nodes_of(view_.sync, one) >= host_.timing().sync_copies) return one;
  return {};
}

bool Replica::is_shunned(std::uint64_t node) const {
  const auto found = shunned_.find(node);
  return found != shunned_.end() && host_.now() < found->second;
}

std::optional<Member> Replica::choose_learner() const {
  std::vector<Site> taken;
  for (const Members* members : {&view_.sync, &view_.learners})
    for (Member one : *members) taken.push_back(host_.site_of(one.instance));
  std::optional<Member> best;
  std::tuple<bool, bool, std::uint64_t> best_rank;
  for (const Candidate& one : host_.candidates()) {
    const bool by_instance = broken(Defect::copies_by_instance);
    if (by_instance ? member_at(view_, one.member.instance).has_value()
                    : std::any_of(taken.begin(), taken.end(), [&](const Site& site) { return site.node == one.node; }))
      continue;
    const bool same_rack = std::any_of(taken.begin(), taken.end(), [&](const Site& site) { return site.rack == one.rack; });
    const std::tuple rank(is_shunned(one.node), same_rack, lot(partition_, one.member.instance));
    if (best && best_rank <= rank) continue;
    best = one.member;
    best_rank = rank;
  }
  return best;
}

}  // namespace zht::replication

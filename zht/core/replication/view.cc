#include "zht/core/replication/view.h"

#include <algorithm>
#include <sstream>

namespace zht::replication {
namespace {

void drop(Members& members, Member one) { std::erase(members, one); }

// Takes `target`'s earlier incarnation out of `members` and puts `target` there.
bool replace_older(Members& members, Member target, Member& primary) {
  for (Member& one : members) {
    if (one.instance != target.instance || one.incarnation >= target.incarnation) continue;
    if (one == primary) primary = target;
    one = target;
    return true;
  }
  return false;
}

bool remove_exited(View& view, Member target) {
  if (!is_member(view, target)) return false;
  drop(view.sync, target);
  drop(view.learners, target);
  if (target == view.primary && !view.sync.empty()) view.primary = view.sync.front();
  return true;
}

// Each sync member must be in the group, restarted: then no primary is left that could have a lease or commit.
bool all_restarted(const Members& sync, const Members& group) {
  return std::all_of(sync.begin(), sync.end(), [&](Member old) {
    return std::any_of(group.begin(), group.end(), [&](Member now) {
      return now.instance == old.instance && now.incarnation > old.incarnation;
    });
  });
}

void encode(base::Writer& writer, const Members& members) {
  writer.u32(static_cast<std::uint32_t>(members.size()));
  for (Member one : members) {
    writer.u32(static_cast<std::uint32_t>(one.instance));
    writer.u64(one.incarnation);
  }
}

Members decode_members(base::Reader& reader) {
  Members members;
  for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); left--) {
    const InstanceId instance{reader.u32()};
    members.push_back({instance, reader.u64()});
  }
  return members;
}

}  // namespace

bool contains(const Members& members, Member one) { return std::find(members.begin(), members.end(), one) != members.end(); }
bool in_sync(const View& view, Member one) { return contains(view.sync, one); }
bool is_member(const View& view, Member one) { return contains(view.sync, one) || contains(view.learners, one); }

std::optional<Member> member_at(const View& view, InstanceId instance) {
  for (const Members* members : {&view.sync, &view.learners})
    for (Member one : *members)
      if (one.instance == instance) return one;
  return {};
}

std::string_view name_of(Change::Kind kind) {
  switch (kind) {
    case Change::Kind::none: return "none";
    case Change::Kind::promote: return "promote";
    case Change::Kind::remove: return "remove";
    case Change::Kind::add_learner: return "add_learner";
    case Change::Kind::promote_learner: return "promote_learner";
    case Change::Kind::transfer: return "transfer";
    case Change::Kind::rejoin: return "rejoin";
    case Change::Kind::exited: return "exited";
    case Change::Kind::recover: return "recover";
    case Change::Kind::enrol: return "enrol";
    case Change::Kind::keepers: return "keepers";
    case Change::Kind::abandon: return "abandon";
    case Change::Kind::settle: return "settle";
  }
  return "unknown";
}

std::optional<View> next_view(const View& view, const Change& change, Defects defects) {
  using Kind = Change::Kind;
  if (change.base != view.epoch || view.epoch == Epoch{0} || number(view.epoch) >= kLastNumber) return {};
  View made = view;
  made.epoch = next(view.epoch);
  const bool by_primary = change.who == view.primary;
  switch (change.kind) {
    case Kind::none:
    case Kind::enrol:
    case Kind::settle:
    case Kind::keepers: return {};
    case Kind::promote:
      if (defects.has(Defect::promote_learner_blindly) && contains(view.learners, change.who)) {
        drop(made.learners, change.who);
        made.sync.push_back(change.who);
      } else if (by_primary || !contains(view.sync, change.who)) {
        return {};
      }
      drop(made.sync, view.primary);
      made.primary = change.who;
      break;
    case Kind::remove:
      if (!by_primary || change.target == view.primary || !is_member(view, change.target)) return {};
      drop(made.sync, change.target);
      drop(made.learners, change.target);
      if (change.copies != 0) made.need = static_cast<std::uint32_t>(std::min<std::uint64_t>(made.need, change.copies));
      break;
    case Kind::add_learner:
      if (!by_primary || member_at(view, change.target.instance) || view.sync.size() + view.learners.size() >= kMostMembers) return {};
      made.learners.push_back(change.target);
      break;
    case Kind::promote_learner:
      if (!by_primary || !contains(view.learners, change.target)) return {};
      drop(made.learners, change.target);
      made.sync.push_back(change.target);
      made.need = std::max(made.need, static_cast<std::uint32_t>(std::min<std::uint64_t>(change.copies, made.sync.size())));
      break;
    case Kind::transfer:
      if (!by_primary || change.target == view.primary || !contains(view.sync, change.target)) return {};
      made.primary = change.target;
      break;
    case Kind::rejoin:
      if (!replace_older(made.sync, change.target, made.primary) && !replace_older(made.learners, change.target, made.primary))
        return {};
      break;
    case Kind::exited:
      if (!remove_exited(made, change.target)) return {};
      break;
    case Kind::recover:
      if (!contains(change.group, change.who) || !all_restarted(view.sync, change.group)) return {};
      made.primary = change.who;
      made.sync = {change.who};
      std::erase_if(made.learners, [&](Member one) { return one.instance == change.who.instance; });
      break;
    case Kind::abandon: {
      // Not a synchronous member in its own life, for that may lead without, nor an earlier life of whoever is in the view.
      const auto old = member_at(view, change.who.instance);
      if (old && (in_sync(view, *old) ? old->incarnation >= change.who.incarnation : old->incarnation > change.who.incarnation)) return {};
      made.primary = change.who;
      made.sync = {change.who};
      made.need = std::min(made.need, 1u);  // there is one; more are needed as soon as there were more again
      std::erase_if(made.learners, [&](Member one) { return one.instance == change.who.instance; });
      break;
    }
  }
  if (made.sync.empty() || !contains(made.sync, made.primary)) return {};
  return made;
}

std::optional<View> next_enrolment(const View& view, const Change& change) {
  if (change.base != view.epoch || change.kind != Change::Kind::enrol || change.who.incarnation == 0 || number(view.epoch) >= kMostNodes) return {};
  View made;
  made.epoch = next(view.epoch);
  made.primary = {InstanceId{0}, change.who.incarnation};
  made.sync = {made.primary};
  return made;
}

std::optional<View> next_keepers(const View& view, const Change& change) {
  if (change.base != view.epoch || change.kind != Change::Kind::keepers || change.group.empty()) return {};
  if (change.group.size() > kMostMembers || number(view.epoch) >= kLastNumber) return {};
  for (std::size_t i = 0; i < change.group.size(); i++)
    for (std::size_t j = 0; j < i; j++)
      if (change.group[i].incarnation == change.group[j].incarnation) return {};
  View made;
  made.epoch = next(view.epoch);
  made.sync = change.group;
  made.primary = made.sync.front();
  return made;
}

std::string to_string(const View& view) {
  std::ostringstream out;
  out << number(view.epoch) << ":";
  const auto put = [&](Member one) {
    out << " " << static_cast<std::uint32_t>(one.instance) << "." << one.incarnation;
    if (one == view.primary) out << "*";
  };
  for (Member one : view.sync) put(one);
  if (!view.learners.empty()) out << " |";
  for (Member one : view.learners) put(one);
  return std::move(out).str();
}

void encode(std::string& out, const View& view) {
  base::Writer writer(out);
  writer.u64(number(view.epoch));
  encode(writer, {view.primary});
  encode(writer, view.sync);
  encode(writer, view.learners);
  writer.u32(view.need);
}

View decode_view(base::Reader& reader) {
  View view;
  view.epoch = Epoch{reader.u64()};
  const Members primary = decode_members(reader);
  if (primary.size() == 1) view.primary = primary.front();
  view.sync = decode_members(reader);
  view.learners = decode_members(reader);
  view.need = reader.u32();
  return view;
}

}  // namespace zht::replication

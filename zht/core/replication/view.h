// Who holds a partition, and how that may change. A view is never edited: a Change names the epoch it applies to and
// what it wants, and next_view() says what the next view would be, or that the change does not apply. Every keeper asks
// the same function, so no opinion of a client, a manager or an instance can bend a view.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zht/core/replication/defect.h"
#include "zht/types.h"

namespace zht::replication {

// An instance in one of its lives. The incarnation grows, durably, at every start and before the instance says anything,
// so that what an earlier life promised is never mistaken for a promise of this one.
struct Member {
  InstanceId instance{~std::uint32_t{0}};
  std::uint64_t incarnation = 0;
  auto operator<=>(const Member&) const = default;
};
using Members = std::vector<Member>;

inline constexpr std::uint64_t number(Epoch epoch) { return static_cast<std::uint64_t>(epoch); }
inline constexpr Epoch next(Epoch epoch) { return Epoch{number(epoch) + 1}; }

// The greatest of what is counted one by one and told by others (bounds.h).
inline constexpr std::uint64_t kLastNumber = std::uint64_t{1} << 62;
inline constexpr std::size_t kMostMembers = 64;  // of a view
inline constexpr std::uint64_t kMostNodes = 1'000'000;  // that ever have a number
inline constexpr std::size_t kMostInstancesOfNode = 1024;
// A later epoch, and one that views can have come to since `known` (0: nothing is known).
inline constexpr bool may_follow(Epoch known, Epoch heard) {
  constexpr std::uint64_t kFarthest = std::uint64_t{1} << 44;
  return heard > known && number(heard) <= kLastNumber && (known == Epoch{0} || number(heard) - number(known) <= kFarthest);
}

struct View {
  Epoch epoch{0};  // 0: no view is known
  Member primary;
  Members sync;      // the primary included: an acknowledged change is on all of them
  Members learners;  // follow, waited for by nobody, never promoted to primary
  std::uint32_t need = 0;  // nodes that a change must be on to be acknowledged, once there were as many
  bool operator==(const View&) const = default;
};

bool contains(const Members& members, Member one);
bool in_sync(const View& view, Member one);
bool is_member(const View& view, Member one);
// The member of `view` that is this instance, in whatever incarnation.
std::optional<Member> member_at(const View& view, InstanceId instance);

struct Change {
  enum class Kind : std::uint8_t {
    none = 0,
    promote,          // `who`, a sync member that has not heard its primary for the grace period, takes its place
    remove,           // `who`, the primary, drops `target`
    add_learner,      // `who`, the primary, takes `target` in
    promote_learner,  // `who`, the primary, makes its learner `target` synchronous
    transfer,         // `who`, the primary, hands over to its sync member `target`
    rejoin,           // `target`, restarted with all it had, takes the place of its own earlier incarnation
    exited,           // `target` has ended or fallen silent for good: no lease of its need be waited for
    recover,          // all sync members have restarted: `group` is them now, `who` has the longest log and leads
    enrol,            // of the register of numbers alone (keeper.h): the next number is for the node `who`.incarnation
    keepers,          // of the register of who keeps alone (keepership.h): from now on the nodes `group`.incarnation
    abandon,          // `who`, which is not synchronous, goes on with what it has: nobody who is will ever lead again, says a
                      // person. What they alone had is lost; they are strangers when they return after all
    settle,           // changes nothing: what some keepers have accepted for the next epoch is decided by all, if it may have been
    last = settle
  };
  Kind kind = Kind::none;
  Epoch base{0};  // the epoch it applies to: compare and swap
  Member who, target;
  Members group;
  // promote_learner: nodes with a sync member there will be, of those that are wanted; the view needs as many from then on. remove, when
  // it is not for a failure but on purpose: nodes there will be, so that fewer are needed; 0: as before. Where instances run the keepers
  // do not know: that is hearsay, and they must all compute the same. So the primary counts, and two members on one node never make
  // it acknowledge anything sooner.
  std::uint64_t copies = 0;
  bool operator==(const Change&) const = default;
};
std::string_view name_of(Change::Kind kind);

// The register of numbers: its epoch is how many numbers nodes have been given, its primary's incarnation the node (a random
// number of its own choosing) that was given the last. So no two nodes ever have one number, whoever asks whom.
std::optional<View> next_enrolment(const View& view, const Change& change);

// The register of who keeps: its epoch is the configuration's number, its sync members' incarnations the nodes.
std::optional<View> next_keepers(const View& view, const Change& change);

// The view that `change` makes of `view`; nothing when it does not apply. A view's sync is never empty and always holds
// its primary; an instance is in a view once.
std::optional<View> next_view(const View& view, const Change& change, Defects defects = {});

// "7: 3.1* 4.1 | 5.2": epoch, then sync members as instance.incarnation with a star at the primary, then learners.
std::string to_string(const View& view);

void encode(std::string& out, const View& view);
View decode_view(base::Reader& reader);  // check reader.ok() afterwards

}  // namespace zht::replication

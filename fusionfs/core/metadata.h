// The file system's names and inodes, as a client of the store: each call is a Task over one request, or over a short
// recoverable sequence of them where a change spans two directories. No caches, no threads, no file contents.
//
//   Metadata metadata(client, clock, {});
//   wait(metadata.make_root(0755, 0, 0));
//   Reply made = wait(metadata.create(kRootInode, {.name = "a", .mode = S_IFREG | 0644}));
//   made.error, made.inode->id ...
//
// What spans two homes leaves a record of intent first (a moving entry, a dying directory, a debt, a pending link), so
// that whoever meets the leftovers of a crashed mount finishes or undoes them: see FORMAT.md, "Changes in two homes".
// Errors are errnos in Reply::error: EIO when the store did not answer in time. Any thread.
#pragma once

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fusionfs/core/format.h"
#include "fusionfs/core/requests.h"
#include "fusionfs/core/task.h"
#include "novoht/base/clock.h"
#include "zht/client.h"

namespace fusionfs {

struct MetadataOptions {
  // Of the mount: it is given leases of the directories whose names it changes. 0: none are asked for.
  std::uint64_t session = 0;
  // The inodes of a home that this mount has open: they outlive their last name. Called on any thread.
  std::function<std::vector<InodeId>(HomeId)> held;
  // Of the mount, as an opener of files (core/openers.h). 0: what it opens may go with its last name.
  std::uint64_t opener = 0;
  // An inode of this home lost its last link and went: its chunks can go. Called on any thread; must not block.
  std::function<void(const Inode&)> gone;
  // An inode lost its last link while held, here (reap() it when it is closed) or elsewhere only. Any thread, no blocking.
  std::function<void(const Inode&, bool elsewhere)> orphaned;
  // A directory is being split: its names will be in several homes from now on. Any thread, no blocking.
  std::function<void(InodeId)> spread;
  // A home has grown big: split() it soon, on a thread that may wait a little. Absent: whoever made it grow does it.
  std::function<void(HomeId)> grown;
  std::uint32_t split_at = 8192;  // names in one home: more, and it is split
  // Something that this mount has done with could not be cleaned up: settle_leftovers() would find it. Any thread, no blocking.
  std::function<void()> left;
  // The store did not do what was asked, for a reason no program above can see from an errno. Any thread, no blocking.
  std::function<void(const std::string&)> trouble;
};

// A directory's live names in cursor order.
struct Listing {
  std::uint32_t generation = 0;
  std::uint64_t offset = 0;    // bytes of the stored listing that this reflects
  std::uint64_t sequence = 0;  // of the last record among them
  struct Name {
    std::string name;
    InodeId inode{};
    std::uint32_t type = 0;
  };
  // By cursor: the sequence number; above kShardBits which of the directory's homes it is, counted while reading.
  std::map<std::uint64_t, Name> names;
  std::unordered_map<std::string, std::uint64_t> sequence_of;  // of each live name of one home
  static constexpr unsigned kShardBits = 40;
};

class Metadata {
 public:
  Metadata(zht::Client& client, const base::Clock& clock, MetadataOptions options);

  Task<Reply> make_root(std::uint32_t mode, std::uint32_t uid, std::uint32_t gid);  // fine when there
  // entry, inode. ENOENT.
  Task<Reply> lookup(InodeId directory, std::string name);
  // entry; inode when it lives where its name does. What a name leads to at this moment, and no more requests than that takes.
  // ENOENT, with `gone` when the directory is not there either.
  // Opening: the inode outlives its last name from now on, until it is reaped.
  // looking_to_open: what is found is opened next, though this mount itself may take its name meanwhile.
  enum class For { looking, opening, looking_to_open };
  Task<Reply> find(InodeId directory, std::string name, For what = For::looking);
  // inode, for opening. ENOENT.
  Task<Reply> open(InodeId inode);
  // Files of this home are open still.
  Task<int> keep_open(HomeId home);
  // inode. ENOENT.
  Task<Reply> getattr(InodeId inode);
  // shards: the homes of a directory besides its first.
  Task<Reply> homes(InodeId directory);
  // entry, inode. EEXIST with entry and inode of what is there (inode only when known without another request).
  // `request.now` is filled in.
  Task<Reply> create(InodeId directory, CreateRequest request);
  Task<Reply> make_directory(InodeId directory, CreateRequest request,
                             Inode parent);                           // parent: mode, gid as last known
  Task<Reply> unlink(InodeId directory, std::string name);            // entry, inode after, gone
  Task<Reply> remove_directory(InodeId directory, std::string name);  // entry
  // entry, inode of what moved; other_entry, other of what was replaced or exchanged.
  Task<Reply> rename(InodeId from, std::string from_name, InodeId to, std::string to_name, std::uint32_t flags);
  Task<Reply> link(InodeId inode, std::uint32_t type, InodeId directory, std::string name);  // inode
  Task<Reply> setattr(SetRequest request);                                                   // inode
  Task<Reply> commit(CommitRequest request);                                                 // inode
  Task<Reply> set_attribute(AttributeRequest request, bool remove);                          // inode
  struct AttributesReply {
    int error = 0;
    Attributes attributes;
  };
  Task<AttributesReply> get_attributes(InodeId inode);
  // An inode without a name is not open any more in the mount of `session` (0: in this one; where this is no mount, in none). It goes
  // (`gone`) when no other has it open.
  Task<Reply> reap(InodeId inode, std::uint64_t session = 0);
  // Inodes of one home; those that have gone are left out.
  Task<Reply> inodes(HomeId home, std::vector<InodeId> wanted);
  struct ListReply {
    int error = 0;
    Listing listing;
  };
  // Brings `known` (an empty one to begin) up to date, reading only what was added, as long as one home has all names.
  Task<ListReply> list(InodeId directory, Listing known);

  // After a client died: goes through every record once and carries to their end, or undoes, the changes that were left in the
  // middle and that nobody may ever come by. Reads a few records at a time.
  struct Leftovers {
    int error = 0;                   // the errno at which it stopped
    std::vector<std::string> again;  // keys of what may still be somebody's business: for look_again() a little later
  };
  Task<Leftovers> settle_leftovers();
  Task<Leftovers> look_again(std::vector<std::string> keys);
  // For fsck: settles a debt, a promise or a marker (its whole key), or a directory that is being removed. 0, or an errno.
  Task<int> settle_record(std::string key);
  Task<int> settle_directory(InodeId directory);
  Task<int> drop_nameless(InodeId directory);  // ENOTEMPTY
  Task<int> settle_split(HomeId home);         // waits for a recent one, carries on one that was left
  Task<int> settle_shard(HomeId home);         // for fsck: the same, and a removal that was called off
  Task<InodeId> directory_of(HomeId home);     // whose names, or some of them, are there
  Task<int> drop_stray_shard(HomeId home);     // whose directory is not there
  Task<int> split(HomeId home);                // into two. 0, or why it was not done

  Nanos now() const;

 private:
  Task<Reply> ask(HomeId home, const char* procedure, std::string arguments);  // waits for another's lease to end
  Task<int> pause(HomeId home, Nanos time);

  // Which of a directory's homes has a name, as far as is known; a reply for which elsewhere() holds says more.
  HomeId home_for(InodeId directory, const std::string& name) const { return home_from(home_of(directory), name); }
  HomeId home_from(HomeId home, const std::string& name) const;
  void learn(HomeId home, const Reply& reply);
  static bool elsewhere(const Reply& reply) { return reply.error == EREMCHG || reply.error == EXFULL; }
  // After such a reply of `home`: makes it the home to ask next.
  Task<int> follow(Reply reply, HomeId& home, std::string name);
  // For requests that are the same in whichever home the name is.
  Task<Reply> ask_name(HomeId home, std::string name, const char* procedure, std::string arguments);
  // The answer of a directory's first home: links, size, times and listing of the others are added.
  Task<Reply> with_shards(Reply first);
  // Asks the other homes that `first`, the answer of `home`, tells of, and theirs, until one refuses.
  Task<Reply> ask_shards(HomeId home, Reply first, const char* procedure, std::string arguments);
  Task<int> unmark_dying(InodeId directory, Dying dying);
  Task<int> drop_directory(InodeId directory);
  Task<int> drop_directory_soon(InodeId directory);
  Task<int> split_when_big(HomeId home, std::uint32_t names);
  bool big(const Reply& reply) const { return reply.error == 0 && reply.live >= options_.split_at; }
  Task<int> split_now(HomeId home);
  Task<int> carry_split(HomeId home, Split split);
  Task<ListReply> list_home(HomeId home, Listing known);
  Task<Reply> find_in(HomeId& home, std::string name, For what);
  // Whether the store has to be told (again) that this mount is an opener of the home; and that it has been, by a request sent `at`.
  enum class Tell { no, opener, opens_now };
  Tell tell_opener(HomeId home);
  void told_opener(HomeId home, base::Time at);
  // A change that may take the last name of an inode of this home is under way: what is opened meanwhile is not in its `held`.
  class Removal {
   public:
    Removal(Metadata& metadata, HomeId home);
    ~Removal();
    Removal(const Removal&) = delete;
    Removal& operator=(const Removal&) = delete;

   private:
    Metadata& metadata_;
    HomeId home_;
  };
  Task<Reply> meet_directory(HomeId home, std::string name, Entry entry, Reply found);
  // Waits for, or settles, a move that left `name` marked. 0, or an errno.
  Task<int> settle_move(HomeId home, std::string name);
  Task<int> settle_dying(Inode directory, HomeId met);  // met: the home that said so
  // Directories that may have no name, by what they say is their parent.
  struct Suspects {
    std::map<InodeId, std::set<InodeId>> of_parent;
    std::size_t count = 0;
    bool moving = false;  // a name was found that is being moved
  };
  Task<int> settle_page(std::vector<std::string> keys, std::vector<std::string>& again, Suspects& suspects);
  Task<int> drop_nameless(Suspects suspects);
  Task<int> forget_marker(std::string marker, std::string needed_by);
  Task<int> settle_marker(std::string key, std::uint64_t transfer, std::string value);
  Task<int> set_parent(InodeId directory, InodeId parent);
  // `keepers` of an inode without a name are told (again); those that have ended let go of it.
  Task<int> tell_keepers(InodeId inode, std::vector<std::uint64_t> keepers);
  Task<bool> nameless(InodeId directory);  // an empty one, of late, whose maker died before its name was written
  Task<int> pay(InodeId inode, HomeId debtor, std::uint64_t debt);
  // Both: EREMCHG when a name has moved to another home before anything was done.
  Task<Reply> rename_within(HomeId home, std::string from_name, std::string to_name, std::uint32_t flags);
  struct Place {
    InodeId directory;
    HomeId home;
    std::string name;
  };
  Task<Reply> rename_across(Place from, Place to, std::uint32_t flags);
  Task<int> check_no_cycle(InodeId moved, InodeId to);
  Task<int> lock_renames(RenameLock wanted, std::optional<std::string>& held);  // held: what the lock says while it is ours
  Task<int> free_rename_lock();
  Task<int> mark_dying(InodeId directory, Dying dying);
  Task<std::uint64_t> new_home();                                          // 0: the store did not answer
  void forget(HomeId home, const char* procedure, std::string arguments);  // send and do not wait
  void remove_later(std::string key);
  // What is known of a home's fence: it has told in a refusal.
  std::uint64_t fence_of(HomeId home);
  void learn_fence(HomeId home, const Reply& reply);
  Task<int> settle_links(Reply reply, std::optional<Inode> dropped);
  // Whether nobody is at the change any more that left `mark` (its kind and number) at `since`, by its maker's wall clock.
  bool abandoned(const std::string& mark, Nanos since, Nanos patience = kAbandoned);
  std::vector<InodeId> held(HomeId home) const { return options_.held ? options_.held(home) : std::vector<InodeId>{}; }

  // A live mount finishes a change in two homes within milliseconds; after this long its leftovers are settled by others.
  static constexpr Nanos kAbandoned = 3'000'000'000;

  zht::Client& client_;
  const base::Clock& clock_;
  MetadataOptions options_;
  // Home numbers reserved in the store and not yet given to a directory: the next one, and in the lower bits how many.
  std::atomic<std::uint64_t> homes_{0};

  std::atomic<bool> any_shards_{false}, any_fences_{false};
  mutable std::shared_mutex shards_mutex_;
  std::unordered_map<std::uint64_t, Split> shards_;   // by home: base and children. Guarded by shards_mutex_
  std::unordered_map<std::uint64_t, std::uint32_t> splitting_;  // by home: not tried below. Guarded by shards_mutex_
  std::unordered_map<std::uint64_t, std::uint64_t> fences_;     // by home. Guarded by shards_mutex_

  std::mutex openers_mutex_;
  std::unordered_map<std::uint64_t, base::Time> opener_until_;  // by home. Guarded by openers_mutex_
  std::unordered_map<std::uint64_t, unsigned> removals_;        // by home, under way. Guarded by openers_mutex_

  std::shared_mutex sighted_mutex_;
  std::unordered_map<std::string, base::Time> sighted_;  // marks, when first met. Guarded by sighted_mutex_
};

// The errno for an operation that failed as a whole.
int errno_of(const zht::Outcome& outcome);

}  // namespace fusionfs

// What one mount does: POSIX operations on inode numbers, over Metadata (names and inodes, in the store) and ChunkStore
// (contents, on this node). Knows nothing of libfuse, so that a test can drive it directly.
//
//   FileSystem files(client, clock, chunks, {});
//   wait(files.start());
//   auto made = wait(files.create(kRootInode, "a", 0644, uid, gid, O_CREAT | O_RDWR));
//   files.write(made.inode.id, 0, "hello");
//   wait(files.release(made.inode.id));           // committed: any other mount that opens it reads "hello"
//
// Tasks go on on the client's threads; read(), write(), allocate() and seek() touch local files and return at once.
// Coherence: an open asks the store (close-to-open); attributes are believed for `attribute_timeout`. A write lies in
// its chunk before the record that makes it visible is committed. Any thread.
#pragma once

#include <sys/statvfs.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "fusionfs/core/metadata.h"
#include "fusionfs/data/stores.h"
#include "fusionfs/fuse/file_locks.h"
#include "fusionfs/fuse/inodes.h"
#include "fusionfs/fuse/patient_client.h"
#include "fusionfs/fuse/retries.h"
#include "fusionfs/fuse/worker.h"

namespace fusionfs {

struct FileSystemOptions {
  std::chrono::milliseconds attribute_timeout{1000};
  std::chrono::milliseconds name_timeout{1000};  // as long the kernel uses a name without asking; 0: it always asks
  std::chrono::milliseconds commit_interval{2000};  // uncommitted writes of files still open
  std::chrono::milliseconds session_life{30'000};
  std::chrono::milliseconds lock_life{15'000};  // of the locks of a mount that was killed
  std::chrono::milliseconds moment = PatientClient::kMoment;  // for an answer of a store that has been silent
  // What is remembered of inodes that are not in use; more is let go of, and asked for again when it is needed.
  std::size_t memory = std::size_t{64} << 20;
  bool strict = false;  // whoever reads asks first; an append gives its right back at once. With commit_at_once
  bool read_only = false;
  bool relatime = false;  // reading changes atime, when it was before mtime or ctime, or a day ago
  bool provenance = false;  // who opened what is kept in the store
  unsigned copies = 1;    // chunk stores that a new file's contents are written to, as far as there are so many
  std::uint64_t previous_session = 0;  // of this mount's last life, if that was not ended by stop(): surely dead
  std::string serves_at;  // host:port where this node's chunks are served; empty: they are not
  std::uint32_t split_at = MetadataOptions{}.split_at;
  // Whoever calls write() calls flush() too before it answers, so that a close has nothing left to do. For a store in
  // this process, where a commit costs less than the kernel's FLUSH request.
  bool commit_at_once = false;
  bool leases =
      true;  // take the lease of directories in which names change: names known to be absent are not asked for
  // A file's contents are on fewer chunk stores than `copies` asks for. Any thread, no blocking.
  std::function<void(InodeId)> lacking;
  // The page cache of this inode shows what is no longer so. Called on a thread of its own.
  std::function<void(InodeId)> changed_elsewhere;
  // Puts the bytes of a small file that was written past the page cache into it. Must not wait for a file's reader.
  std::function<void(InodeId, base::Bytes)> fill_cache;
  std::function<void(const std::string&)> warn;  // something an operator should read
};

int errno_of_local(const base::Error& error);
// Who changes a file: root, or a user who belongs to some groups.
struct Changer {
  bool privileged = true;
  std::function<bool(std::uint32_t group)> belongs;  // asked when it matters, while the request is not answered
};
std::uint32_t without_set_ids(std::uint32_t mode);  // what a change of a file's content by somebody without privileges leaves
// The kernel counts a name's time from when the thread that had asked runs again, which may be a while after the answer.
inline constexpr std::chrono::seconds kAnswerTaken{10};
// How long the right to append is made use of without asking again.
inline constexpr std::chrono::milliseconds kAppendsKept{100};

struct Looked {
  int error = 0;
  Inode inode;  // without its content
};
struct Opened {
  int error = 0;
  Inode inode;
  bool keep_cache = false;
  bool alone = false;  // made by this, or emptied by this and open nowhere else in this mount: the page cache has nothing of it
};
struct TextReply {
  int error = 0;
  std::string text;
};

// An open directory. One call at a time.
struct OpenDirectory {
  InodeId id{};
  bool loaded = false;
  Listing listing;
  std::unordered_map<std::uint64_t, Inode> ahead;  // inodes fetched for entries soon to be returned
  base::Time ahead_at{};
};
struct DirectoryEntry {
  std::string name;
  InodeId inode{};
  std::uint32_t type = 0;
  std::uint64_t next = 0;       // cursor to go on after this entry
  bool has_attributes = false;  // readdirplus: `attributes` are known
  Inode attributes;
};
struct DirectoryPage {
  int error = 0;
  std::vector<DirectoryEntry> entries;  // empty: that was all
};

class FileSystem {
 public:
  FileSystem(zht::Client& client, const base::Clock& clock, const ChunkStore& chunks, FileSystemOptions options);
  ~FileSystem();  // stop() first
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  // Makes the root when there is none, opens a session, buries what dead sessions left. 0, or an errno.
  Task<int> start(std::uint32_t root_mode, std::uint32_t uid, std::uint32_t gid);
  // Commits everything, ends the session, waits for what is under way. A store that does not answer is waited for once, not once
  // for each file. 0, or the errno of a commit that failed.
  int stop();

  // Each inode returned by lookup, make, create, link (and readdirplus through keep()) is one more reference to
  // forget().
  // "." and "..": the inode itself, which need not be a directory, and a directory's parent.
  Task<Looked> lookup(InodeId directory, std::string name, std::uint32_t thread = 0);
  void keep(InodeId directory, const std::string& name, const Inode& inode);
  // What the kernel is told of an inode that the store has described, as listings do: uncommitted writes included.
  Inode as_seen_here(const Inode& inode);
  // An empty file that another mount has made, or emptied, a moment ago: it is about to be written. Programs tell by stat(2) whether
  // another has begun (SQLite: whether there is a journal), so its attributes are not believed even for a second.
  bool about_to_change(const Inode& inode);
  void forget(InodeId inode, std::uint64_t lookups);

  Task<Looked> getattr(InodeId inode);
  Task<Looked> setattr(SetRequest request);
  // The same for a caller that has come by a name: ESTALE, once, when that leads here no more. (See Retries.)
  Task<Looked> getattr_by_name(InodeId inode, std::uint32_t thread);
  Task<Looked> setattr_by_name(SetRequest request, std::uint32_t thread);
  Task<Looked> make(InodeId directory, CreateRequest request);  // any type; a regular file too (mknod)
  Task<Opened> create(InodeId directory, std::string name, std::uint32_t mode, std::uint32_t uid, std::uint32_t gid,
                      int flags);
  Task<Looked> link(InodeId inode, InodeId directory, std::string name);
  Task<int> unlink(InodeId directory, std::string name);
  Task<int> remove_directory(InodeId directory, std::string name);
  Task<int> rename(InodeId from, std::string from_name, InodeId to, std::string to_name, std::uint32_t flags);
  Task<TextReply> read_link(InodeId inode);

  // O_TRUNC takes the set-id bits, unless `privileged`: the kernel leaves that to who truncates at open.
  // ESTALE, once for a `thread` that is not 0, when a name by which the kernel may have come leads here no more.
  Task<Opened> open(InodeId inode, int flags, bool privileged = true, std::uint32_t thread = 0);
  Task<int> open_directory(InodeId inode, std::uint32_t thread);
  Retries& retries() { return retries_; }
  Task<int> flush(InodeId inode);
  // A descriptor of the process `owner` is closed: its record locks end, after what it wrote is committed.
  Task<int> closed(InodeId inode, std::uint64_t owner);
  // An open file that tells of its closing by release() only, or that writes past the kernel's page cache.
  static constexpr std::uint64_t kPastCache = std::uint64_t{1} << 63;  // a handle's bit
  std::uint64_t new_handle() { return next_handle_.fetch_add(1, std::memory_order_relaxed); }
  Task<int> sync(InodeId inode);  // blocks on the chunk files' sync first, then commits
  // `handle`: of new_handle(), or 0; `flock_owner`: whose flock(2) ends, or 0.
  Task<int> release(InodeId inode, std::uint64_t handle = 0, std::uint64_t flock_owner = 0);
  // Puts up to `size` bytes in `to`; `got` less at the end of the file.
  int read(InodeId inode, std::uint64_t offset, char* to, std::size_t size, std::size_t& got);
  int write(InodeId inode, std::uint64_t offset, base::Bytes bytes);
  // After write() past the page cache, for the kernel's part in it: who else has the file open here sees the bytes; set-id bits
  // (unless `privileged`) and capabilities go. With commit_at_once it is flush() too.
  Task<int> wrote_past_cache(InodeId inode, Changer changer);
  // What the kernel takes away itself before a write through its cache: set-id bits, unless privileged, and capabilities.
  Task<int> take_privileges(InodeId inode, Changer changer);
  // Before something is read: with strict coherence, what other mounts have written.
  Task<int> current(InodeId inode);
  bool strict() const { return options_.strict; }
  // Writes at the end, wherever other mounts have put it. `believed`: where the kernel thinks that is.
  Task<int> append(InodeId inode, std::uint64_t believed, std::string bytes);
  // As FileLocks::lock(). Who has got a lock reads what was written under it elsewhere; who gives one up has committed.
  Task<int> lock(InodeId inode, FileLock lock, bool sleep, std::shared_ptr<FileLocks::Wait> wait, std::uint64_t handle);
  FileLocks& locks() { return locks_; }
  bool commits_at_once() const { return options_.commit_at_once; }
  Task<int> allocate(InodeId inode, int mode, std::uint64_t offset, std::uint64_t size);
  int seek(InodeId inode, std::uint64_t offset, bool data, std::uint64_t& found);

  Task<DirectoryPage> read_directory(std::shared_ptr<OpenDirectory> directory, std::uint64_t cursor, std::size_t most,
                                     bool attributes);
  Task<int> sync_directory(InodeId inode);

  Task<int> set_attribute(InodeId inode, std::string name, std::string value, std::uint32_t flags,
                          std::optional<std::uint32_t> mode);
  Task<TextReply> get_attribute(InodeId inode, std::string name);
  // With provenance: keeps who opened it and what for (a line of text; asks and does not wait).
  void note_use(InodeId inode, const std::string& line);
  // What the extended attribute fusionfs.<what> says: inode, home, partition, content, store, chunks, homes; layout:
  // all of them.
  Task<TextReply> layout(InodeId inode, std::string what);
  Task<TextReply> list_attributes(InodeId inode);  // names, each ended by a zero byte
  Task<int> remove_attribute(InodeId inode, std::string name);

  int statistics(struct statvfs& to) const;
  std::uint64_t session() const { return session_; }
  InodeTable& table() { return table_; }
  Metadata& metadata() { return metadata_; }
  Stores& stores() { return stores_; }

  // Counts a task under way, so that stop() waits for it. Returns how many there were before.
  std::int64_t begin() { return under_way_.fetch_add(1, std::memory_order_relaxed); }
  void end();
  // The same for one that may wait for a lock as long as it likes: stop() ends the waiting.
  void begin_locking() { locking_.fetch_add(1, std::memory_order_relaxed); }
  void end_locking() { locking_.fetch_sub(1, std::memory_order_acq_rel); }

 private:
  bool about_to_change_locked(const MountedInode& inode, const Inode& record) const;
  bool fresh(const MountedInode& inode) const;  // inode.mutex is held
  // Merges what the store said into what this mount knows. inode.mutex is held.
  // `listed`: of a directory, the last record of its listing that the answer knows (one home's only; else nothing).
  void absorb_locked(MountedInode& inode, const Inode& record, bool our_change,
                     std::optional<std::uint64_t> listed = std::nullopt);
  Inode absorb(MountedInode& inode, const Inode& record, bool our_change = false,
               std::optional<std::uint64_t> listed = std::nullopt);
  static Inode view(const Inode& record);  // without content
  // What the store said about the names of a directory in an answer to a request sent at `asked`, which wrote `records`
  // records, took away `removed` and added `added` (either may be empty).
  void note_names(InodeId directory, base::Time asked, const Reply& reply, unsigned records, const std::string& removed,
                  const std::string& added);
  // What `records` of our records at `when`, up to the listing's record `sequence` (0: not known), have made of a directory's
  // own attributes: nobody need ask for them.
  void note_change(InodeId directory, Nanos when, std::uint64_t sequence, unsigned records, int names, int directories);
  Task<Looked> lookup_number(InodeId id, bool parent);
  void reached(MountedInode& inode, InodeId directory, const std::string& name);  // its mutex is held
  void renamed_here(InodeId inode, InodeId from, const std::string& from_name, InodeId to, const std::string& to_name);
  void unnamed_here(InodeId inode, InodeId directory, const std::string& name);
  bool surely_named(const ReachedBy& name);
  // Whether the names by which the kernel may have come lead here now. `found`: the inode as it is, when the store has told of it too.
  struct Named {
    int error = 0;
    bool stale = false;
    std::optional<Inode> found;
  };
  Task<Named> check_names(std::shared_ptr<MountedInode> inode, Metadata::For what);
  void forget_names(InodeId directory);
  bool surely_absent(InodeId directory, const std::string& name);
  Task<Inode> seen_directory(InodeId directory);
  bool should_load_names(InodeId directory);  // counts a miss
  Task<int> load_names(InodeId directory);
  void remember_names(MountedInode& directory, const Listing& listing);  // its mutex is held
  void spread(InodeId directory);
  void touch_directory(InodeId directory);                               // its times have changed
  Task<int> commit_in_turn(std::shared_ptr<MountedInode> inode);
  Task<int> commit(std::shared_ptr<MountedInode> inode, bool ends_append = false);
  Task<Looked> truncate(std::shared_ptr<MountedInode> inode, SetRequest request);
  Task<int> refresh(std::shared_ptr<MountedInode> inode, Metadata::For what = Metadata::For::looking);
  int prepare(MountedInode& inode, std::shared_ptr<Content>& content);
  Task<int> commit_elsewhere(std::shared_ptr<MountedInode> inode, Inode record, std::vector<Extent> written);
  void seek_stores();
  bool await_stores(MountedInode& inode);
  void note_lacking(const Inode& inode);
  void remove_chunks(InodeId inode, std::vector<std::uint64_t> stores, std::uint64_t size, std::shared_ptr<Content> content);
  void fill_cache_locked(MountedInode& inode);
  std::shared_ptr<Content> content_of(MountedInode& inode);  // inode.mutex is held
  void buried(const Inode& inode);
  void orphaned(const Inode& inode, bool elsewhere);
  enum class Tend { on, at_the_end };
  Task<int> tend_nameless(Tend how);
  void mark_dirty_locked(MountedInode& inode);
  Task<int> bury_dead_sessions(bool at_start);
  Task<bool> bury(std::uint64_t session);
  Task<int> finish(std::shared_ptr<MountedInode> inode);
  void warn(const std::string& text) const {
    if (options_.warn) options_.warn(text);
  }
  void warn_of_store(const std::string& text);
  void invalidate(MountedInode& changed);
  Task<int> forgotten_by_kernel(std::shared_ptr<MountedInode> inode);
  Task<int> find_stores(std::shared_ptr<MountedInode> inode);
  Task<int> end_append(std::shared_ptr<MountedInode> inode);
  void tend_appends();
  void settle(Task<Metadata::Leftovers> task);
  void drop_content_locked(MountedInode& inode);
  void remember_less();
  void run_background();

  PatientClient client_;
  const base::Clock& clock_;
  const ChunkStore& chunks_;
  Stores stores_;
  const FileSystemOptions options_;
  const std::uint64_t session_;
  InodeTable table_;
  Metadata metadata_;
  FileLocks locks_;
  std::atomic<std::uint64_t> next_handle_{1};
  Retries retries_;

  std::atomic<std::int64_t> under_way_{0}, locking_{0};
  std::mutex trouble_mutex_;
  base::Time trouble_since_{};  // guarded by trouble_mutex_
  unsigned troubles_ = 0;       // since then. Guarded by trouble_mutex_
  std::mutex dirty_mutex_;
  std::set<InodeId> dirty_;      // guarded by dirty_mutex_
  std::set<InodeId> appending_;  // those with appends_until. Guarded by dirty_mutex_
  std::vector<std::string> again_;  // keys that settling has found, to be looked at once more. Guarded by dirty_mutex_

  std::mutex ending_mutex_;
  std::condition_variable ending_changed_;
  bool stopping_ = false;  // guarded by ending_mutex_
  std::thread background_;
  std::mutex seeking_mutex_;
  base::Time stores_sought_{};  // guarded by seeking_mutex_
  // Stores that were waited for in vain: not again before. Guarded by seeking_mutex_
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> waited_for_;
  std::atomic<bool> refreshing_{false}, told_lacking_{false};
  std::size_t most_remembered_ = 0;  // bytes, since memory was given back. Of background_
  Worker notices_, chores_;  // what the kernel is to be told; what may take long
  // What this session is told to let go of, by its list in the store; since when. Of the task that has set tending_.
  std::map<InodeId, base::Time> nameless_;
  std::atomic<bool> tending_{false};
  std::atomic<bool> burying_{false}, settle_{false}, settling_{false}, ending_{false};
  std::set<std::uint64_t> silent_;  // sessions that did not live when last looked at. Who has set burying_
};

}  // namespace fusionfs

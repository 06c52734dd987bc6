// What a plain client may send to an instance that runs: requests of every kind, and `update` of every procedure that a node has, with
// arguments as the services make them and then changed; and the services' records, changed where they lie. Input: a list of steps (below).
// Whatever comes is answered and the instance goes on: at the end it still takes a change and gives it back.
#include <google/protobuf/stubs/logging.h>
#include <sys/stat.h>

#include "fabriq/core/messages.h"
#include "fabriq/core/procedures.h"
#include "fusionfs/core/locks.h"
#include "fusionfs/core/procedures.h"
#include "fusionfs/core/requests.h"
#include "matrix/core/procedures.h"
#include "matrix/core/records.h"
#include "novoht/base/memory_files.h"
#include "tests/fuzz/fuzz.h"
#include "zht/core/instance.h"
#include "zht/core/view.h"
#include "zht/resp/procedures.h"

using namespace zht;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kPartitions = 2;

struct Request {
  std::string procedure, key, arguments;
};

template <typename Message>
void add_fusionfs(std::vector<Request>& to, std::initializer_list<const char*> names, const Message& message) {
  for (const char* name : names)
    to.push_back({std::string("fusionfs.") + name, fusionfs::tag_of(fusionfs::kRootHome), fusionfs::pack(message)});
}

std::vector<Request> fusionfs_requests() {
  using namespace fusionfs;
  std::vector<Request> all;
  const InodeId root = kRootInode, file{2};
  Inode inode;
  inode.id = root;
  inode.mode = S_IFDIR | 0755;
  inode.links = 2;
  inode.parent = root;
  DirectoryRequest directory;
  directory.inode = inode;
  add_fusionfs(all, {"make_directory"}, directory);  // first: the others need it
  add_fusionfs(all, {"create"}, CreateRequest{.name = "a", .mode = S_IFREG | 0644, .now = 1, .session = 3});
  add_fusionfs(all, {"lookup"}, NameRequest{"a"});
  add_fusionfs(all, {"unlink", "remove_directory"}, UnlinkRequest{.name = "a", .now = 2, .held = {file}, .session = 3});
  add_fusionfs(all, {"rename"}, RenameRequest{.from = "a", .to = "b", .now = 3, .held = {file}, .session = 3});
  add_fusionfs(all, {"move_begin", "move_install", "move_end", "move_undo", "move_cancel"},
               TransferRequest{.transfer = 5, .name = "a", .now = 4, .to = HomeId{1}, .to_name = "c", .entry = Entry{}, .session = 3});
  add_fusionfs(all, {"link", "promise_link", "add_entry", "settle_link"},
               LinkRequest{.inode = file, .name = "l", .type = S_IFREG, .now = 5, .id = 6});
  add_fusionfs(all, {"pay_debt", "reap"}, DropRequest{.inode = file, .id = 6, .now = 6, .held = {}});
  add_fusionfs(all, {"setattr"}, SetRequest{.inode = file, .fields_set = 0x1ff, .mode = 0600, .size = 10, .atime = 7, .mtime = 7, .now = 7});
  add_fusionfs(all, {"commit"}, CommitRequest{.inode = file, .size = 5, .blocks = 1, .mtime = 8, .offset = 0, .bytes = "hello"});
  add_fusionfs(all, {"set_attribute", "remove_attribute"}, AttributeRequest{.inode = file, .name = "user.x", .value = "y", .now = 9});
  add_fusionfs(all, {"attributes"}, InodesRequest{{root, file}});
  add_fusionfs(all, {"stat_directory", "mark_dying", "unmark_dying", "drop_directory", "touch_directory"}, directory);
  LockRequest lock;
  lock.inode = file;
  lock.session = 3;
  add_fusionfs(all, {"lock"}, lock);
  add_fusionfs(all, {"lock_renew"}, LocksRequest{});
  add_fusionfs(all, {"split_begin", "split_read", "split_install", "split_done", "split_finish"},
               SplitRequest{.next = HomeId{1}, .now = 10, .session = 3, .names = {"a", "b"}, .entries = {Entry{}, Entry{}}});
  return all;
}

std::vector<Request> fabriq_requests() {
  using namespace fabriq;
  const std::string tag = "{q:jobs:0}";
  std::vector<Request> all;
  Descriptor descriptor{.queue_id = 77};
  descriptor.secret = {1, 2};
  all.push_back({"fabriq.open", tag, descriptor.encode()});
  PushRequest push;
  push.queue_id = 77;
  push.producer = "p";
  push.sequence = 1;
  push.messages = {{"", "one"}, {"group", "two"}};
  all.push_back({"fabriq.push", tag, push.encode()});
  PopRequest pop;
  pop.queue_id = 77;
  pop.max_count = 2;
  all.push_back({"fabriq.pop", tag, pop.encode()});
  SettleRequest settle;
  settle.queue_id = 77;
  settle.items.emplace_back();
  all.push_back({"fabriq.settle", tag, settle.encode()});
  all.push_back({"fabriq.peek", tag, PeekRequest{77, 5, false}.encode()});
  for (const char* name : {"fabriq.info", "fabriq.redrive", "fabriq.purge", "fabriq.sweep", "fabriq.close"})
    all.push_back({name, tag, std::string("\x4d\0\0\0\0\0\0\0", 8)});
  return all;
}

std::vector<Request> matrix_requests() {
  using namespace matrix;
  TaskResult result;
  result.state = TaskState::done;
  return {{"matrix.claim", keys::job("1"), encode(ClaimRequest{"a", 1, 0, 100, true})},
          {"matrix.record", keys::job("1"), encode(RecordRequest{"a", 1, {{0, 1, {result}, {{0, 1}}}}, 0})},
          {"matrix.cancel", keys::job("1"), encode(CancelRequest{"why", false, 0})}};
}

std::vector<Request> general_requests() {
  std::vector<Request> all{{"add", "{t}n", "5"}, {"max", "{t}n", "7"}, {"list_take", "{t}l", "2"}};
  all.push_back({"set_if", "{t}s", std::string("\x01\0\0\0xy", 6)});
  for (const resp::Command& command : {resp::Command{"SET", "{t}r", "v", "EX", "10", "GET"}, {"GET", "{t}r"}, {"APPEND", "{t}r", "w"},
                                       {"EXPIRE", "{t}r", "100"}, {"INCRBY", "{t}i", "3"}, {"SETRANGE", "{t}r", "5", "z"}, {"DEL", "{t}r"}}) {
    resp::Script script;
    script.commands = {command};
    script.watched = {{"{t}r", 1}};
    all.push_back({std::string(resp::kProcedure), "{t}r", resp::encode(script)});
  }
  return all;
}

const std::vector<Request>& requests() {
  static const std::vector<Request> all = [] {
    std::vector<Request> made = fusionfs_requests();
    for (auto* more : {fabriq_requests, matrix_requests, general_requests})
      for (Request& one : more()) made.push_back(std::move(one));
    return made;
  }();
  return all;
}

class Server {
 public:
  explicit Server(base::Bytes input) : in_(input) {
    add_general_procedures(procedures_);
    resp::add_procedures(procedures_);
    fusionfs::add_procedures(procedures_);
    matrix::add_procedures(procedures_);
    fabriq::add_procedures(procedures_);
    core::InstanceOptions options;
    options.segment_size = 64 << 10;
    auto opened = core::Instance::open(disk_, "store", options, procedures_,
                                       core::lone_table({1, 1}, {{InstanceId{0}, {1, 1}, "", "", false}}, kPartitions));
    CHECK(opened, opened ? "" : opened.error().message);
    core_ = *std::move(opened);
    matrix::Job job;
    job.id = "1";
    job.task_count = 3;
    job.argv = {"true"};
    matrix::JobState state;
    state.total = 3;
    change(Operation::insert(matrix::keys::job("1"), matrix::encode(job)));
    change(Operation::insert(matrix::keys::state("1"), matrix::encode(state)));
    for (const std::size_t first : {std::size_t{0}, fusionfs_requests().size()}) update(requests()[first], requests()[first].arguments);
  }

  void run() {
    while (in_.ok() && in_.left() > 0) step();
    change(Operation::insert("{alive}", "yes"));
    const std::string answer = ask(Operation::lookup("{alive}"), 0);
    const auto frame = wire::next_frame(answer, wire::kMaxFrameSize);
    CHECK(frame && *frame && (*frame)->status == 0 && (*frame)->value == "yes", "it does not go on");
  }

 private:
  // 0..5  a procedure with its own arguments, as they are or changed    6  one with another's
  // 7     a stored record changed                                       8  time passes
  // 9     a request of any kind, with fields as they come
  void step() {
    const std::uint8_t what = in_.u8() % 10;
    const auto& all = requests();
    const Request& one = all[in_.u8() % all.size()];
    if (what < 6) return update(one, what < 2 ? one.arguments : damaged(one.arguments));
    if (what == 6) return update(one, damaged(all[in_.u8() % all.size()].arguments));
    if (what == 7) return damage_a_record();
    if (what == 8) return pass(std::chrono::milliseconds(in_.u16()));
    raw();
  }

  std::string damaged(std::string bytes) {
    static constexpr std::uint64_t kEdges[] = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, std::uint64_t{1} << 62, UINT64_MAX >> 1, UINT64_MAX};
    for (int left = in_.u8() % 4; left >= 0; left--) {
      const std::uint8_t how = in_.u8();
      const std::size_t at = bytes.empty() ? 0 : in_.u16() % bytes.size();
      if (how < 0x60 && !bytes.empty()) bytes[at] = static_cast<char>(in_.u8());
      else if (how < 0x70) bytes.resize(at);
      else if (how < 0x80) bytes.insert(at, in_.raw(std::min<std::size_t>(in_.left(), how % 16)));
      else
        for (std::size_t i = 0, width = how & 0x40 ? 8 : 4; i < width && at + i < bytes.size(); i++)
          bytes[at + i] = reinterpret_cast<const char*>(&kEdges[how % std::size(kEdges)])[i];
    }
    return bytes;
  }

  void update(const Request& request, std::string arguments) { change(Operation::update(request.key, request.procedure, std::move(arguments))); }

  void damage_a_record() {
    novoht::Store& store = core_->replicated_store().tables();
    const novoht::TableId table{in_.u8() % kPartitions};
    const auto page = store.scan(table, 0, 1000);
    if (page.entries.empty()) return;
    const std::string key = page.entries[in_.u16() % page.entries.size()].key;
    std::string value;
    if (const auto found = store.lookup(table, key)) (void)found->read(0, found->size(), value).has_value();
    change(Operation::insert(key, damaged(value)));
  }

  void pass(base::Duration time) {
    clock_.advance(time);
    core_->begin_round(clock_.now(), clock_.wall());
    core_->on_tick();
    end();
  }

  void raw() {
    std::string request;
    wire::encode_request(request, Operation::insert("{t}" + std::string(fuzz::next_part(in_).substr(0, 100)), ""), identity("{t}", true));
    request[6] = static_cast<char>(in_.u8() % 11);  // the operation
    base::store<std::uint32_t>(request.data() + 8, in_.u8());
    const std::string extra(fuzz::next_part(in_).substr(0, 1000));
    request += extra;
    base::store<std::uint32_t>(request.data() + 12, base::load<std::uint32_t>(request.data() + 12) + static_cast<std::uint32_t>(extra.size()));
    base::store<std::uint32_t>(request.data() + 68, static_cast<std::uint32_t>(extra.size()));
    serve(request);
  }

  wire::Identity identity(base::Bytes key, bool changes) {
    wire::Identity identity;
    identity.request = ++request_;
    identity.client = (std::uint64_t{base::to_millis(clock_.wall()) / 4000} << 34) | 5;
    identity.sequence = changes ? ++sequence_ : 0;
    identity.floor = changes && sequence_ > 100 ? sequence_ - 100 : 0;
    identity.epoch = 1;
    identity.partition = partition_of(key, kPartitions);
    return identity;
  }
  void change(const Operation& operation) { (void)ask(operation, 1); }
  std::string ask(const Operation& operation, int changes) {
    std::string request;
    wire::encode_request(request, operation, identity(operation.key, changes != 0));
    return serve(request);
  }
  std::string serve(const std::string& request) {
    const auto frame = wire::next_frame(request, wire::kMaxFrameSize);
    CHECK(frame && *frame, "a request is one frame");
    std::string out;
    core_->begin_round(clock_.now(), clock_.wall());
    core_->on_frame(core::ConnectionId{1}, **frame, out);
    end();
    return out;
  }
  void end() {
    CHECK(core_->end_round(), "the disk is well");
    core_->finish_round(clock_.now());
    (void)core_->take_sends();
  }

  base::Reader in_;
  base::FakeClock clock_;
  base::MemoryFiles disk_;
  Procedures procedures_;
  std::unique_ptr<core::Instance> core_;
  std::uint64_t request_ = 0, sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = (google::protobuf::SetLogHandler(nullptr), true);
  (void)quiet;
  Server(fuzz::bytes_of(data, std::min<std::size_t>(size, 8'000))).run();
  return 0;
}

#include "zht/server/witness.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "zht/client/channel.h"
#include "zht/support/log.h"
#include "zht/wire/zht.pb.h"

namespace zht::server {
namespace {

using base::Result;
using Credentials = std::function<Result<security::Opener>()>;

constexpr std::size_t kLargest = 64 * 1024;  // of a testament
constexpr auto kPatienceWithOne = std::chrono::milliseconds(300);

const support::Log& logger() {
  static const support::Log log("zht.witness");
  return log;
}

base::Time now() { return base::SystemClock().now(); }

Result<void> tell(const std::string& manager, const security::Opener& opener, const std::string& last) {
  TRY_LET(address, client::parse_address(manager));
  address.opener = opener;
  const base::Time deadline = now() + kPatienceWithOne;
  TRY_LET(channel, client::Channel::open(address, deadline));
  TRY(channel.control(wire::ControlKind::exited, last, deadline));
  return {};
}

// The first that listens sees to it that views do without the node; the others are told that it lives no more, so that nobody chooses
// it for a copy. When nobody listens, all are asked once more.
void carry_out(wire::Testament testament, const Credentials& credentials) {
  if (testament.managers().empty()) return;
  const auto node = testament.last().node();
  const auto opener = credentials();
  if (!opener) {
    logger().warn("cannot tell of the end of this node", {{"node", node}, {"error", opener.error()}});
    return;
  }
  std::string first, why;
  for (int round = 0; round < 2 && first.empty(); round++)
    for (const std::string& manager : testament.managers()) {
      const auto told = tell(manager, *opener, testament.last().SerializeAsString());
      if (!told) why = told.error().message;
      if (!told || !first.empty()) continue;
      first = manager;
      testament.mutable_last()->set_known(true);
    }
  if (testament.in_order()) return;
  if (first.empty()) logger().warn("this node's process has ended; nobody could be told", {{"node", node}, {"error", why}});
  else logger().warn("this node's process has ended; the cluster knows", {{"node", node}, {"told", first}});
}

// Nothing of the node's may be kept open or alive by who watches it.
void let_go_of_everything(int but) {
  if (const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC); nowhere >= 0) {
    ::dup2(nowhere, STDIN_FILENO);
    ::dup2(nowhere, STDOUT_FILENO);
    ::close(nowhere);
  }
  ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(but) - 1, 0);
  ::close_range(static_cast<unsigned>(but) + 1, ~0u, 0);
  if (::chdir("/") != 0) logger().debug("stays in its folder", {});
}

[[noreturn]] void watch(int descriptor, const Credentials& credentials) {
  ::prctl(PR_SET_NAME, "zht-witness");
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);  // it ends when the node has
  let_go_of_everything(descriptor);
  wire::Testament testament;
  std::vector<char> buffer(kLargest);
  while (true) {
    const ssize_t got = ::recv(descriptor, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    wire::Testament newer;
    if (newer.ParseFromArray(buffer.data(), static_cast<int>(got))) testament = std::move(newer);
  }
  carry_out(std::move(testament), credentials);
  ::_exit(0);
}

}  // namespace

Result<std::unique_ptr<Witness>> Witness::start(Credentials credentials) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return base::fail_errno(errno, "a pair of sockets for the witness");
  const pid_t child = ::fork();
  if (child < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    return base::fail_errno(error, "fork");
  }
  if (child == 0) {
    ::close(ends[0]);
    // A child of nobody: who runs the node has no second process to wait for.
    if (::fork() != 0) ::_exit(0);
    watch(ends[1], credentials);
  }
  ::close(ends[1]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return std::unique_ptr<Witness>(new Witness(ends[0]));
}

Witness::~Witness() { ::close(descriptor_); }

void Witness::inform(const wire::Testament& testament) {
  std::string text = testament.SerializeAsString();
  if (text == told_ || text.size() > kLargest) return;
  if (::send(descriptor_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) told_ = std::move(text);
}

}  // namespace zht::server

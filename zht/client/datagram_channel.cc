#include "zht/client/datagram_channel.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace zht::client {

using base::Bytes;
using base::fail;
using base::Result;
using namespace std::chrono_literals;

namespace {
constexpr auto kStep = 10ms;       // of a blocking receive, and the first pause before sending again
constexpr int kSteps = 1 + 2 + 4 + 8 + 16;

base::Time now() { return base::SystemClock().now(); }
}  // namespace

DatagramChannel::~DatagramChannel() {
  if (fd_ >= 0) ::close(fd_);
}

Result<DatagramChannel> DatagramChannel::open(const Address& address) {
  TRY_LET(candidates, resolve(address));
  for (const SocketAddress& candidate : candidates) {
    const int fd = ::socket(candidate.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    DatagramChannel channel(fd);
    // Connected: datagrams from elsewhere are dropped by the kernel, and an absent receiver is reported.
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&candidate.storage), candidate.size) != 0) continue;
    const timeval timeout{0, std::chrono::microseconds(kStep).count()};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    return channel;
  }
  return fail(Code::unavailable, address.text(), ": no datagram socket: ", std::strerror(errno));
}

Result<void> DatagramChannel::send() {
  if (::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out_.size())) return {};
  if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR) return {};  // lost, as any may be
  return fail(Code::unavailable, "datagram: ", std::strerror(errno));
}

Result<wire::Frame> DatagramChannel::exchange(std::uint64_t request, base::Time deadline) {
  sent_again_ = false;
  TRY(send());
  int cookies = 0;
  for (int step = 1, again_at = 1; step <= kSteps && now() < deadline;) {
    const ssize_t got = ::recv(fd_, in_.data(), in_.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (step++ < again_at) continue;
      sent_again_ = true;
      again_at = 2 * again_at + 1;
      char* const flags = out_.data() + wire::kDatagramCookieSize + 8;
      base::store(flags, base::load<std::uint32_t>(flags) | wire::kRetry);
      TRY(send());
      continue;
    }
    if (got < 0) return fail(Code::unavailable, "datagram: ", std::strerror(errno));
    const Bytes datagram(in_.data(), static_cast<std::size_t>(got));
    if (datagram.size() < wire::kDatagramCookieSize + wire::kHeaderSize) continue;
    wire::Frame frame;
    const auto complete = wire::next_frame(datagram.substr(wire::kDatagramCookieSize), wire::kMaxDatagram, frame);
    if (!complete || !*complete || frame.type != wire::FrameType::reply || frame.request != request) continue;
    if (frame.status != wire::kStatusCookie) return frame;
    if (++cookies > 3) break;  // a server that forgets what it gave
    std::memcpy(out_.data(), in_.data(), wire::kDatagramCookieSize);
    TRY(send());
  }
  return fail(Code::unavailable, "no answer to a datagram");
}

}  // namespace zht::client

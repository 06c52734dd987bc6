#include "zht/net/datagrams.h"

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "zht/net/listen.h"

namespace zht::net {

using base::Bytes;
using wire::Frame;

namespace {
constexpr std::size_t kTogether = 32;
constexpr int kBunchesAtOnce = 4;  // then the connections have their turn
constexpr int kSocketBuffer = 4 << 20;

// What makes an address: family, host and port. The padding around them is the kernel's.
std::string address_bytes(const sockaddr_storage& from) {
  std::string bytes;
  if (from.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(from);
    bytes.append(reinterpret_cast<const char*>(&six.sin6_addr), sizeof six.sin6_addr);
    bytes.append(reinterpret_cast<const char*>(&six.sin6_port), sizeof six.sin6_port);
  } else {
    const auto& four = reinterpret_cast<const sockaddr_in&>(from);
    bytes.append(reinterpret_cast<const char*>(&four.sin_addr), sizeof four.sin_addr);
    bytes.append(reinterpret_cast<const char*>(&four.sin_port), sizeof four.sin_port);
  }
  return bytes;
}

// A reply without a body.
void answer_with(std::uint8_t status, const Frame& request, std::string& out) {
  const std::size_t start = wire::begin_reply(
      out, {.op = request.op, .status = status, .request = request.request, .epoch = request.epoch, .partition = request.partition});
  wire::end_reply(out, start);
}

// One reply each, which need not come from a connection.
bool suits(const Frame& request) { return static_cast<OpKind>(request.op) != OpKind::callback; }

}  // namespace

Datagrams::Datagrams(EventLoop& loop, Execute execute)
    : loop_(loop), execute_(std::move(execute)), buffer_(kTogether * (wire::kMaxDatagram + 1)) {}

Datagrams::~Datagrams() {
  if (descriptor_ < 0) return;
  loop_.remove(descriptor_, *this);
  ::close(descriptor_);
}

base::Result<void> Datagrams::listen(const std::string& address) {
  TRY_LET(descriptor, listen_udp(address));
  descriptor_ = descriptor;
  ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof kSocketBuffer);
  ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  return loop_.add(descriptor_, EPOLLIN, *this);
}

void Datagrams::on_ready(std::uint32_t) {
  for (int bunch = 0; bunch < kBunchesAtOnce && receive(); bunch++) {}
}

// Takes what has arrived, up to kTogether datagrams; whether there may be more.
bool Datagrams::receive() {
  constexpr std::size_t room = wire::kMaxDatagram + 1;  // one more: longer ones show
  std::array<mmsghdr, kTogether> messages{};
  std::array<iovec, kTogether> places;
  std::array<sockaddr_storage, kTogether> from;
  for (std::size_t i = 0; i < kTogether; i++) {
    places[i] = {buffer_.data() + i * room, room};
    messages[i].msg_hdr.msg_iov = &places[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_name = &from[i];
    messages[i].msg_hdr.msg_namelen = sizeof from[i];
  }
  const int got = ::recvmmsg(descriptor_, messages.data(), kTogether, MSG_DONTWAIT, nullptr);
  if (got <= 0) return false;

  std::array<Frame, kTogether> requests;
  std::array<std::size_t, kTogether> whose;  // places in answers_
  std::size_t count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(got); i++) {
    const Bytes datagram(buffer_.data() + i * room, messages[i].msg_len);
    if (datagram.size() > wire::kMaxDatagram || datagram.size() < wire::kDatagramCookieSize + wire::kHeaderSize) continue;
    Frame frame;
    const auto complete = wire::next_frame(datagram.substr(wire::kDatagramCookieSize), wire::kMaxDatagram, frame);
    if (!complete || !*complete || frame.type != wire::FrameType::request) continue;
    if (wire::kDatagramCookieSize + frame.size != datagram.size()) continue;
    const std::uint64_t cookie = cookies_.cookie_for(address_bytes(from[i]));
    const bool known = base::load<std::uint64_t>(datagram.data()) == cookie;
    // A cookie is sent for no fewer bytes than it takes.
    if (!known && frame.size == wire::kHeaderSize) continue;
    answers_.push_back({from[i], messages[i].msg_hdr.msg_namelen, cookie, out_.size(), 0});
    if (known && suits(frame)) {
      whose[count] = answers_.size() - 1;
      requests[count++] = frame;
      continue;
    }
    answer_with(known ? wire::kStatusStream : wire::kStatusCookie, frame, out_);
    answers_.back().size = wire::kHeaderSize;
  }
  if (count > 0) {
    const std::size_t before = out_.size();
    execute_(std::span(requests).first(count), out_);
    std::size_t at = before;
    for (std::size_t i = 0; i < count; i++) {
      const std::size_t size = wire::kHeaderSize + base::load<std::uint32_t>(out_.data() + at + 12);
      Answer& answer = answers_[whose[i]];
      answer.begin = at;
      answer.size = size;
      at += size;
    }
    for (std::size_t i = 0; i < count; i++) {
      Answer& answer = answers_[whose[i]];
      if (answer.size + wire::kDatagramCookieSize <= wire::kMaxDatagram) continue;
      answer.begin = out_.size();
      answer_with(wire::kStatusStream, requests[i], out_);
      answer.size = wire::kHeaderSize;
    }
  } else if (!answers_.empty()) {
    execute_({}, out_);
  }
  return static_cast<std::size_t>(got) == kTogether;
}

void Datagrams::close_round(bool kept) {
  if (answers_.empty()) return;
  if (kept) send();
  answers_.clear();
  if (out_.capacity() > (std::size_t{1} << 20)) std::string().swap(out_);
  out_.clear();
}

// What the socket does not take is lost, as any datagram may be.
void Datagrams::send() {
  for (std::size_t begin = 0; begin < answers_.size(); begin += kTogether) {
    const std::size_t count = std::min(kTogether, answers_.size() - begin);
    std::array<mmsghdr, kTogether> messages{};
    std::array<std::array<iovec, 2>, kTogether> places;
    for (std::size_t i = 0; i < count; i++) {
      Answer& answer = answers_[begin + i];
      places[i] = {{{&answer.cookie, sizeof answer.cookie}, {out_.data() + answer.begin, answer.size}}};
      messages[i].msg_hdr.msg_name = &answer.to;
      messages[i].msg_hdr.msg_namelen = answer.to_size;
      messages[i].msg_hdr.msg_iov = places[i].data();
      messages[i].msg_hdr.msg_iovlen = places[i].size();
    }
    for (std::size_t sent = 0; sent < count;) {
      const int taken = ::sendmmsg(descriptor_, messages.data() + sent, static_cast<unsigned>(count - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
      sent += taken > 0 ? static_cast<std::size_t>(taken) : 1;  // one that cannot be sent keeps none of the others
    }
  }
}

}  // namespace zht::net

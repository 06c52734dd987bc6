// One connection used by one thread at a time, blocking: send a frame, wait for its reply. What a synchronous call on the
// caller's own thread runs on (no other thread has to wake up for it), and all control requests.
//
//   TRY_LET(channel, Channel::open(address, deadline));
//   encode_request(channel.out(), operation, identity);
//   if (auto reply = channel.exchange(identity.request, deadline)) ... reply->status ...
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "novoht/base/clock.h"
#include "zht/client/address.h"
#include "zht/wire/frame.h"

namespace zht::client {

class Channel {
 public:
  Channel(Channel&& from) noexcept
      : fd_(std::exchange(from.fd_, -1)), out_(std::move(from.out_)), in_(std::move(from.in_)), from_(from.from_), to_(from.to_),
        requests_(from.requests_), sent_(from.sent_), patience_(from.patience_), fell_silent_(from.fell_silent_), guard_(std::move(from.guard_)) {}
  Channel& operator=(Channel&& from) noexcept;
  ~Channel();

  // unavailable: nobody listens there, or no answer in time; invalid: one side does not take the other's proof (zht/security).
  // Both name the address.
  static base::Result<Channel> open(const Address& address, base::Time deadline);

  std::uint64_t next_request() { return ++requests_; }
  std::string& out() { return out_; }  // frames to send; emptied by exchange
  // Sends what out() holds and waits for the reply to `request`; replies to others are dropped. The frame borrows from
  // the channel until its next use. unavailable: the connection broke or the deadline passed; it is of no more use, and
  // anything_sent() tells whether the request may have arrived.
  base::Result<wire::Frame> exchange(std::uint64_t request, base::Time deadline);
  // How long the other side may take no bytes and give none, from here on; past it, unavailable.
  void set_patience(base::Duration patience) { patience_ = patience; }
  // When its patience ended, if that is why the last exchange failed.
  std::optional<base::Time> fell_silent() const { return fell_silent_; }
  bool anything_sent() const { return sent_; }
  // After send_only(): the next reply, whichever request it answers. Errors as exchange().
  base::Result<wire::Frame> receive(base::Time deadline);
  base::Result<void> send_only(base::Time deadline);
  // What a control request is answered with: its body, or the error it was answered with.
  base::Result<std::string> control(wire::ControlKind kind, base::Bytes body, base::Time deadline);

 private:
  explicit Channel(int fd) : fd_(fd) {}
  base::Result<void> wait_for(short events, base::Time deadline);
  base::Result<void> receive_more(base::Time deadline);
  base::Result<void> receive_guarded(base::Time deadline);
  base::Result<std::size_t> receive_some(char* to, std::size_t room, base::Time deadline);
  base::Result<void> send_all(base::Bytes bytes, base::Time deadline);
  base::Result<void> prove(const security::Opener& opener, base::Time deadline);

  int fd_;
  std::string out_, in_;           // in_ holds received bytes in [from_, to_)
  std::size_t from_ = 0, to_ = 0;
  std::uint64_t requests_ = 0;
  bool sent_ = false;
  base::Duration patience_ = std::chrono::hours(24);
  std::optional<base::Time> fell_silent_;
  std::unique_ptr<security::Guard> guard_;  // none: bytes go and come as they are
};

// How long an instance that was asked something may be silent before it is asked anew on another connection.
inline constexpr base::Duration kPatience = std::chrono::seconds(2);

// For a TCP socket: no Nagle's delay, and a peer that is gone without a word is noticed within half a minute.
void make_lively(int descriptor);

// A connected, close-on-exec socket, lively where it is TCP.
base::Result<int> open_socket(const SocketAddress& address, const std::string& name, base::Time deadline);

}  // namespace zht::client

// Small requests as datagrams: one exchange at a time, blocking, used by one thread at a time. PROTOCOL.md, "Datagrams".
//
// A datagram may be lost, late or repeated. So the request is sent again, marked as a retry, after 10, 20, 40, 80 and 160 ms;
// then, or when the answer does not fit, the caller asks over a connection under the same identity.
#pragma once

#include <string>
#include <utility>

#include "novoht/base/clock.h"
#include "zht/client/address.h"
#include "zht/wire/frame.h"

namespace zht::client {

class DatagramChannel {
 public:
  DatagramChannel(DatagramChannel&& from) noexcept
      : fd_(std::exchange(from.fd_, -1)), out_(std::move(from.out_)), in_(std::move(from.in_)), requests_(from.requests_) {}
  DatagramChannel& operator=(DatagramChannel&&) = delete;
  ~DatagramChannel();

  static base::Result<DatagramChannel> open(const Address& address);

  std::uint64_t next_request() { return ++requests_; }
  // An empty place for one request frame; whether what was put there is small enough for exchange().
  std::string& out() {
    out_.resize(wire::kDatagramCookieSize);
    return out_;
  }
  bool fits() const { return out_.size() <= wire::kMaxDatagram; }
  // Sends out()'s frame and waits for the reply to `request`, which borrows from the channel until its next use.
  // unavailable: no answer, though the request may have been executed.
  base::Result<wire::Frame> exchange(std::uint64_t request, base::Time deadline);
  bool sent_again() const { return sent_again_; }  // by the last exchange(): an earlier copy may have been executed

 private:
  explicit DatagramChannel(int fd) : fd_(fd), out_(wire::kDatagramCookieSize, '\0'), in_(wire::kMaxDatagram + 1, '\0') {}
  base::Result<void> send();

  int fd_;
  std::string out_;  // cookie, then the frame
  std::string in_;
  std::uint64_t requests_ = 0;
  bool sent_again_ = false;
};

}  // namespace zht::client

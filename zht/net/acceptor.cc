#include "zht/net/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace zht::net {

Acceptor::Acceptor(EventLoop& loop, Listening listening, std::function<void(int)> taken)
    : loop_(loop), listening_(std::move(listening)), taken_(std::move(taken)) {}

Acceptor::~Acceptor() {
  if (added_) loop_.remove(listening_.descriptor, *this);
  ::close(listening_.descriptor);
}

base::Result<void> Acceptor::begin() {
  TRY(loop_.add(listening_.descriptor, EPOLLIN, *this));
  added_ = true;
  return {};
}

void Acceptor::on_ready(std::uint32_t) {
  for (int i = 0; i < kAtOnce; i++) {
    const int descriptor = ::accept4(listening_.descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) {
      taken_(descriptor);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) rest();
    return;
  }
}

// Those connected go on, new ones wait.
void Acceptor::rest() {
  loop_.change(listening_.descriptor, 0, *this);
  loop_.after(kPause, [self = std::weak_ptr(self_)] {
    if (const auto alive = self.lock()) (*alive)->loop_.change((*alive)->listening_.descriptor, EPOLLIN, **alive);
  });
}

void Unproven::add(std::uint64_t connection, Clock::time_point now) {
  place_[connection] = all_.size();
  all_.push_back({connection, now});
}

void Unproven::remove(std::uint64_t connection) {
  const auto found = place_.find(connection);
  if (found == place_.end()) return;
  const std::size_t at = found->second;
  place_.erase(found);
  if (at + 1 != all_.size()) {
    all_[at] = all_.back();
    place_[all_[at].connection] = at;
  }
  all_.pop_back();
}

std::optional<std::uint64_t> Unproven::in_the_way() {
  if (all_.size() < most_) return std::nullopt;
  const One* oldest = nullptr;
  for (int i = 0; i < kDrawn; i++)
    if (const One& one = all_[random_.below(all_.size())]; oldest == nullptr || one.since < oldest->since) oldest = &one;
  return oldest->connection;
}

std::vector<std::uint64_t> Unproven::older_than(Clock::time_point since) const {
  std::vector<std::uint64_t> old;
  for (const One& one : all_)
    if (one.since <= since) old.push_back(one.connection);
  return old;
}

}  // namespace zht::net

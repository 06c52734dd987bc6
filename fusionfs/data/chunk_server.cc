#include "fusionfs/data/chunk_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fusionfs {

using base::Code;
using base::fail;
using base::fail_errno;

namespace {

constexpr std::size_t kMostConnections = 256;            // that have proven themselves
// At it still. A random one makes way: whoever opens connections and says nothing would else keep out those who have something to say.
constexpr std::size_t kMostUnproven = 64;
constexpr std::chrono::milliseconds kNoDescriptors{100};  // until it is tried again
constexpr std::size_t kMostOpen = 512;                   // files kept open between requests
constexpr std::chrono::seconds kKeptOpen{60};            // without a request
constexpr std::chrono::milliseconds kProof{5'000};       // until a new connection has proven itself
constexpr std::chrono::milliseconds kPatience{30'000};   // in the middle of a request
constexpr std::chrono::milliseconds kLongIdle{600'000};  // between two

}  // namespace

Result<std::unique_ptr<ChunkServer>> ChunkServer::start(const ChunkStore& store, const std::string& host,
                                                        std::uint16_t port, zht::Opener opener) {
  std::unique_ptr<ChunkServer> server(new ChunkServer(store, std::move(opener)));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return fail(Code::invalid, base::escape(host), ": not an address to listen on");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  server->listener_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (server->listener_ < 0) return fail_errno(errno, "socket");
  ::setsockopt(server->listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(server->listener_, found->ai_addr, found->ai_addrlen) != 0 || ::listen(server->listener_, 64) != 0)
    return fail(Code::unavailable, "listen on ", host, " port ", port, ": ", std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(server->listener_, reinterpret_cast<sockaddr*>(&bound), &size);
  server->port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                    : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  server->acceptor_ = std::thread([at = server.get()] { at->accept_all(); });
  return server;
}

ChunkServer::~ChunkServer() {
  stopping_ = true;
  if (listener_ >= 0) ::shutdown(listener_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  if (listener_ >= 0) ::close(listener_);
  for (const auto& each : connections_) each->link.shut_down();
  for (const auto& each : connections_) {
    if (each->thread.joinable()) each->thread.join();
  }
}

void ChunkServer::accept_all() {
  while (!stopping_) {
    pollfd wanted{listener_, POLLIN, 0};
    if (::poll(&wanted, 1, 1000) < 0 && errno != EINTR) return;
    const int socket = (wanted.revents & POLLIN) != 0 ? ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC) : -1;
    // The listener stays readable: without a pause this would spin.
    if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) && (wanted.revents & POLLIN) != 0)
      std::this_thread::sleep_for(kNoDescriptors);
    const std::lock_guard lock(mutex_);
    for (auto each = connections_.begin(); each != connections_.end();) {
      if (!(*each)->ended) {
        ++each;
        continue;
      }
      (*each)->thread.join();
      each = connections_.erase(each);
    }
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(open_, [&](const auto& each) { return now - each.second.used > kKeptOpen; });
    if (socket < 0) continue;
    const auto proven = std::count_if(connections_.begin(), connections_.end(), [](const auto& each) { return each->proven.load(); });
    if (static_cast<std::size_t>(proven) >= kMostConnections) {
      ::close(socket);  // the client tries again, and then goes to another copy
      continue;
    }
    make_room();
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    auto made = std::make_unique<Connection>(socket, opener_);
    Connection* connection = made.get();
    made->thread = std::thread([this, connection] {
      serve(*connection);
      connection->link.shut_down();
      connection->ended = true;
    });
    connections_.push_back(std::move(made));
  }
}

void ChunkServer::make_room() {
  std::vector<Connection*> unproven;
  for (const auto& each : connections_)
    if (!each->proven && !each->ended) unproven.push_back(each.get());
  if (unproven.size() >= kMostUnproven) unproven[random_.below(unproven.size())]->link.shut_down();
}

void ChunkServer::serve(Connection& connection) {
  ChunkLink& link = connection.link;
  if (!link.prove(kProof)) return;
  connection.proven = true;
  while (!stopping_ && link.wait_for_more(kLongIdle)) {
    const auto frame = link.receive(kPatience);
    if (!frame) return;
    const auto request = decode_chunk_request(*frame);
    ChunkAnswer reply;
    if (request) {
      reply = answer(*request);
    } else {
      reply.code = Code::unsupported;
      reply.bytes = "a request that this chunk server does not know";
    }
    if (!link.send(encode(reply), kPatience)) return;
  }
}

std::shared_ptr<LocalContent> ChunkServer::content(InodeId inode) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  Open& open = open_[inode];
  if (!open.content) open.content = std::make_shared<LocalContent>(store_, inode);
  open.used = now;
  const auto answer = open.content;
  if (open_.size() > kMostOpen) {
    auto oldest = open_.begin();
    for (auto each = open_.begin(); each != open_.end(); ++each) {
      if (each->second.used < oldest->second.used) oldest = each;
    }
    open_.erase(oldest);
  }
  return answer;
}

ChunkAnswer ChunkServer::answer(const ChunkRequest& request) {
  ChunkAnswer reply;
  const auto settle = [&](const Result<void>& done) {
    if (done) return;
    reply.code = done.error().code;
    reply.bytes = done.error().message;
  };
  if (request.operation == ChunkOperation::hello) {
    reply.number = store_.identity();
    return reply;
  }
  if (request.operation == ChunkOperation::remove) {
    {
      const std::lock_guard lock(mutex_);
      open_.erase(request.inode);
    }
    settle(store_.remove(request.inode, request.first));
    return reply;
  }
  const std::uint64_t end = request.first + request.second;
  if (request.first > kMaxFileSize || request.second > kMaxFileSize || end > 2 * kMaxFileSize) {
    settle(fail(Code::invalid, "bytes ", request.first, " and ", request.second, " more are past what a file can have"));
    return reply;
  }
  const auto file = content(request.inode);
  // What was opened for writing may have been closed here meanwhile, unused for long: the mark of that is set again.
  if (request.operation == ChunkOperation::write || request.operation == ChunkOperation::truncate ||
      request.operation == ChunkOperation::allocate || request.operation == ChunkOperation::punch) {
    if (const auto marked = file->go_on_writing(); !marked) {
      settle(marked);
      return reply;
    }
  }
  switch (request.operation) {
    case ChunkOperation::begin_writing:
      settle(file->begin_writing(request.first));
      break;
    case ChunkOperation::read:
      if (request.second > kMostChunkBytes) {
        settle(fail(Code::invalid, "a read of ", request.second, " bytes; ", kMostChunkBytes, " at most"));
        break;
      }
      reply.bytes.resize(request.second);
      if (const auto done = file->read(request.first, reply.bytes.data(), reply.bytes.size()); !done) settle(done);
      break;
    case ChunkOperation::write:
      settle(file->write(request.first, request.bytes));
      break;
    case ChunkOperation::truncate:
      settle(file->truncate(request.first, request.second));
      break;
    case ChunkOperation::allocate:
      settle(file->allocate(request.first, request.second));
      break;
    case ChunkOperation::punch:
      settle(file->punch(request.first, request.second));
      break;
    case ChunkOperation::sync:
      settle(file->sync());
      break;
    case ChunkOperation::seek_data:
    case ChunkOperation::seek_hole: {
      const auto found = file->seek(request.first, request.second, request.operation == ChunkOperation::seek_data);
      if (found)
        reply.number = *found;
      else
        settle(found.error());
      break;
    }
    case ChunkOperation::blocks:
      reply.number = file->blocks(request.first);
      break;
    case ChunkOperation::sums: {
      const auto found = file->sums(request.first, std::min(request.second, kChunkSize));
      if (!found) {
        settle(found.error());
        break;
      }
      for (const std::uint32_t sum : *found) base::Writer(reply.bytes).u32(sum);
      break;
    }
    case ChunkOperation::hello:
    case ChunkOperation::remove:
      break;
  }
  return reply;
}

}  // namespace fusionfs

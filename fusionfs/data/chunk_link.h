// One TCP connection between a mount and a chunk server: first both ends prove that they belong to the cluster (zht/guard.h;
// through TLS where the cluster has it), then frames go to and fro. Blocking calls, one thread at a time.
//
//   ChunkLink link(socket, opener, zht::Side::asker);
//   TRY(link.prove(patience));                 // before it nothing of ours is sent or heeded
//   TRY(link.send(encode(request), patience));
//   TRY_LET(frame, link.receive(patience));
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "novoht/base/result.h"
#include "zht/guard.h"

namespace fusionfs {

class ChunkLink {
 public:
  // Takes the socket over: it is closed with this object.
  ChunkLink(int socket, const zht::Opener& opener, zht::Side side);
  ~ChunkLink();
  ChunkLink(const ChunkLink&) = delete;
  ChunkLink& operator=(const ChunkLink&) = delete;

  // All of it within `patience`. invalid: the other end is not of this cluster; unavailable: it does not go on.
  base::Result<void> prove(std::chrono::milliseconds patience);
  // Each waits `patience` at most without any progress. unavailable: the other side does not go on, or has gone; corrupt: what
  // came is no frame.
  base::Result<void> send(base::Bytes payload, std::chrono::milliseconds patience);
  base::Result<std::string> receive(std::chrono::milliseconds patience);
  // Nothing for `patience`, or the connection has ended: false.
  bool wait_for_more(std::chrono::milliseconds patience) const;
  void shut_down() const;  // from any thread: whoever waits on it goes on, with an error

 private:
  base::Result<void> send_bytes(base::Bytes bytes, std::chrono::milliseconds patience) const;
  base::Result<void> receive_bytes(char* to, std::size_t size, std::chrono::milliseconds patience);
  base::Result<void> receive_guarded(std::chrono::milliseconds patience);

  const int socket_;
  const zht::Side side_;
  std::unique_ptr<zht::Guard> guard_;  // none: bytes pass as they are
  std::string plain_;                  // came through the guard; from plain_from_ on not yet asked for
  std::size_t plain_from_ = 0;
};

}  // namespace fusionfs

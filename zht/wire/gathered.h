// Bytes to send of which some lie elsewhere: long payloads that go to several receivers are not copied into each message but
// gathered by the system call that sends it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"

namespace zht::wire {

struct Gathered {
  struct Piece {
    std::size_t at = 0;  // it comes before bytes[at]
    base::Bytes bytes;
    std::shared_ptr<const void> owner;  // keeps them alive
  };
  std::string bytes;
  std::vector<Piece> pieces;  // in order of `at`
  std::size_t pieces_size = 0;

  std::size_t size() const { return bytes.size() + pieces_size; }
  void gather(base::Bytes piece, std::shared_ptr<const void> owner) {
    pieces_size += piece.size();
    pieces.push_back({bytes.size(), piece, std::move(owner)});
  }
  std::string whole() const {  // all of it copied together, for tests
    std::string out;
    std::size_t from = 0;
    for (const Piece& one : pieces) {
      out.append(bytes, from, one.at - from).append(one.bytes);
      from = one.at;
    }
    return out.append(bytes, from);
  }
};

}  // namespace zht::wire

// A file's bytes piece by piece, in memory that is used again: to read through a gigabyte touches some megabytes.
#pragma once

#include <memory>
#include <string>

#include "novoht/base/file.h"

namespace novoht::core {

// Memory for pieces. Goes back to the pool when nobody holds it any more, and that may be any thread.
class PiecePool {
 public:
  PiecePool();
  // At least `size` bytes.
  std::shared_ptr<char[]> take(std::size_t size);

 private:
  class Idle;
  std::shared_ptr<Idle> idle_;
};

// A part of a file, from `offset` on.
struct Piece {
  std::uint64_t offset = 0;
  base::Bytes bytes;
  std::shared_ptr<char[]> hold;  // what bytes point into
  std::uint64_t end() const { return offset + bytes.size(); }
};

// One thread.
class PieceReader {
 public:
  static base::Result<std::unique_ptr<PieceReader>> open(base::FileSystem& files, std::string path, PiecePool& pool);

  std::uint64_t size() const { return size_; }  // of the file
  // Bytes [offset, offset + size), fewer only where the file ends.
  base::Result<Piece> read(std::uint64_t offset, std::uint64_t size);

 private:
  PieceReader(std::string path, std::unique_ptr<base::File> file, std::uint64_t size, PiecePool& pool)
      : path_(std::move(path)), file_(std::move(file)), size_(size), pool_(pool) {}

  const std::string path_;
  const std::unique_ptr<base::File> file_;
  std::uint64_t size_;
  PiecePool& pool_;
};

}  // namespace novoht::core

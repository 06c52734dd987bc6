#include "novoht/core/file_bytes.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace novoht::core {
namespace {
constexpr std::size_t kLeast = std::size_t{256} << 10;   // of a piece's memory
constexpr std::size_t kKept = std::size_t{16} << 20;     // larger ones are not kept
}  // namespace

class PiecePool::Idle {
 public:
  ~Idle() {
    for (const auto& [memory, capacity] : idle_) delete[] memory;
  }
  std::pair<char*, std::size_t> take(std::size_t size) {
    {
      std::scoped_lock lock(mutex_);
      for (std::size_t i = idle_.size(); i-- > 0;) {
        if (idle_[i].second < size) continue;
        const auto found = idle_[i];
        idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
      }
    }
    const std::size_t capacity = std::max(size + size / 8, kLeast);
    return {new char[capacity], capacity};
  }
  void give(char* memory, std::size_t capacity) {
    std::scoped_lock lock(mutex_);
    if (capacity <= kKept) idle_.emplace_back(memory, capacity);
    else delete[] memory;
  }

 private:
  std::mutex mutex_;  // of what is below
  std::vector<std::pair<char*, std::size_t>> idle_;
};

PiecePool::PiecePool() : idle_(std::make_shared<Idle>()) {}

std::shared_ptr<char[]> PiecePool::take(std::size_t size) {
  const auto [memory, capacity] = idle_->take(size);
  return std::shared_ptr<char[]>(memory, [idle = idle_, held = capacity](char* back) { idle->give(back, held); });
}

base::Result<std::unique_ptr<PieceReader>> PieceReader::open(base::FileSystem& files, std::string path, PiecePool& pool) {
  TRY_LET(file, files.open(path, base::OpenMode::read));
  TRY_LET(size, file->size());
  return std::unique_ptr<PieceReader>(new PieceReader(std::move(path), std::move(file), size, pool));
}

base::Result<Piece> PieceReader::read(std::uint64_t offset, std::uint64_t size) {
  Piece piece;
  piece.offset = offset;
  if (offset >= size_) return piece;
  size = std::min(size, size_ - offset);
  try {
    piece.hold = pool_.take(size);
  } catch (const std::bad_alloc&) {
    return base::fail(base::Code::io, path_, " offset ", offset, ": no memory for ", size, " bytes");
  }
  TRY_LET(got, file_->read_at(offset, piece.hold.get(), size));
  if (got < size) size_ = offset + got;  // it has become shorter
  piece.bytes = base::Bytes(piece.hold.get(), got);
  return piece;
}

}  // namespace novoht::core

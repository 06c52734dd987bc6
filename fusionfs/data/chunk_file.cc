#include "fusionfs/data/chunk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fusionfs {

using base::Bytes;
using base::Code;
using base::fail;
using base::fail_errno;
using base::Result;

namespace {

constexpr std::uint32_t kMagic = 0x31534346;  // "FCS1"
constexpr std::uint64_t kHeaderSize = 32, kSumsAt = kChunkSize + kHeaderSize;
constexpr std::uint64_t kBlocks = kChunkSize / kBlockSize;

std::uint32_t sum_of(Bytes block) {
  const std::uint32_t sum = base::crc32c(block);
  return sum == 0 ? 1 : sum;  // 0 is taken
}

}  // namespace

// The only one that changes the chunk, among all threads and processes. (Readers take it when what they read disagrees.)
class ChunkFile::Hold {
 public:
  explicit Hold(ChunkFile& file) : file_(file), lock_(file.mutex_) { set(F_WRLCK); }
  ~Hold() { set(F_UNLCK); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  void set(short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(kChunkSize);
    lock.l_len = 1;
    while (::fcntl(file_.fd_, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }
  ChunkFile& file_;
  std::lock_guard<std::mutex> lock_;
};

Result<std::unique_ptr<ChunkFile>> ChunkFile::open(const std::string& path, bool make, const Boots& boots) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0600);
  if (fd < 0 && errno == ENOENT) {
    if (!make) return std::unique_ptr<ChunkFile>();
    const std::string folder = path.substr(0, path.rfind('/'));
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "make folder " + folder);
    fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT, 0600);
  }
  // A disk that takes no changes (any more) can be read.
  if (fd < 0 && errno == EROFS) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail_errno(errno, "open " + path);
  return std::unique_ptr<ChunkFile>(new ChunkFile(path, fd, boots));
}

ChunkFile::~ChunkFile() { ::close(fd_); }

// What lies past the file's end is zeros.
Result<void> ChunkFile::read_bytes(std::uint64_t within, char* to, std::size_t size) const {
  std::size_t have = 0;
  while (have < size) {
    const ssize_t got = ::pread(fd_, to + have, size - have, static_cast<off_t>(within + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(errno, "read " + path_);
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  std::memset(to + have, 0, size - have);
  return {};
}

Result<void> ChunkFile::write_bytes(std::uint64_t within, Bytes bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(within + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail_errno(errno, "write " + path_);
    done += static_cast<std::size_t>(put);
  }
  return {};
}

Result<void> ChunkFile::read_sums(std::uint64_t first, std::vector<std::uint32_t>& sums) const {
  return read_bytes(kSumsAt + first * 4, reinterpret_cast<char*>(sums.data()), sums.size() * 4);
}
Result<void> ChunkFile::write_sums(std::uint64_t first, const std::vector<std::uint32_t>& sums) const {
  return write_bytes(kSumsAt + first * 4, Bytes(reinterpret_cast<const char*>(sums.data()), sums.size() * 4));
}

// Of the blocks first to last, last not included, as far as there are any.
Result<void> ChunkFile::clear_sums(std::uint64_t first, std::uint64_t last) const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return fail_errno(errno, "stat " + path_);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size <= kSumsAt) return {};
  last = std::min(last, (size - kSumsAt + 3) / 4);
  if (first >= last) return {};
  return write_sums(first, std::vector<std::uint32_t>(last - first, 0));
}

Result<bool> ChunkFile::doubtful() const {
  char header[kHeaderSize];
  TRY(read_bytes(kChunkSize, header, sizeof header));
  return boots_.doubtful(base::load<std::uint64_t>(header + 8));
}

// Says in which life of the machine it is written. Held.
Result<void> ChunkFile::mark() {
  if (marked_) return {};
  char header[kHeaderSize] = {};
  TRY(read_bytes(kChunkSize, header, sizeof header));
  const auto magic = base::load<std::uint32_t>(header);
  if (magic != 0 && magic != kMagic) return fail(Code::corrupt, path_, ": checksums of an unknown format");
  if (magic == 0 || base::load<std::uint64_t>(header + 8) != boots_.now) {
    base::store(header, kMagic);
    base::store(header + 8, boots_.now);
    TRY(write_bytes(kChunkSize, Bytes(header, sizeof header)));
  }
  marked_ = true;
  return {};
}

Result<void> ChunkFile::load_block(std::uint64_t block, std::uint32_t sum, char* to) {
  TRY(read_bytes(block * kBlockSize, to, kBlockSize));
  if (sum == 0) return {};
  const std::uint32_t found = sum_of(Bytes(to, kBlockSize));
  if (found == sum) return {};
  TRY_LET(pass, doubtful());
  if (pass) return {};
  return fail(Code::corrupt, path_, ": block ", block, " at byte ", block * kBlockSize, ": checksum ", found,
              ", expected ", sum);
}

Result<void> ChunkFile::verified_read(std::uint64_t within, char* to, std::size_t size) {
  const std::uint64_t end = within + size, first = within / kBlockSize, last = (end + kBlockSize - 1) / kBlockSize;
  thread_local std::vector<std::uint32_t> sums;
  sums.resize(last - first);
  TRY(read_sums(first, sums));
  const bool known = std::any_of(sums.begin(), sums.end(), [](std::uint32_t sum) { return sum != 0; });
  if (!known) return read_bytes(within, to, size);
  char edge[kBlockSize];
  std::uint64_t block = first;
  if (within % kBlockSize != 0) {
    TRY(load_block(block, sums[0], edge));
    const std::size_t part = std::min<std::size_t>(size, kBlockSize - within % kBlockSize);
    std::memcpy(to, edge + within % kBlockSize, part);
    to += part;
    within += part;
    ++block;
  }
  if (const std::uint64_t whole = within < end ? (end - within) / kBlockSize : 0; whole > 0) {
    TRY(read_bytes(within, to, whole * kBlockSize));
    for (std::uint64_t i = 0; i < whole; ++i, ++block) {
      const std::uint32_t sum = sums[block - first];
      if (sum == 0 || sum_of(Bytes(to + i * kBlockSize, kBlockSize)) == sum) continue;
      TRY_LET(pass, doubtful());
      if (!pass)
        return fail(Code::corrupt, path_, ": block ", block, " at byte ", block * kBlockSize, ": checksum ",
                    sum_of(Bytes(to + i * kBlockSize, kBlockSize)), ", expected ", sum);
    }
    to += whole * kBlockSize;
    within += whole * kBlockSize;
  }
  if (within < end) {
    TRY(load_block(block, sums[block - first], edge));
    std::memcpy(to, edge, end - within);
  }
  return {};
}

Result<void> ChunkFile::read(std::uint64_t within, char* to, std::size_t size) {
  if (size == 0) return {};
  const auto done = verified_read(within, to, size);
  if (done || done.code() != Code::corrupt) return done;
  const Hold hold(*this);  // it may be being written at this moment
  return verified_read(within, to, size);
}

Result<void> ChunkFile::write(std::uint64_t within, Bytes bytes) {
  if (bytes.empty()) return {};
  const Hold hold(*this);
  TRY(mark());
  const std::uint64_t end = within + bytes.size(), first = within / kBlockSize, last = (end - 1) / kBlockSize;
  thread_local std::vector<std::uint32_t> sums;
  sums.resize(last - first + 1);
  TRY(read_sums(first, sums));
  // What is left of a block's old bytes was right: else this would make damage look well.
  char head[kBlockSize], tail[kBlockSize];
  const bool part_first = within % kBlockSize != 0 || (first == last && end % kBlockSize != 0);
  const bool part_last = last != first && end % kBlockSize != 0;
  if (part_first) {
    TRY(load_block(first, sums.front(), head));
    std::memcpy(head + within % kBlockSize, bytes.data(),
                std::min<std::size_t>(bytes.size(), kBlockSize - within % kBlockSize));
  }
  if (part_last) {
    TRY(load_block(last, sums.back(), tail));
    std::memcpy(tail, bytes.data() + (last * kBlockSize - within), end % kBlockSize);
  }
  if (std::any_of(sums.begin(), sums.end(), [](std::uint32_t sum) { return sum != 0; })) {
    std::fill(sums.begin(), sums.end(), 0);
    TRY(write_sums(first, sums));
  }
  TRY(write_bytes(within, bytes));
  for (std::uint64_t block = first; block <= last; ++block) {
    const Bytes whole = block == first && part_first ? Bytes(head, kBlockSize)
                        : block == last && part_last ? Bytes(tail, kBlockSize)
                                                     : bytes.substr(block * kBlockSize - within, kBlockSize);
    sums[block - first] = sum_of(whole);
  }
  // Where there is no room for a checksum the bytes are there all the same.
  const auto written = write_sums(first, sums);
  if (!written && written.code() != Code::no_space) return written;
  return {};
}

// [from, to) reads as zeros from now on. Held.
Result<void> ChunkFile::cut(std::uint64_t from, std::uint64_t to) {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return fail_errno(errno, "stat " + path_);
  if (static_cast<std::uint64_t>(status.st_size) <= from) return {};
  TRY(mark());
  const std::uint64_t first = from / kBlockSize, last = to / kBlockSize;
  char head[kBlockSize], tail[kBlockSize];
  std::vector<std::uint32_t> sum(1);
  const bool part_first = from % kBlockSize != 0 || (first == last && to % kBlockSize != 0);
  const bool part_last = last != first && to % kBlockSize != 0;
  std::uint32_t head_sum = 0, tail_sum = 0;
  if (part_first) {
    TRY(read_sums(first, sum));
    TRY(load_block(first, head_sum = sum[0], head));
    std::memset(head + from % kBlockSize, 0, std::min(to, (first + 1) * kBlockSize) - from);
  }
  if (part_last) {
    TRY(read_sums(last, sum));
    TRY(load_block(last, tail_sum = sum[0], tail));
    std::memset(tail, 0, to % kBlockSize);
  }
  TRY(clear_sums(first, part_last || (first == last && part_first) ? last + 1 : last));
  if (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                  static_cast<off_t>(to - from)) != 0) {
    return fail_errno(errno, "punch " + path_);
  }
  if (head_sum != 0) {
    sum[0] = sum_of(Bytes(head, kBlockSize));
    TRY(write_sums(first, sum));
  }
  if (tail_sum != 0) {
    sum[0] = sum_of(Bytes(tail, kBlockSize));
    TRY(write_sums(last, sum));
  }
  return {};
}

Result<void> ChunkFile::keep(std::uint64_t size) {
  const Hold hold(*this);
  if (size == 0) {  // all of it, its checksums too
    marked_ = false;
    if (::ftruncate(fd_, 0) != 0) return fail_errno(errno, "truncate " + path_);
    return {};
  }
  return cut(size, kChunkSize);
}

Result<void> ChunkFile::punch(std::uint64_t within, std::uint64_t size) {
  if (size == 0) return {};
  const Hold hold(*this);
  return cut(within, within + size);
}

Result<void> ChunkFile::allocate(std::uint64_t within, std::uint64_t size) {
  if (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(within), static_cast<off_t>(size)) != 0)
    return fail_errno(errno, "allocate " + path_);
  return {};
}

Result<void> ChunkFile::sync() {
  if (::fdatasync(fd_) != 0) return fail_errno(errno, "sync " + path_);
  return {};
}

Result<std::uint64_t> ChunkFile::seek(std::uint64_t within, bool data) {
  const off_t found = ::lseek(fd_, static_cast<off_t>(within), data ? SEEK_DATA : SEEK_HOLE);
  if (found < 0 && errno != ENXIO) return fail_errno(errno, "seek in " + path_);
  if (found < 0) return data ? kChunkSize : within;  // past the file's end, which reads as a hole
  return std::min(kChunkSize, static_cast<std::uint64_t>(found));
}

Result<std::uint64_t> ChunkFile::blocks() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return fail_errno(errno, "stat " + path_);
  auto all = static_cast<std::uint64_t>(status.st_blocks);
  for (off_t at = static_cast<off_t>(kChunkSize); at < status.st_size;) {
    const off_t data = ::lseek(fd_, at, SEEK_DATA);
    if (data < 0) break;
    const off_t hole = ::lseek(fd_, data, SEEK_HOLE);
    if (hole < 0) break;
    const auto sums = (static_cast<std::uint64_t>(hole - data) + kBlockSize - 1) / kBlockSize * (kBlockSize / 512);
    all -= std::min(all, sums);
    at = hole;
  }
  return all;
}

Result<std::vector<std::uint32_t>> ChunkFile::sums(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint32_t> found(count);
  const Hold hold(*this);  // none in the middle of a write
  TRY(read_sums(first, found));
  return found;
}

Result<ChunkFile::Scrubbed> ChunkFile::scrub() {
  Scrubbed scrubbed;
  TRY_LET(pass, doubtful());
  std::uint64_t at = 0;
  while (at < kChunkSize) {
    TRY_LET(data, seek(at, true));
    if (data >= kChunkSize) break;
    TRY_LET(hole, seek(data, false));
    const std::uint64_t last = std::min(kBlocks, (hole + kBlockSize - 1) / kBlockSize);
    for (std::uint64_t block = data / kBlockSize; block < last; ++block) {
      char bytes[kBlockSize];
      std::vector<std::uint32_t> sum(1);
      TRY(read_sums(block, sum));
      TRY(read_bytes(block * kBlockSize, bytes, kBlockSize));
      // Allocated and never written: a file system may call that data once it has been read.
      if (sum[0] == 0 && std::all_of(bytes, bytes + kBlockSize, [](char each) { return each == 0; })) continue;
      ++scrubbed.blocks;
      if (sum[0] != 0 && sum_of(Bytes(bytes, kBlockSize)) == sum[0]) continue;
      const Hold hold(*this);  // looked at again, with nobody writing it
      TRY(read_sums(block, sum));
      TRY(read_bytes(block * kBlockSize, bytes, kBlockSize));
      const std::uint32_t found = sum_of(Bytes(bytes, kBlockSize));
      if (sum[0] == found) continue;
      if (sum[0] != 0 && !pass) {
        scrubbed.bad.push_back(static_cast<std::uint32_t>(block));
        continue;
      }
      sum[0] = found;
      TRY(write_sums(block, sum));
      ++scrubbed.without_sum;
    }
    at = std::max(hole, last * kBlockSize);
  }
  return scrubbed;
}

Result<bool> ChunkFile::heal(std::uint32_t block, Bytes good) {
  if (good.size() != kBlockSize || block >= kBlocks)
    return fail(Code::invalid, path_, ": block ", block, " of ", good.size(), " bytes cannot be put there");
  const Hold hold(*this);
  std::vector<std::uint32_t> sum(1);
  char bytes[kBlockSize];
  TRY(read_sums(block, sum));
  TRY(read_bytes(std::uint64_t{block} * kBlockSize, bytes, kBlockSize));
  if (sum[0] == 0 || sum_of(Bytes(bytes, kBlockSize)) == sum[0]) return false;
  TRY(clear_sums(block, block + 1));
  TRY(write_bytes(std::uint64_t{block} * kBlockSize, good));
  sum[0] = sum_of(good);
  TRY(write_sums(block, sum));
  return true;
}

}  // namespace fusionfs

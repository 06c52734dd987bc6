#include "novoht/core/cold.h"

#include <algorithm>

#include "novoht/core/format.h"

namespace novoht::core {
namespace {

constexpr char kColdMagic[] = "NoVoHTcv";
constexpr char kBefore[] = "cold-", kAfter[] = ".values";
constexpr std::size_t kDigits = 8;

}  // namespace

std::string ColdValues::name_of(std::uint32_t number) { return kBefore + hex(number, kDigits) + kAfter; }

bool ColdValues::is_name(base::Bytes name, std::uint32_t& number) {
  const auto found = between(name, kBefore, kDigits, kAfter);
  if (found) number = static_cast<std::uint32_t>(*found);
  return found.has_value();
}

ColdValues::ColdValues(base::FileSystem& files, std::string folder, std::uint64_t store, std::uint64_t file_size, std::uint32_t next,
                       bool views)
    : files_(files), folder_(std::move(folder)), store_(store), file_size_(file_size), next_(next), views_(views), closer_(files.threads()) {}

ColdValues::~ColdValues() {
  for (auto& [number, one] : all_) {
    one.file.reset();
    (void)files_.remove(one.path).has_value();
  }
}

std::uint32_t ColdValues::sum(std::uint32_t file, std::uint64_t offset, base::Bytes chunk) const {
  char place[24];
  base::store(place, store_);
  base::store(place + 8, std::uint64_t{file});
  base::store(place + 16, offset);
  return base::crc32c(chunk, base::crc32c(base::Bytes(place, sizeof place)));
}

base::Result<void> ColdValues::begin_file() {
  const std::uint32_t number = next_++;
  ColdFile one;
  one.path = folder_ + "/" + name_of(number);
  TRY_LET(file, files_.open(one.path, base::OpenMode::create_new));
  std::string header(kColdMagic, 8);
  base::Writer w(header);
  w.u32(kFormat);
  w.u32(0);
  w.u64(store_);
  w.u64(number);
  header.resize(kHeaderSize, '\0');
  if (auto wrote = file->write_at(0, header); !wrote) {
    file.reset();
    (void)files_.remove(one.path).has_value();
    return wrote;
  }
  constexpr std::uint64_t kBeyond = std::uint64_t{2} << 20;  // most last values end within
  if (views_) one.view = file->view(file_size_ + kBeyond);
  one.file = std::move(file);
  one.size = kHeaderSize;
  total_ += kHeaderSize;
  all_[number] = std::move(one);
  const std::uint32_t before = current_;
  current_ = number;
  if (before != 0) drop_if_dead(before);
  return {};
}

base::Result<ColdPlace> ColdValues::stage(base::Bytes value) {
  if (buffer_.empty() && (current_ == 0 || all_[current_].size >= file_size_)) TRY(begin_file());
  const ColdPlace place{all_[current_].size + buffer_.size(), current_};
  while (!value.empty()) {
    const base::Bytes chunk = value.substr(0, kChunk);
    value.remove_prefix(chunk.size());
    const std::uint32_t checksum = sum(current_, all_[current_].size + buffer_.size(), chunk);
    buffer_.append(chunk);
    base::Writer(buffer_).u32(checksum);
  }
  return place;
}

base::Result<void> ColdValues::write() {
  if (buffer_.empty()) return {};
  ColdFile& one = all_[current_];
  auto wrote = one.file->write_at(one.size, buffer_);
  if (wrote) {
    one.size += buffer_.size();
    one.live += buffer_.size();
    live_ += buffer_.size();
    total_ += buffer_.size();
  } else if (wrote.code() != base::Code::no_space) {
    // A file that has failed once is not trusted with more.
    const std::uint32_t failed = current_;
    current_ = 0;
    drop_if_dead(failed);
  }
  forget_staged();
  return wrote;
}

void ColdValues::forget_staged(std::size_t from) {
  if (from == 0 && buffer_.capacity() > (std::size_t{4} << 20)) buffer_ = {};
  buffer_.resize(from);
}

base::Result<std::size_t> ColdValues::read_at(const ColdFile& one, std::uint64_t offset, char* to, std::size_t size) {
  if (one.view != nullptr && one.view->read(offset, to, size)) return size;
  return one.file->read_at(offset, to, size);
}

base::Error ColdValues::cut_short(const ColdFile& one, std::uint64_t offset) {
  return base::fail(base::Code::corrupt, one.path, " offset ", offset, ": the file ends within a value");
}

// Whether the chunk of `size` bytes at `offset`, its checksum behind it, is good.
std::optional<base::Error> ColdValues::check(const ColdFile& one, ColdPlace place, std::uint64_t size, base::Bytes chunk,
                                             std::uint64_t offset) const {
  const auto expected = base::load<std::uint32_t>(chunk.data() + size);
  const std::uint32_t is = sum(place.file, offset, chunk.substr(0, size));
  if (is == expected) return {};
  return base::fail(base::Code::corrupt, one.path, " offset ", offset, ": ", size, " bytes of a value have checksum ", is,
                    ", expected ", expected);
}

base::Result<void> ColdValues::read(ColdPlace place, std::uint64_t size, std::uint64_t offset, std::uint64_t count,
                                    std::string& out) const {
  if (offset >= size || count == 0) return {};
  count = std::min(count, size - offset);
  const auto found = all_.find(place.file);
  CHECK(found != all_.end(), "a cold value in a file that is gone");
  const ColdFile& one = found->second;
  if (size <= kChunk && offset == 0) {
    // Whole and small, as most are: straight to where it is wanted.
    const std::size_t before = out.size();
    out.resize(before + size + 4);
    auto got = read_at(one, place.offset, out.data() + before, size + 4);
    std::optional<base::Error> error;
    if (!got) error = std::move(got).error();
    else if (*got < size + 4) error = cut_short(one, place.offset + *got);
    else error = check(one, place, size, base::Bytes(out).substr(before), place.offset);
    out.resize(error ? before : before + count);
    if (error) return *std::move(error);
    return {};
  }
  const std::uint64_t first = offset / kChunk, last = (offset + count - 1) / kChunk;
  const std::uint64_t begin = place.offset + first * (kChunk + 4);
  const std::uint64_t end = place.offset + stored(std::min((last + 1) * kChunk, size));
  scratch_.resize(end - begin);
  TRY_LET(got, read_at(one, begin, scratch_.data(), scratch_.size()));
  if (got < scratch_.size()) return cut_short(one, begin + got);
  for (std::uint64_t chunk = first; chunk <= last; chunk++) {
    const std::uint64_t at = (chunk - first) * (kChunk + 4), length = std::min<std::uint64_t>(kChunk, size - chunk * kChunk);
    if (auto error = check(one, place, length, base::Bytes(scratch_).substr(at), begin + at)) return *std::move(error);
  }
  out.reserve(out.size() + count);
  for (std::uint64_t chunk = first; chunk <= last; chunk++) {
    const std::uint64_t from = std::max(offset, chunk * kChunk), to = std::min(offset + count, (chunk + 1) * kChunk);
    out.append(scratch_, (chunk - first) * (kChunk + 4) + (from - chunk * kChunk), to - from);
  }
  if (scratch_.capacity() > (std::size_t{1} << 20)) scratch_ = {};
  return {};
}

void ColdValues::release(ColdPlace place, std::uint64_t size) {
  const auto found = all_.find(place.file);
  CHECK(found != all_.end(), "a cold value in a file that is gone");
  found->second.live -= stored(size);
  live_ -= stored(size);
  drop_if_dead(place.file);
}

void ColdValues::drop_if_dead(std::uint32_t number) {
  const auto found = all_.find(number);
  if (found->second.live != 0 || number == current_) return;
  total_ -= found->second.size;
  (void)files_.remove(found->second.path).has_value();
  closer_.run([file = std::move(found->second.file), view = std::shared_ptr(std::move(found->second.view))]() mutable {
    view.reset();
    file.reset();
  });
  all_.erase(found);
}

bool ColdValues::wants_emptying(std::uint32_t& file) const {
  if (total_ < 2 * live_ + 2 * file_size_) return false;
  std::uint64_t most = 0;
  for (const auto& [number, one] : all_) {
    if (number == current_ || one.size - one.live <= most) continue;
    most = one.size - one.live;
    file = number;
  }
  return most > 0;
}

}  // namespace novoht::core

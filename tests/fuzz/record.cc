// The parsers of single things in a log: segment headers, records, the changes in them, names, the STORE file. Input: a byte
// that says whether what follows is a segment as it is, or parts that become records with good checksums.
#include "tests/fuzz/fuzz.h"

namespace {

using namespace novoht;

constexpr std::uint64_t kSalt = 0x1234;

void parse_all(base::Bytes segment, bool sealed) {
  std::string why;
  for (std::uint64_t at = core::kSegmentHeaderSize; at < segment.size();) {
    const auto record = core::parse_record(segment, at, kSalt, at, &why);
    CHECK(record || !why.empty(), "refused without a reason");
    if (!record) {
      at += 8;
      continue;
    }
    CHECK(record->size >= core::kRecordHeaderSize && at + record->size <= segment.size(), "a record beyond its segment");
    const bool rewind = record->type == core::RecordType::rewind;
    core::ChangeReader in(record->changes, record->change_count, rewind);
    std::size_t count = 0;
    while (const auto change = in.next()) {
      CHECK(!change->key.empty() && change->key.size() <= kMaxKeySize, "a key that cannot be");
      count++;
      if (change->kind != core::kRestore) continue;
      base::Reader entry(change->value);
      (void)core::parse_checkpoint_entry(entry).has_value();
    }
    CHECK(!in.ok() || count == record->change_count, "another number of changes");
    at += record->size;
  }
  CHECK(!sealed || segment.size() >= core::kSegmentHeaderSize, "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  base::Bytes input = fuzz::bytes_of(data, size);
  core::SegmentHeader header;
  (void)core::parse_segment_header(input, "fuzz", header).has_value();
  (void)core::parse_store_file(input, "fuzz").has_value();
  (void)core::segment_number(input);
  (void)core::checkpoint_table(input);
  if (input.empty()) return 0;
  const bool sealed = input[0] % 2 == 1;
  input.remove_prefix(1);
  if (!sealed) {
    parse_all(input, false);
    return 0;
  }
  // Each part is a record's bytes from its size on; the header's and the whole's checksum are made good.
  std::string segment(core::kSegmentHeaderSize, '\0');
  base::Reader in(input);
  while (in.left() > 2) {
    std::string record(8, '\0');
    record += fuzz::next_part(in);
    record.resize(core::padded(std::max(record.size(), core::kRecordHeaderSize + 8)), '\0');
    core::seal_record(record.data(), record.size(), kSalt, segment.size());
    segment += record;
  }
  parse_all(segment, true);
  return 0;
}

// What comes over a native connection: frames, the operations, outcomes and control messages in them, the membership
// table. Input: bytes as they come; or, when the first is odd, a header and a body whose magic, version and lengths are
// made good, so that what is inside is reached.
#include "zht/wire/frame.h"

#include <google/protobuf/stubs/logging.h>

#include "tests/fuzz/fuzz.h"
#include "zht/client/table.h"
#include "zht/wire/zht.pb.h"

namespace {

using namespace zht;

void operations_of(const wire::OperationView& view, const wire::Frame& frame) {
  CHECK(view.value.size() <= frame.size && view.key.size() <= frame.size, "more than the frame holds");
  base::Bytes rest = view.operations;
  for (std::uint32_t i = 0; i < view.operation_count; i++) {
    const std::size_t left = rest.size();
    const auto one = wire::next_operation(rest);
    if (!one) return;
    CHECK(rest.size() < left, "an operation that takes no bytes");
  }
}

void everything_in(const wire::Frame& frame) {
  CHECK(frame.size >= wire::kHeaderSize, "shorter than its header");
  if (const auto operation = wire::decode_operation(frame)) operations_of(*operation, frame);
  if (const auto outcome = wire::decode_outcome(frame)) {
    // What was understood can be said again, and is understood as the same.
    std::string said, again;
    wire::encode_outcome(said, *outcome);
    base::Bytes in = said;
    const auto heard = wire::decode_outcome(in);
    CHECK(heard && in.empty(), "an outcome cannot be read back");
    wire::encode_outcome(again, *heard);
    CHECK(again == said, "an outcome changes on its way");
  }
  base::Bytes value = frame.value;
  (void)wire::decode_outcome(value).has_value();
  (void)client::parse_table(frame.value, true).has_value();
  static const bool quiet =
      (google::protobuf::SetLogHandler(nullptr), true);  // it complains of every byte that is not UTF-8
  (void)quiet;
  wire::Status status;
  (void)status.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  base::Bytes input = fuzz::bytes_of(data, size);
  if (input.empty()) return 0;
  const bool sealed = input[0] % 2 == 1;
  input.remove_prefix(1);
  std::string bytes(input);
  if (sealed) {
    bytes.resize(std::max(bytes.size(), wire::kHeaderSize), '\0');
    base::store<std::uint32_t>(bytes.data(), wire::kMagic);
    bytes[4] = static_cast<char>(wire::kProtocolVersion);
    // Key and extra as long as the input says, as far as there are bytes; the value has the rest (PROTOCOL.md,
    // "Frames").
    const std::size_t body = bytes.size() - wire::kHeaderSize;
    base::store<std::uint32_t>(bytes.data() + 12, static_cast<std::uint32_t>(body));
    const std::size_t key = std::min<std::size_t>(base::load<std::uint16_t>(bytes.data() + 60), body);
    const std::size_t extra = std::min<std::size_t>(base::load<std::uint16_t>(bytes.data() + 68), body - key);
    base::store<std::uint32_t>(bytes.data() + 60, static_cast<std::uint32_t>(key));
    base::store<std::uint32_t>(bytes.data() + 64, static_cast<std::uint32_t>(body - key - extra));
    base::store<std::uint32_t>(bytes.data() + 68, static_cast<std::uint32_t>(extra));
  }
  base::Bytes rest = bytes;
  while (!rest.empty()) {
    const auto frame = wire::next_frame(rest, wire::kMaxFrameSize);
    if (!frame || !*frame) break;
    CHECK((*frame)->size <= rest.size(), "a frame beyond its buffer");
    everything_in(**frame);
    rest.remove_prefix((*frame)->size);
  }
  return 0;
}

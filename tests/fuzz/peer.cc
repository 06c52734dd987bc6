// What nodes say to each other: a message between instances, or, when the first byte is odd, between managers. What was
// understood can be said again, and is understood as the same.
#include <google/protobuf/stubs/logging.h>

#include "tests/fuzz/fuzz.h"
#include "zht/core/replication/peer_frame.h"
#include "zht/server/manager_codec.h"

using namespace zht;

namespace {

constexpr std::uint32_t kPartitions = 1024;

wire::Frame frame_in(const std::string& bytes) {
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  CHECK(frame && *frame && (*frame)->size == bytes.size(), "what was encoded is one frame");
  return **frame;
}

void peer(const wire::Frame& frame) {
  const auto message = replication::decode_peer(frame, kPartitions);
  if (!message) return;
  wire::Gathered said, again;
  replication::encode_peer(said, *message, 1);
  const std::string bytes = said.whole();
  const auto heard = replication::decode_peer(frame_in(bytes), kPartitions);
  CHECK(heard, "a message between instances cannot be read back");
  replication::encode_peer(again, *heard, 1);
  CHECK(again.whole() == bytes, "a message between instances changes on its way");
}

void manager(const wire::Frame& frame) {
  static const bool quiet = (google::protobuf::SetLogHandler(nullptr), true);
  (void)quiet;
  const auto message = server::decode_manager(frame, kPartitions);
  if (!message) return;
  std::string said, again;
  server::encode_manager(said, *message, 1);
  const auto heard = server::decode_manager(frame_in(said), kPartitions);
  CHECK(heard, "a message between managers cannot be read back");
  server::encode_manager(again, *heard, 1);
  CHECK(again == said, "a message between managers changes on its way");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  base::Bytes input = fuzz::bytes_of(data, size);
  if (input.empty()) return 0;
  wire::Frame frame;
  frame.value = input.substr(1);
  if (input[0] % 2 == 0) peer(frame);
  else manager(frame);
  return 0;
}

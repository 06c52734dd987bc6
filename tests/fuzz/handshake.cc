// What comes before a connection is proven: whole or in pieces, the same is made of it; nobody is let in without a proof;
// every refusal is said in a frame. Input: a byte for the size of the pieces and which side it is, then the stream.
#include "tests/fuzz/fuzz.h"
#include "zht/security/handshake.h"
#include "zht/security/secret.h"
#include "zht/wire/frame.h"

namespace {
using namespace zht::security;

struct Ended {
  bool refused = false, let_in = false;
};

Ended run(Side side, base::Bytes stream, std::size_t piece) {
  static const Secret secret = *Secret::from_text("a secret that no fuzzer guesses", "fuzz");
  Handshake handshake(side, secret);
  std::string in, out;
  if (side == Side::asker) handshake.begin(out);
  Ended ended;
  while (!stream.empty() && !ended.refused && !ended.let_in) {
    in.append(stream.substr(0, piece));
    stream.remove_prefix(std::min(piece, stream.size()));
    std::size_t used = 0;
    const auto took = handshake.take(in, used, out);
    CHECK(used <= in.size(), "more used than there is");
    in.erase(0, used);
    CHECK(!took || in.size() < Handshake::kMostBytes, "more kept than a frame of it can be");
    ended.refused = !took;
    ended.let_in = took && *took;
    if (side == Side::answerer && !took) CHECK(!out.empty(), "refused without a word");
  }
  for (base::Bytes rest = out; !rest.empty();) {
    const auto frame = zht::wire::next_frame(rest, zht::wire::kMaxFrameSize);
    CHECK(frame && *frame, "what it says is no frame");
    rest.remove_prefix((*frame)->size);
  }
  return ended;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const base::Bytes stream = fuzz::bytes_of(data + 1, size - 1);
  const Side side = (data[0] & 1) != 0 ? Side::asker : Side::answerer;
  const Ended whole = run(side, stream, stream.size()), pieces = run(side, stream, 1 + data[0] / 2);
  CHECK(!whole.let_in && !pieces.let_in, "let in without a proof");
  CHECK(whole.refused == pieces.refused, "pieces make a difference");
  return 0;
}

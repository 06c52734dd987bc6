#include "zht/security/handshake.h"

#include "zht/wire/frame.h"

namespace zht::security {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;
using wire::ControlKind;
using wire::FrameType;

namespace {
constexpr std::size_t kNonceSize = 32;
constexpr char kVersion = 1;
}  // namespace

Handshake::Handshake(Side side, const Secret& secret, std::string binding)
    : side_(side), secret_(secret), binding_(std::move(binding)), nonce_(random_bytes(kNonceSize)) {}

std::string Handshake::proof(Side of) const {
  std::string message = of == Side::asker ? "zht handshake 1 asker\n" : "zht handshake 1 answerer\n";
  message += side_ == Side::asker ? nonce_ + other_nonce_ : other_nonce_ + nonce_;
  return secret_.mac(message + binding_);
}

void Handshake::begin(std::string& out) {
  wire::encode_control(out, FrameType::control_request, ControlKind::hello, 1, Code::ok, {}, kVersion + nonce_);
}

Result<bool> Handshake::take(Bytes in, std::size_t& used, std::string& out) {
  used = 0;
  while (true) {
    wire::Frame frame;
    const auto complete = wire::next_frame(in.substr(used), kMostBytes, frame);
    if (!complete) {
      if (side_ == Side::asker) return base::add_context("not a node of a cluster with a secret", complete.error());
      // Whatever it is, it was not asked: the first words tell whether someone merely lacks the secret.
      const auto any = wire::next_frame(in.substr(used), wire::kMaxFrameSize, frame);
      const Error error = any ? fail(Code::invalid, "this cluster has a secret, which has to be proven first: $ZHT_SECRET_FILE names the file")
                              : any.error();
      wire::end_reply(out, wire::begin_reply(out, {.status = static_cast<std::uint8_t>(error.code)}, error.message));
      return error;
    }
    if (!*complete) return false;
    used += frame.size;
    auto done = side_ == Side::asker
                    ? (frame.type == FrameType::control_reply && frame.status == 0
                           ? ask(frame.value, out)
                           : Result<bool>(fail(Code::invalid, "it does not prove that it knows the cluster's secret (",
                                               secret_.origin(), "): ", base::escape(frame.key, 200))))
                    : (frame.type == FrameType::control_request
                           ? answer(frame.op, frame.request, frame.value, out)
                           : Result<bool>(fail(Code::invalid, "this cluster has a secret, which has to be proven first: "
                                                              "$ZHT_SECRET_FILE names the file")));
    if (!done && side_ == Side::answerer)
      wire::end_reply(out, wire::begin_reply(out, {.status = static_cast<std::uint8_t>(done.code())}, done.error().message));
    if (!done || *done) return done;
  }
}

Result<bool> Handshake::ask(Bytes value, std::string& out) {
  if (step_++ > 0) return true;  // our proof was taken
  if (value.size() != kNonceSize + kProofSize) return fail(Code::unsupported, "a handshake of ", value.size(), " bytes");
  other_nonce_ = value.substr(0, kNonceSize);
  if (!same(value.substr(kNonceSize), proof(Side::answerer)))
    return fail(Code::invalid, "its cluster secret is not ours (", secret_.origin(), ")");
  wire::encode_control(out, FrameType::control_request, ControlKind::prove, 2, Code::ok, {}, proof(Side::asker));
  return false;
}

Result<bool> Handshake::answer(std::uint8_t kind, std::uint64_t request, Bytes value, std::string& out) {
  if (step_ == 0 && kind == static_cast<std::uint8_t>(ControlKind::hello)) {
    if (value.size() != 1 + kNonceSize || value[0] != kVersion)
      return fail(Code::unsupported, "a handshake of another version");
    other_nonce_ = value.substr(1);
    if (same(other_nonce_, nonce_)) return fail(Code::invalid, "that is our own nonce");
    step_ = 1;
    wire::encode_control(out, FrameType::control_reply, ControlKind::hello, request, Code::ok, {}, nonce_ + proof(Side::answerer));
    return false;
  }
  if (step_ == 1 && kind == static_cast<std::uint8_t>(ControlKind::prove)) {
    if (!same(value, proof(Side::asker))) return fail(Code::invalid, "that proves another secret than this cluster's");
    step_ = 2;
    wire::encode_control(out, FrameType::control_reply, ControlKind::prove, request, Code::ok, {}, {});
    return true;
  }
  return fail(Code::invalid, "this cluster has a secret, which has to be proven first: $ZHT_SECRET_FILE names the file");
}

}  // namespace zht::security

#include "zht/security/handshake.h"

#include "zht/security/secret.h"
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
}  // namespace

Handshake::Handshake(Side side, const Prover& prover, std::string binding)
    : side_(side), prover_(prover), binding_(std::move(binding)), nonce_(random_bytes(kNonceSize)) {}

std::string Handshake::statement(Side of) const {
  std::string text = "zht handshake " + std::to_string(checker().method()) + (of == Side::asker ? " asker\n" : " answerer\n");
  text += side_ == Side::asker ? nonce_ + other_nonce_ : other_nonce_ + nonce_;
  return text + binding_;
}

void Handshake::begin(std::string& out) {
  wire::encode_control(out, FrameType::control_request, ControlKind::hello, 1, Code::ok, {}, prover_.method() + nonce_ + prover_.key_name());
}

Result<bool> Handshake::take(Bytes in, std::size_t& used, std::string& out) {
  used = 0;
  while (true) {
    wire::Frame frame;
    const auto complete = wire::next_frame(in.substr(used), kMostBytes, frame);
    if (!complete) {
      if (side_ == Side::asker) return base::add_context("not a node of a cluster that asks who connects", complete.error());
      // Whatever it is, it was not asked: the first words tell whether someone merely lacks the secret.
      const auto any = wire::next_frame(in.substr(used), wire::kMaxFrameSize, frame);
      const Error error = any ? fail(Code::invalid, prover_.remedy()) : any.error();
      wire::end_reply(out, wire::begin_reply(out, {.status = static_cast<std::uint8_t>(error.code)}, error.message));
      return error;
    }
    if (!*complete) return false;
    used += frame.size;
    auto done = side_ == Side::asker
                    ? (frame.type == FrameType::control_reply && frame.status == 0
                           ? ask(frame.value, out)
                           : Result<bool>(fail(Code::invalid, "it does not prove that it belongs to our cluster (",
                                               prover_.origin(), "): ", base::escape(frame.key, 200))))
                    : (frame.type == FrameType::control_request
                           ? answer(frame.op, frame.request, frame.value, out)
                           : Result<bool>(fail(Code::invalid, prover_.remedy())));
    if (!done && side_ == Side::answerer)
      wire::end_reply(out, wire::begin_reply(out, {.status = static_cast<std::uint8_t>(done.code())}, done.error().message));
    if (!done || *done) return done;
  }
}

Result<bool> Handshake::ask(Bytes value, std::string& out) {
  if (step_++ > 0) return true;  // our proof was taken
  if (value.size() <= kNonceSize || value.size() > kNonceSize + kMostProof)
    return fail(Code::unsupported, "a handshake of ", value.size(), " bytes");
  other_nonce_ = value.substr(0, kNonceSize);
  if (const auto checked = prover_.check(statement(Side::answerer), value.substr(kNonceSize)); !checked)
    return base::add_context("its cluster is not ours (" + prover_.origin() + ")", checked.error());
  TRY_LET(proof, prover_.prove(statement(Side::asker)));
  wire::encode_control(out, FrameType::control_request, ControlKind::prove, 2, Code::ok, {}, proof);
  return false;
}

Result<bool> Handshake::answer(std::uint8_t kind, std::uint64_t request, Bytes value, std::string& out) {
  if (step_ == 0 && kind == static_cast<std::uint8_t>(ControlKind::hello)) {
    if (value.size() < 1 + kNonceSize || value[0] < kBySecret || value[0] > kByKey)
      return fail(Code::unsupported, "a handshake of another version");
    const Bytes name = value.substr(1 + kNonceSize);
    if (value[0] == kByKey) {
      TRY_LET(found, prover_.for_key(name));
      named_ = std::move(found);
    } else if (!name.empty()) {
      return fail(Code::unsupported, "a handshake of another version");
    }
    if (value[0] != checker().method()) return fail(Code::invalid, prover_.remedy());
    other_nonce_ = value.substr(1, kNonceSize);
    if (same(other_nonce_, nonce_)) return fail(Code::invalid, "that is our own nonce");
    TRY_LET(proof, checker().prove(statement(Side::answerer)));
    step_ = 1;
    wire::encode_control(out, FrameType::control_reply, ControlKind::hello, request, Code::ok, {}, nonce_ + proof);
    return false;
  }
  if (step_ == 1 && kind == static_cast<std::uint8_t>(ControlKind::prove)) {
    TRY(checker().check(statement(Side::asker), value));
    step_ = 2;
    wire::encode_control(out, FrameType::control_reply, ControlKind::prove, request, Code::ok, {}, {});
    return true;
  }
  return fail(Code::invalid, prover_.remedy());
}

}  // namespace zht::security

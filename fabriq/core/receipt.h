// A receipt: what a consumer shows to settle, return or extend the messages it was handed. It names one delivery, and a
// tag under the queue's secret makes it impossible to make one up or to alter one.
#pragma once

#include <cstdint>
#include <string>

#include "fabriq/core/records.h"

namespace fabriq {

struct Receipt {
  std::uint32_t partition = 0;
  std::uint32_t era = 0;
  std::uint64_t lease = 0;
  std::uint64_t first = 0;  // number of the first message; those of one receipt lie side by side
  std::uint32_t count = 1;
  std::uint64_t issued_ms = 0;  // queue time
  std::uint64_t tag = 0;

  std::uint64_t expected_tag(std::uint64_t queue_id, const Secret& secret) const;
  // "r" and hexadecimal digits, about 45 in all.
  std::string text() const;
  // invalid: this is not the text of a receipt. Whether it is a genuine one only the partition can say.
  static Result<Receipt> parse(Bytes text);

  void encode_to(std::string& out) const;  // the bytes that text() spells
  static Receipt decode(base::Reader& reader);
};

// SipHash-2-4 of `data`: short, fast, and unpredictable without the key.
std::uint64_t siphash(const Secret& key, Bytes data);

}  // namespace fabriq

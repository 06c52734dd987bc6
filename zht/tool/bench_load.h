// The load of `zht bench`: which operation comes next, on which key, and whether its answer is right.
//
// Keys are dealt out to chains, a chain being one operation after the other; a connection with 16 in flight runs 16. As
// only its own chain ever touches a key, what every answer must be is known beforehand, and every answer is compared.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "novoht/base/random.h"
#include "zht/client.h"
#include "zht/support/histogram.h"

namespace zht::tool {

struct Mix {
  // Parts of insert, lookup, remove, append, cswap and callback, by OpKind; any scale.
  std::array<double, 10> parts{};
  static Mix only(OpKind kind);
  static Result<Mix> parse(const std::string& text);  // "insert=50,lookup=50"; invalid names the bad part
  OpKind choose(base::Random& random) const;
};

struct LoadOptions {
  Mix mix;
  std::uint64_t connections = 1, depth = 1, keys = 100'000, key_size = 15, value_size = 132, append_size = 16;
  std::uint64_t count = 0;  // operations in all; 0: until `duration` is over
  Millis duration{3000};
  double zipf = 0;        // 0: every key equally often; 0.99: as web caches see it
  bool in_order = false;  // each key once, one after the other, until all were
  std::string letters;    // the alphabet, over and over: what values are made of
};

// What a key must hold.
struct Model {
  Version version = 0;
  std::uint32_t generation = 0;
  std::uint16_t appended = 0;
  bool present = false;
};

// Ranks 0..n-1, rank r with a probability that falls as 1/(r+1)^theta. Source: Gray et al. 1994, as YCSB has it.
class Zipf {
 public:
  Zipf(std::uint64_t n, double theta);
  std::uint64_t choose(base::Random& random) const;

 private:
  double n_, theta_, alpha_, zeta_, eta_;
};

struct LoadResult {
  std::array<support::Histogram, 10> by_kind;  // OpKind
  support::Histogram all;
  double seconds = 0;
  ClientCounts messages;
  std::string failure;  // a wrong answer or an error; empty: all were right
};

// Runs phases of load on the same keys: what one leaves behind is what the next expects.
class Load {
 public:
  Load(std::vector<std::unique_ptr<Client>> clients, const LoadOptions& options);
  ~Load();
  // Inserts every key once, without measuring.
  Result<void> fill(std::atomic<std::uint64_t>& done);
  LoadResult run(const Mix& mix, bool in_order, std::atomic<std::uint64_t>& done);

 private:
  class Chain;
  class Connection;
  ClientCounts counts() const;
  const LoadOptions options_;
  std::unique_ptr<Zipf> zipf_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

std::string bench_key(std::uint64_t number, std::uint64_t size);

}  // namespace zht::tool

// Load on a cluster while something happens to it, and what the clients saw of that: for cluster_bench.py.
//
//   cluster_load --cluster HOST:PORT,... --lanes 64 --every-ms 2            one client; each lane has a key and writes it every 2 ms,
//                                                                           or as soon as the last write is answered
//   cluster_load --cluster ... --blocking 16 --seconds 3                    as many threads, one blocking call after another
//   cluster_load --redis HOST:PORT --replicas 1 --blocking 16 --seconds 3   SET, and WAIT for so many replicas
//   cluster_load --cluster ... --fill 1000000                               so many keys of 1,000 bytes, then the end
//
// Ends early at the end of stdin. Then one JSON object on stdout: the operations acknowledged in each 10 ms since `start` (seconds
// of CLOCK_MONOTONIC), failures, percentiles, and every gap of a lane that was longer than gap_floor_ms, which is 3 ms more than it
// waits between its writes: [partition of its key, from, to]. All values acknowledged are read back at the end; a wrong one is exit
// status 1.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "zht/client.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double seconds_of(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr, "cluster_load: %s\n", what.c_str());
  std::exit(1);
}

struct Seen {
  Clock::time_point start = Clock::now();
  std::mutex mutex;
  std::vector<std::uint32_t> buckets;       // of 10 ms
  std::vector<float> latencies_us;
  std::uint64_t acknowledged = 0, failed = 0;
  std::string failure;
  Clock::duration gap_floor{};              // 0: gaps are not of interest
  nlohmann::json gaps = nlohmann::json::array();

  void acknowledge(std::size_t partition, Clock::time_point asked, Clock::time_point before, Clock::time_point now) {
    const std::lock_guard lock(mutex);
    const auto bucket = static_cast<std::size_t>((now - start) / 10ms);
    if (buckets.size() <= bucket) buckets.resize(bucket + 1);
    buckets[bucket]++;
    acknowledged++;
    latencies_us.push_back(std::chrono::duration<float, std::micro>(now - asked).count());
    if (gap_floor > Clock::duration::zero() && now - before > gap_floor) gaps.push_back({partition, seconds_of(before), seconds_of(now)});
  }
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex);
    failed++;
    failure = why;
  }
  void print() {
    const std::lock_guard lock(mutex);
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    std::sort(latencies_us.begin(), latencies_us.end());
    const auto at = [&](double part) {
      if (latencies_us.empty()) return 0.0;
      return static_cast<double>(latencies_us[static_cast<std::size_t>(part * static_cast<double>(latencies_us.size() - 1))]);
    };
    const nlohmann::json all{{"start", seconds_of(start)}, {"seconds", took}, {"acknowledged", acknowledged},
                             {"failed", failed}, {"failure", failure}, {"ops_per_s", static_cast<double>(acknowledged) / took},
                             {"p50_us", at(0.5)}, {"p99_us", at(0.99)}, {"p999_us", at(0.999)}, {"max_us", at(1)}, {"buckets", buckets},
                             {"gap_floor_ms", std::chrono::duration<double, std::milli>(gap_floor).count()}, {"gaps", gaps}};
    std::printf("%s\n", all.dump().c_str());
  }
};

std::atomic<bool> over{false};

// stdin's end, or the time's.
void wait_for_the_end(double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < until) {
    pollfd in{STDIN_FILENO, POLLIN, 0};
    if (::poll(&in, 1, 20) > 0) {
      char byte;
      if (::read(STDIN_FILENO, &byte, 1) <= 0) break;
    }
  }
  over = true;
}

std::unique_ptr<zht::Client> client_of(const std::string& cluster) {
  zht::ClientOptions options;
  options.cluster = cluster;
  options.timeout = 30s;
  auto client = zht::connect(std::move(options));
  if (!client) wrong(client.error().message);
  return *std::move(client);
}

std::string value_of(std::uint64_t number) {
  std::string value = std::to_string(number);
  value.resize(132, 'v');
  return value;
}

// Each lane has one insert of its key in flight.
struct Lanes {
  Lanes(const std::string& cluster, std::size_t count) : lanes(count), client(client_of(cluster)) {
    for (std::size_t i = 0; i < count; i++)
      lanes[i].partition = static_cast<std::size_t>(zht::partition_of(key_of(i), client->partition_count()));
  }
  static std::string key_of(std::size_t at) { return "lane-" + std::to_string(at); }
  struct Lane {
    std::size_t partition = 0;
    std::atomic<bool> idle{true};
    std::uint64_t number = 0, acknowledged = 0;
    Clock::time_point asked{}, before = Clock::now();
  };
  void ask(std::size_t at) {
    Lane& lane = lanes[at];
    lane.asked = Clock::now();
    lane.number++;
    client->submit(zht::Operation::insert(key_of(at), value_of(lane.number)), [this, at](zht::Outcome outcome) {
      Lane& mine = lanes[at];
      const auto now = Clock::now();
      if (outcome.ok()) {
        seen.acknowledge(mine.partition, mine.asked, mine.before, now);
        mine.acknowledged = mine.number;
        mine.before = now;
      } else {
        seen.fail(outcome.message);
      }
      mine.idle = true;
    });
  }
  void run(double seconds, double every_ms) {
    {
      const std::lock_guard lock(seen.mutex);
      seen.gap_floor = std::chrono::microseconds(static_cast<std::int64_t>(every_ms * 1000)) + 3ms;
    }
    std::thread asking([&] {
      for (auto next = Clock::now(); !over; std::this_thread::sleep_until(next)) {
        for (std::size_t i = 0; i < lanes.size(); i++)
          if (lanes[i].idle.exchange(false)) ask(i);
        next = std::max(Clock::now(), next + std::chrono::microseconds(static_cast<std::int64_t>(every_ms * 1000)));
      }
    });
    wait_for_the_end(seconds);
    asking.join();
    for (const Lane& lane : lanes)
      while (!lane.idle) std::this_thread::sleep_for(1ms);
    for (std::size_t i = 0; i < lanes.size(); i++) {
      const auto outcome = client->call(zht::Operation::lookup(key_of(i)));
      if (!outcome.ok() && lanes[i].acknowledged > 0) wrong("lane " + std::to_string(i) + " cannot be read: " + outcome.message);
      if (std::strtoull(outcome.value.c_str(), nullptr, 10) < lanes[i].acknowledged)
        wrong("lane " + std::to_string(i) + " holds " + outcome.value.substr(0, 12) + ", but " + std::to_string(lanes[i].acknowledged) +
              " was acknowledged");
    }
  }
  Seen seen;
  std::vector<Lane> lanes;
  std::unique_ptr<zht::Client> client;  // ends before the lanes its completions touch
};

class Redis {
 public:
  Redis(const std::string& address, int replicas) : replicas_(replicas), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) wrong("redis cannot be reached");
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Redis() { ::close(fd_); }
  void set(const std::string& key, const std::string& value) {
    const auto bulk = [](const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; };
    std::string out = "*3\r\n$3\r\nSET\r\n" + bulk(key) + bulk(value);
    if (replicas_ > 0) out += "*3\r\n$4\r\nWAIT\r\n$1\r\n" + std::to_string(replicas_) + "\r\n$1\r\n0\r\n";
    if (::send(fd_, out.data(), out.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(out.size())) wrong("redis: connection lost");
    expect("+OK\r\n");
    if (replicas_ > 0) expect(":");
  }

 private:
  void expect(const std::string& start) {
    std::size_t end;
    while ((end = in_.find("\r\n")) == std::string::npos) {
      char buffer[512];
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) wrong("redis: connection lost");
      in_.append(buffer, static_cast<std::size_t>(got));
    }
    const std::string line = in_.substr(0, end + 2);
    in_.erase(0, end + 2);
    if (!line.starts_with(start)) wrong("redis: " + line);
    if (start == ":" && std::stoi(line.substr(1)) < replicas_) wrong("redis: too few replicas have it");
  }
  int replicas_, fd_;
  std::string in_;
};

void blocking(Seen& seen, std::size_t threads, double seconds, const std::string& cluster, const std::string& redis,
              int replicas) {
  const auto client = redis.empty() ? client_of(cluster) : nullptr;
  std::vector<std::thread> all;
  for (std::size_t t = 0; t < threads; t++)
    all.emplace_back([&, t] {
      std::unique_ptr<Redis> own = redis.empty() ? nullptr : std::make_unique<Redis>(redis, replicas);
      auto before = Clock::now();
      for (std::uint64_t n = 0; !over; n++) {
        const std::string key = "key-" + std::to_string(t) + "-" + std::to_string(n % 10'000);
        const auto asked = Clock::now();
        if (own) {
          own->set(key, value_of(n));
        } else if (const auto outcome = client->call(zht::Operation::insert(key, value_of(n))); !outcome.ok()) {
          seen.fail(outcome.message);
          continue;
        }
        const auto now = Clock::now();
        seen.acknowledge(t, asked, before, now);
        before = now;
      }
    });
  wait_for_the_end(seconds);
  for (std::thread& thread : all) thread.join();
}

void fill(const std::string& cluster, std::uint64_t count) {
  const auto client = client_of(cluster);
  constexpr std::uint64_t together = 1000;
  for (std::uint64_t first = 0; first < count; first += together) {
    std::vector<zht::Operation> operations;
    for (std::uint64_t n = first; n < std::min(count, first + together); n++)
      operations.push_back(zht::Operation::insert("fill-" + std::to_string(n), std::string(1000, static_cast<char>('a' + n % 26))));
    for (const auto& outcome : client->call_all(std::move(operations)))
      if (!outcome.ok()) wrong("filling: " + outcome.message);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  const auto number = [&](const char* name, double otherwise) { return given.contains(name) ? std::stod(given[name]) : otherwise; };
  const double seconds = number("--seconds", 3600);
  if (given.contains("--fill")) {
    fill(given["--cluster"], static_cast<std::uint64_t>(number("--fill", 0)));
    return 0;
  }
  if (given.contains("--blocking")) {
    Seen seen;
    blocking(seen, static_cast<std::size_t>(number("--blocking", 1)), seconds, given["--cluster"], given["--redis"],
             static_cast<int>(number("--replicas", 0)));
    seen.print();
    return 0;
  }
  Lanes lanes(given["--cluster"], static_cast<std::size_t>(number("--lanes", 16)));
  lanes.run(seconds, number("--every-ms", 2));
  lanes.seen.print();
  return 0;
}

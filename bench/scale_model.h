// A store of N nodes as costs and queues: what one request takes at a client, on the wire and at an instance, as measured on
// this machine with the real code, played for up to a million nodes in virtual time. [ZHT] 3.6 asks the same of PeerSim.
//
// Each node has an instance and a client, a core each. A client sends a request to an instance of another node, drawn evenly,
// waits for the answer, and sends the next ([ZHT] 3.1's closed loop). An instance takes everything that lies there as
// one round (net::FrameServer), pays for the round, each connection and each request, and answers when the round is over. With a
// second synchronous copy the answer waits for one more message and its acknowledgement.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "novoht/base/random.h"

namespace bench {

struct Costs {             // microseconds
  double client = 0;       // a request and its answer, at the client
  double round = 0;        // of an instance: waiting, one write of the log
  double connection = 0;   // of an instance, for each connection in a round: receive and send
  double request = 0;      // of an instance, for each request
  double wake = 0;         // in a lone round trip, beyond all of that: the kernel's way from one process to the other
  double connect = 0;      // a new connection: what it adds to a request's latency ...
  double connect_server = 0;  // ... and of that, an instance's work
  std::size_t connections = 0;  // a client keeps; 0: it needs none
};

// Where nodes are: racks of 32, rows of 32 racks and so on, a switch a level up and down again.
struct Network {
  double card = 1.0;    // microseconds, at either end
  double hop = 0.6;     // of a switch and the cable behind it
  double one_way(std::uint64_t nodes) const {
    if (nodes < 2) return 0;
    double hops = 0, share = 1;  // of the pairs that need more than the levels so far
    const double all = static_cast<double>(nodes);
    for (double reach = 32, level = 1;; reach *= 32, level += 2) {
      const double inside = std::min(1.0, (std::min(reach, all) - 1) / (all - 1));
      hops += level * (inside - (1 - share));
      share = 1 - inside;
      if (reach >= all) break;
    }
    return 2 * card + hops * hop;
  }
};

struct Shares {  // of a request's latency, microseconds, on average
  double client = 0, wire = 0, wake = 0, service = 0, queue = 0, connect = 0, copies = 0;
  double sum() const { return client + wire + wake + service + queue + connect + copies; }
};

struct Played {
  double latency = 0, ops_per_s = 0;
  Shares shares;
};

class Model {
 public:
  Model(Costs costs, Network network, bool two_copies, std::uint64_t seed)
      : costs_(costs), network_(network), two_copies_(two_copies), random_(seed) {}

  // `requests` of each client; those of the first fifth are not counted.
  Played play(std::uint32_t nodes, std::uint32_t requests) {
    nodes_ = nodes;
    wire_ = network_.one_way(nodes);
    instances_.assign(nodes, {});
    clients_.assign(nodes, {});
    items_.clear();
    free_.clear();
    events_ = {};
    sum_ = {};
    counted_ = 0;
    const double miss = costs_.connections == 0 || nodes <= costs_.connections + 1
                            ? 0
                            : 1 - static_cast<double>(costs_.connections) / static_cast<double>(nodes - 1);
    const std::uint32_t warm = requests / 5;
    for (std::uint32_t c = 0; c < nodes; c++) send(c, random_.below(1000) * 1e-3 * (costs_.client + 1), miss);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.kind == Event::answer) {
        Client& client = clients_[event.where];
        client.done++;
        if (client.done > warm) {
          counted_++;
          latency_ += event.at + costs_.client / 2 - client.since;
        }
        if (client.done < requests) send(event.where, event.at + costs_.client / 2, miss);
        continue;
      }
      Instance& instance = instances_[event.where];
      if (event.kind == Event::arrive) {
        instance.waiting.push_back(event.item);
        items_[event.item].came = event.at;
        if (!instance.busy) begin(event.where, event.at);
        continue;
      }
      end(event.where, event.at);
    }
    Played played;
    const double count = static_cast<double>(std::max<std::uint64_t>(counted_, 1));
    played.latency = std::exchange(latency_, 0) / count;
    played.ops_per_s = nodes * 1e6 / played.latency;
    played.shares = sum_;
    for (double* part : {&played.shares.client, &played.shares.wire, &played.shares.wake, &played.shares.service, &played.shares.queue,
                         &played.shares.connect, &played.shares.copies})
      *part /= static_cast<double>(std::max<std::uint64_t>(all_, 1));
    all_ = 0;
    return played;
  }

 private:
  struct Event {
    enum Kind : std::uint8_t { arrive, round_over, answer } kind;
    std::uint32_t where, item;
    double at;
    bool operator<(const Event& other) const { return at > other.at; }  // the earliest on top
  };
  enum class Stage : std::uint8_t { request, copy, copied };
  struct Item {
    std::uint32_t client = 0, primary = 0;
    Stage stage = Stage::request;
    bool new_connection = false;
    double came = 0;
  };
  struct Instance {
    std::vector<std::uint32_t> waiting, running;
    bool busy = false;
    double began = 0;
  };
  struct Client {
    std::uint32_t done = 0;
    double since = 0;
  };

  void send(std::uint32_t client, double now, double miss) {
    clients_[client].since = now;
    std::uint32_t to = nodes_ == 1 ? 0 : static_cast<std::uint32_t>(random_.below(nodes_ - 1));
    if (nodes_ > 1 && to >= client) to++;
    const bool fresh = miss > 0 && static_cast<double>(random_.below(1 << 30)) < miss * (1 << 30);
    const std::uint32_t item = make({client, to, Stage::request, fresh, 0});
    const double connect = fresh ? std::max(0.0, costs_.connect - costs_.connect_server) + 2 * wire_ : 0;
    sum_.client += costs_.client;
    sum_.connect += connect;
    sum_.wire += 2 * wire_;
    sum_.wake += costs_.wake;
    all_++;
    events_.push({Event::arrive, to, item, now + costs_.client / 2 + connect + wire_ + costs_.wake / 2});
  }
  std::uint32_t make(Item item) {
    if (free_.empty()) {
      items_.push_back(item);
      return static_cast<std::uint32_t>(items_.size() - 1);
    }
    const std::uint32_t at = free_.back();
    free_.pop_back();
    items_[at] = item;
    return at;
  }
  void begin(std::uint32_t where, double now) {
    Instance& instance = instances_[where];
    instance.busy = true;
    instance.began = now;
    instance.running.swap(instance.waiting);
    double cost = costs_.round;
    for (const std::uint32_t index : instance.running)
      cost += costs_.connection + costs_.request + (items_[index].new_connection ? costs_.connect_server : 0);
    events_.push({Event::round_over, where, 0, now + cost});
  }
  void end(std::uint32_t where, double now) {
    Instance& instance = instances_[where];
    std::vector<std::uint32_t> done;
    done.swap(instance.running);
    for (const std::uint32_t index : done) {
      Item& item = items_[index];
      const double queued = instance.began - item.came, service = now - instance.began;
      (item.stage == Stage::request ? sum_.queue : sum_.copies) += queued;
      (item.stage == Stage::request ? sum_.service : sum_.copies) += service;
      item.new_connection = false;
      const bool to_copy = two_copies_ && item.stage == Stage::request && nodes_ > 1;
      if (to_copy || item.stage == Stage::copy) {
        const std::uint32_t to = to_copy ? (where + 1) % nodes_ : item.primary;
        item.stage = to_copy ? Stage::copy : Stage::copied;
        sum_.copies += wire_ + costs_.wake / 2;
        events_.push({Event::arrive, to, index, now + wire_ + costs_.wake / 2});
      } else {
        events_.push({Event::answer, item.client, 0, now + wire_ + costs_.wake / 2});
        free_.push_back(index);
      }
    }
    instance.busy = false;
    if (!instance.waiting.empty()) begin(where, now);
  }

  const Costs costs_;
  const Network network_;
  const bool two_copies_;
  base::Random random_;
  std::uint32_t nodes_ = 0;
  double wire_ = 0, latency_ = 0;
  std::vector<Instance> instances_;
  std::vector<Client> clients_;
  std::vector<Item> items_;
  std::vector<std::uint32_t> free_;
  std::priority_queue<Event> events_;
  Shares sum_;
  std::uint64_t counted_ = 0, all_ = 0;
};

}  // namespace bench

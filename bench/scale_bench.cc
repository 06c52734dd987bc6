// How well does a request scale from one node to a million? First what one costs here, with the real code: a node on one
// core, a client on the other. Then the model of scale_model.h plays 1 to 1M nodes with those costs. Beside them the points
// of [ZHT] figure 16. Efficiency is theirs: latency at two nodes over latency at N.
//
//   scale_bench --system zht --address DATA --listen=127.0.0.1:5470 --quick
//
// zht: TCP, as many connections kept as the client keeps (256); zht_udp: datagrams, which need none; zht_2_sync: zht with a second
// synchronous copy; paper: the published points, nothing is measured.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "bench/measure.h"
#include "bench/scale_model.h"
#include "zht/client/control.h"
#include "zht/client/datagram_channel.h"
#include "zht/client/session.h"
#include "zht/wire/zht.pb.h"

namespace {

using bench::require;
using namespace std::chrono_literals;

constexpr std::size_t kKeys = 10'000, kValueSize = 132;  // and keys of 15 bytes: [ZHT] 3.1
constexpr std::size_t kConnectionsKept = 256;            // ClientOptions::max_connections

base::Time soon() { return base::SystemClock().now() + 30s; }
std::string key_of(std::uint64_t index) {
  char text[16];
  std::snprintf(text, sizeof text, "key-%011llu", static_cast<unsigned long long>(index % kKeys));
  return text;
}

// Nanoseconds of processor time of all threads of `pid`.
double cpu_of(std::uint64_t pid) {
  double nanoseconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream file(task.path() / "schedstat");
    double one = 0;
    if (file >> one) nanoseconds += one;
  }
  require(nanoseconds > 0, "this kernel does not say what a thread has used (schedstat)");
  return nanoseconds;
}
double own_cpu() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto time = [](const timeval& t) { return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_usec) * 1e3; };
  return time(used.ru_utime) + time(used.ru_stime);
}

struct Server {
  zht::client::Address manager, instance;
  std::uint64_t pid = 0;
  std::shared_ptr<const zht::client::Table> table;
  double rounds() const {
    const auto status = zht::client::fetch_status(manager, 10s);
    require(status.has_value(), "the node does not tell its status");
    return static_cast<double>(status->instances(0).rounds());
  }
};

struct Load {  // microseconds a request
  double server = 0, client = 0, latency = 0, requests_per_round = 1;
};

void encode(std::string& out, const Server& server, std::uint64_t number, bool insert, std::uint64_t client, std::uint64_t sequence,
            std::uint64_t floor) {
  std::string key = key_of(number * 7919);
  const auto partition = zht::partition_of(key, server.table->partition_count);
  zht::Operation operation = insert ? zht::Operation::insert(std::move(key), std::string(kValueSize, 'v')) : zht::Operation::lookup(std::move(key));
  zht::wire::encode_request(out, operation, {.request = number + 1, .client = client, .sequence = insert ? sequence : 0, .floor = floor,
                                             .epoch = server.table->owner_of(partition).epoch, .partition = partition});
}

// `connections` with `depth` requests each, sent together and answered together, half of them changes.
Load load(const Server& server, std::size_t connections, std::size_t depth, double seconds) {
  struct Link {
    std::unique_ptr<zht::client::Channel> channel;
    std::uint64_t client = zht::client::new_client_id(), sequence = 0, number = 0;
  };
  std::vector<Link> links(connections);
  for (Link& link : links) {
    auto opened = zht::client::Channel::open(server.instance, soon());
    require(opened.has_value(), "cannot connect");
    link.channel = std::make_unique<zht::client::Channel>(*std::move(opened));
  }
  Load measured;
  std::uint64_t requests = 0;
  const auto turn = [&] {
    for (Link& link : links) {
      const std::uint64_t floor = link.sequence;
      for (std::size_t i = 0; i < depth; i++) {
        const bool insert = (link.number & 1) == 0;
        encode(link.channel->out(), server, link.number++, insert, link.client, insert ? ++link.sequence : 0, floor);
      }
      require(link.channel->send_only(soon()).has_value(), "cannot send");
    }
    for (Link& link : links)
      for (std::size_t i = 0; i < depth; i++) {
        const auto frame = link.channel->receive(soon());
        require(frame && (frame->status == 0 || frame->status == 1), "a request was not answered");
        require((frame->request & 1) == 1 || frame->status == 1 || frame->value.size() == kValueSize, "a wrong value");
      }
    requests += connections * depth;
  };
  for (bench::Stopwatch warm; warm.seconds() < seconds / 4;) turn();
  requests = 0;
  const double rounds = server.rounds(), cpu = cpu_of(server.pid), own = own_cpu();
  bench::Latencies turns;  // their median: other programs' turns are not ours
  for (bench::Stopwatch watch; watch.seconds() < seconds;) {
    const bench::Stopwatch one;
    turn();
    turns.add(one.nanoseconds());
  }
  const double count = static_cast<double>(requests);
  measured.server = (cpu_of(server.pid) - cpu) / 1e3 / count;
  measured.client = (own_cpu() - own) / 1e3 / count;
  measured.latency = turns.percentile_us(0.5);
  measured.requests_per_round = std::max(1.0, count / std::max(1.0, server.rounds() - rounds));
  return measured;
}

Load datagrams(const Server& server, double seconds) {
  auto channel = zht::client::DatagramChannel::open(server.instance);
  require(channel.has_value(), "no datagrams");
  const std::uint64_t client = zht::client::new_client_id();
  std::uint64_t number = 0, sequence = 0;
  const auto once = [&] {
    const std::uint64_t request = channel->next_request();
    const bool insert = (number & 1) == 0;
    encode(channel->out(), server, request - 1, insert, client, insert ? sequence + 1 : 0, sequence);
    if (insert) sequence++;
    const auto frame = channel->exchange(request, soon());
    require(frame && frame->status < 2, "a datagram was not answered");
    number++;
  };
  for (bench::Stopwatch warm; warm.seconds() < seconds / 4;) once();
  number = 0;
  const double cpu = cpu_of(server.pid), own = own_cpu();
  bench::Latencies turns;
  for (bench::Stopwatch watch; watch.seconds() < seconds;) {
    const bench::Stopwatch one;
    once();
    turns.add(one.nanoseconds());
  }
  const double count = static_cast<double>(number);
  return {(cpu_of(server.pid) - cpu) / 1e3 / count, (own_cpu() - own) / 1e3 / count, turns.percentile_us(0.5), 1};
}

// A connection for each request.
Load strangers(const Server& server, double seconds) {
  const std::uint64_t client = zht::client::new_client_id();
  std::uint64_t number = 0;
  const double cpu = cpu_of(server.pid), own = own_cpu();
  bench::Latencies turns;
  for (bench::Stopwatch watch; watch.seconds() < seconds; number++) {
    const bench::Stopwatch one;
    auto channel = zht::client::Channel::open(server.instance, soon());
    require(channel.has_value(), "cannot connect");
    encode(channel->out(), server, number, false, client, 0, 0);
    require(channel->exchange(number + 1, soon()).has_value(), "a request was not answered");
    turns.add(one.nanoseconds());
  }
  const double count = static_cast<double>(number);
  return {(cpu_of(server.pid) - cpu) / 1e3 / count, (own_cpu() - own) / 1e3 / count, turns.percentile_us(0.5), 1};
}

// What finding the owner takes with a table of a million instances: the one thing at a client that grows with N.
double table_look(std::uint32_t instances) {
  zht::client::Table table;
  table.partition_count = instances;
  table.owners.resize(instances);
  for (std::uint32_t i = 0; i < instances; i++) table.owners[i] = {(i * 2654435761u) % instances, i};
  base::Random random(3);
  std::uint64_t sum = 0;
  constexpr int count = 1'000'000;
  bench::Stopwatch watch;
  for (int i = 0; i < count; i++) sum += table.owner_of(zht::PartitionId{static_cast<std::uint32_t>(random.below(instances))}).instance;
  require(sum > 0 || instances == 1, "a table of nothing");
  return watch.seconds() * 1e6 / count;
}

std::string name_of(std::uint32_t nodes) {
  const char* unit = nodes >= 1u << 20 ? "M" : nodes >= 1024 ? "K" : "";
  return std::to_string(nodes >= 1u << 20 ? nodes >> 20 : nodes >= 1024 ? nodes >> 10 : nodes) + unit + (nodes == 1 ? " node" : " nodes");
}

// So that one node alone takes in the model what it takes here. Where both sides' work is more than the latency, they worked at
// the same time (one going to sleep while the other wakes): that part of the client's is not waited for.
void settle(bench::Costs& costs, const Load& lone) {
  costs.client = std::clamp(lone.latency - lone.server, 0.1, lone.client);
  costs.wake = std::max(0.0, lone.latency - costs.client - lone.server);
}

// Of zht: TCP, three loads, three unknowns. A lone request pays a round, a connection and a request; 64 on one connection share a
// round and a connection; one on each of 64 connections share rounds.
bench::Costs tcp_costs(const bench::Report& report, const Server& server, double seconds) {
  const Load lone = load(server, 1, 1, seconds), deep = load(server, 1, 64, seconds), wide = load(server, 64, 1, seconds);
  bench::Costs costs;
  // deep = request + (round + connection) / d; lone = round + connection + request; wide = request + connection + round / w.
  const double d = deep.requests_per_round, w = wide.requests_per_round;
  const double both = std::max(0.0, (lone.server - deep.server) / (1 - 1 / std::max(d, 1.01)));
  costs.request = std::max(0.01, lone.server - both);
  costs.round = std::clamp((lone.server - wide.server) / (1 - 1 / std::max(w, 1.01)), 0.0, both);
  costs.connection = both - costs.round;
  settle(costs, lone);
  const Load stranger = strangers(server, seconds);
  costs.connect = std::max(0.0, stranger.latency - lone.latency);
  costs.connect_server = std::clamp(stranger.server - lone.server, 0.0, costs.connect);
  costs.connections = kConnectionsKept;
  report.row("measured here", "latency_us", lone.latency);
  report.row("measured here", "connect_us", costs.connect);
  report.row("measured here", "round_us", costs.round);
  report.row("measured here", "connection_us", costs.connection);
  report.row("measured here", "request_us", costs.request);
  return costs;
}

bench::Costs udp_costs(const bench::Report& report, const Server& server, double seconds) {
  bench::Costs costs = tcp_costs(report, server, seconds);
  const Load lone = datagrams(server, seconds);
  // The socket is one for all clients; receiving and sending a datagram is what a connection costs otherwise.
  costs.connection = std::max(0.0, lone.server - costs.round - costs.request);
  settle(costs, lone);
  costs.connect = costs.connect_server = 0;
  costs.connections = 0;
  report.row("measured here", "datagram_us", lone.latency);
  return costs;
}

void paper(const bench::Report& report) {
  const struct {
    std::uint32_t nodes;
    double efficiency, latency_us, ops_per_s;
  } points[] = {{2, 1.0, 600, 2 / 600e-6}, {8192, 0.51, 1100, 8e6}, {1u << 20, 0.08, 7000, 150e6}};
  for (const auto& point : points) {
    report.row(name_of(point.nodes), "efficiency", point.efficiency);
    report.row(name_of(point.nodes), "latency_us", point.latency_us);
    report.row(name_of(point.nodes), "ops_per_s", point.ops_per_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = bench::parse("scale", {"zht", "zht_udp", "zht_2_sync", "paper"}, argc, argv);
  const bench::Report report(arguments);
  if (arguments.system == "paper") {
    paper(report);
    return 0;
  }
  Server server;
  const auto manager = zht::client::parse_address(arguments.option("listen", ""));
  require(manager.has_value(), "--listen=host:port of the node is needed");
  server.manager = *manager;
  const auto table = zht::client::fetch_table(server.manager, 10s);
  require(table.has_value(), "no membership table");
  server.table = *table;
  server.instance = server.table->instances.at(0).addresses.back();
  const auto status = zht::client::fetch_status(server.manager, 10s);
  require(status.has_value(), "no status");
  server.pid = status->pid();

  const double seconds = arguments.pick(0.05, 0.8, 3.0);
  const bench::Costs costs = arguments.system == "zht_udp" ? udp_costs(report, server, seconds) : tcp_costs(report, server, seconds);
  const std::uint32_t most = arguments.pick(512u, 1u << 20, 1u << 20);
  const double looked_small = table_look(2);
  bench::Network network;
  network.card = std::stod(arguments.option("card-us", "1.0"));
  network.hop = std::stod(arguments.option("hop-us", "0.6"));
  double ideal = 0;
  for (const std::uint32_t nodes : {1u, 2u, 8u, 32u, 128u, 512u, 2048u, 8192u, 32768u, 131072u, 1048576u}) {
    if (nodes > most) break;
    bench::Costs at = costs;
    at.client += std::max(0.0, table_look(nodes) - looked_small);
    // Few requests of many clients, or many of few.
    const std::uint32_t requests = std::clamp<std::uint32_t>(arguments.pick(20'000u, 1'000'000u, 10'000'000u) / nodes, 5, 20'000);
    const bench::Played played = bench::Model(at, network, arguments.system == "zht_2_sync", nodes).play(nodes, requests);
    if (nodes == 2) ideal = played.latency;
    const std::string row = name_of(nodes);
    if (nodes > 1) report.row(row, "efficiency", ideal / played.latency);
    report.row(row, "latency_us", played.latency);
    report.row(row, "ops_per_s", played.ops_per_s);
    const bench::Shares& shares = played.shares;
    for (const auto& [name, value] : {std::pair<const char*, double>{"client", shares.client}, {"wire", shares.wire}, {"wake", shares.wake},
                                      {"service", shares.service}, {"queue", shares.queue}, {"connect", shares.connect}, {"copies", shares.copies}})
      report.row(row, std::string("share_") + name, value / shares.sum());
  }
  report.row("1M nodes", "table_mb", static_cast<double>((std::uint64_t{1} << 20) * sizeof(zht::client::Owner)) / 1e6);
  return 0;
}

// The settings of a node: their names in files and environment, their bounds, and the file that explains them.
#include "zht/server/memory.h"
#include "zht/server/node.h"
#include "zht/support/config.h"
#include "zht/wire/frame.h"

namespace zht::server {

using base::Code;
using base::fail;
using base::Result;
using namespace std::chrono_literals;

void add_settings(support::Config& config, Settings& settings) {
  config.add("listen", settings.listen, "host:port of the manager; empty: unix sockets in the data folder alone", "ZHT_LISTEN");
  config.add("resp", settings.resp, "host:port for Redis clients (RESP); empty: none", "ZHT_RESP");
  config.add("http", settings.http, "host:port of /metrics (Prometheus) and /healthz; empty: none", "ZHT_HTTP");
  config.add("udp", settings.udp, "take small requests as datagrams too, where `listen` says");
  config.add("secret_file", settings.secret_file,
             "the cluster's secret; empty: `secret` in the data folder, if it is there; none: no secret; munge: munge vouches", "ZHT_SECRET_FILE");
  config.add("tls_certificate", settings.tls_certificate, "PEM; TLS takes all three files", "ZHT_TLS_CERTIFICATE");
  config.add("tls_key", settings.tls_key, "PEM", "ZHT_TLS_KEY");
  config.add("tls_ca", settings.tls_ca, "PEM: who may connect has a certificate of it", "ZHT_TLS_CA");
  const char* const kinds = "auto: as `listen`; mutual: callers show a certificate; server: they need none; off: no TLS";
  config.add_choice("resp_tls", settings.resp_tls, {"auto", "mutual", "server", "off"}, kinds, "ZHT_RESP_TLS");
  config.add_choice("http_tls", settings.http_tls, {"auto", "mutual", "server", "off"}, kinds, "ZHT_HTTP_TLS");
  config.add("insecure", settings.insecure, "listen although nothing authenticates callers: whoever reaches a port may do everything");
  config.add("instances", settings.instances, 0, 1024, "threads that serve; 0: what the data folder has, one per core when new");
  config.add("partitions", settings.partitions, 0, 1u << 20, "slices of the ring, fixed for good; 0: what the data folder has, 1024 when new");
  config.add("join", settings.join, "host:port of nodes of the cluster to belong to (a new data folder; later starts know)", "ZHT_JOIN");
  config.add("nodes", settings.nodes, "file with the cluster's nodes, host:port a line, or slurm:LIST; the same on all of them", "ZHT_NODES");
  config.add("advertise", settings.advertise, "host under which others reach this node; empty: that of `listen`", "ZHT_ADVERTISE");
  config.add("rack", settings.rack, "copies of a partition are kept on different ones", "ZHT_RACK");
  config.add("replicas", settings.replicas, 1, 7, "copies of each partition, as far as there are nodes");
  config.add("sync_replicas", settings.sync_replicas, 1, 7, "copies that have every acknowledged change");
  config.add_duration("failover", settings.failover, "silence after which a copy takes the place of another");
  config.add_choice("durability", settings.durability, {"none", "interval", "always"},
                    "interval: an acknowledged change survives any process crash, a loss of power up to sync_interval; always: both",
                    "ZHT_DURABILITY");
  config.add_duration("sync_interval", settings.sync_interval, "of durability interval");
  config.add_size("segment_size", settings.segment_size, "of a full log file");
  config.add_size("max_value_size", settings.max_value_size, "largest value of one request");
  config.add_size("memory_limit", settings.memory_limit, "of the node's data and what is under way; 0B: half of what there is", "ZHT_MEMORY_LIMIT");
  config.add("max_connections", settings.max_connections, 1, 1'000'000, "of each instance");
  config.add_duration("busy_poll", settings.busy_poll, "look for the next request this long before sleeping, while that pays; 0s: never");
}

Result<void> check_settings(const Settings& settings) {
  constexpr std::uint64_t most_value = wire::kMaxFrameSize - (std::uint64_t{16} << 20);
  if (settings.max_value_size == 0 || settings.max_value_size > most_value)
    return fail(Code::invalid, "max_value_size is ", settings.max_value_size, " bytes; 1B to ", most_value >> 20, "MiB are possible");
  if (settings.segment_size < 64 << 10 || settings.segment_size > std::uint64_t{4} << 30)
    return fail(Code::invalid, "segment_size is ", settings.segment_size, " bytes; 64KiB to 4GiB are possible");
  if (settings.memory_limit != 0 && settings.memory_limit < kLeastMemory)
    return fail(Code::invalid, "memory_limit is ", settings.memory_limit, " bytes; 0 or 64MiB and more are possible");
  if (settings.sync_interval < 1ms || settings.sync_interval > 1h)
    return fail(Code::invalid, "sync_interval is ", settings.sync_interval.count(), " ns; 1ms to 1h are possible");
  if (settings.sync_replicas > settings.replicas)
    return fail(Code::invalid, "sync_replicas is ", settings.sync_replicas, ", more than the ", settings.replicas, " replicas");
  if (settings.failover < 50ms || settings.failover > 1min)
    return fail(Code::invalid, "failover is ", settings.failover.count(), " ns; 50ms to 1m are possible");
  if (!settings.join.empty() && !settings.nodes.empty())
    return fail(Code::invalid, "join and nodes: a cluster either is made from a list or grows");
  if ((!settings.join.empty() || !settings.nodes.empty()) && settings.listen.empty())
    return fail(Code::invalid, "a node of a cluster needs an address for the others: set listen");
  if (settings.tls_certificate.empty() && settings.tls_key.empty() && settings.tls_ca.empty())
    for (const auto& [name, kind] : {std::pair{"resp_tls", settings.resp_tls}, std::pair{"http_tls", settings.http_tls}})
      if (kind == "mutual" || kind == "server")
        return fail(Code::invalid, name, " is ", kind, ", which takes the files tls_certificate, tls_key and tls_ca");
  if (settings.busy_poll < 0s || settings.busy_poll > 10ms)
    return fail(Code::invalid, "busy_poll is ", settings.busy_poll.count(), " ns; 0s to 10ms are possible");
  return {};
}

std::string_view example_config() {
  return R"(# Configuration of a node: zht serve --config FILE
#
# Every setting is here, at its default. What is left out keeps its default; an unknown name is an error that tells the
# line. A flag (--listen) counts more than the environment ($ZHT_LISTEN), and that more than this file;
# zht serve --print-config shows each value and where it comes from. Sizes: 512B 64KiB 16MiB 2GiB. Times: 50us 10ms 1s 2m.
# The data folder is chosen by --data or $ZHT_DATA, not here: it is where a node is found.

# --- who can connect ---

# Where the manager listens for TCP, host:port. Instance i takes port + 1 + i, or a free one where that is in use; clients
# learn all addresses from any one of them. Port 0: any. Empty: unix sockets in the data folder alone, for this user.
# $ZHT_LISTEN, --listen
listen = ""

# Where Redis clients connect, host:port. Empty: nowhere. $ZHT_RESP, --resp
resp = ""

# Where Prometheus finds /metrics, and a load balancer /healthz, host:port. Empty: nowhere; that is the default because every
# user of a machine may run a node, and a port is the machine's. $ZHT_HTTP, --http
http = ""

# Small requests are taken as UDP datagrams, too, at the instances' TCP addresses (PROTOCOL.md, "Datagrams"). A source
# address has to prove itself before anything is done or sent for it.
udp = true

# The cluster's secret, a file that its owner alone can read: whoever connects over TCP, node or client, proves that he knows
# it, or has a key made of it, and is shown that the node does (zht secret --help). Empty: `secret` in the data folder; it is made
# where there is none and the node listens, and this user's tools on this machine find it. "none": no secret, which takes
# `insecure`. "munge" (or "munge:SOCKET"): munged, which all machines of the cluster run with one key, vouches for who connects: the
# node's user, and root. Redis clients say what `zht secret show` (or `munge -s zht`) prints, by AUTH; at resp.sock in the data
# folder nothing. There are no datagrams.
# $ZHT_SECRET_FILE, --secret-file
secret_file = ""

# TLS, PEM files; all three or none. Both sides of a connection show a certificate of tls_ca, the cluster's own CA.
# $ZHT_TLS_CERTIFICATE $ZHT_TLS_KEY $ZHT_TLS_CA
tls_certificate = ""
tls_key = ""
tls_ca = ""

# TLS where Redis clients connect, and on /metrics. "auto": "mutual" where the files above are given, else "off". "mutual":
# callers show a certificate of tls_ca (redis-cli --tls --cacert CA --cert CERTIFICATE --key KEY). "server": they need none; what
# lets them in is the secret (AUTH, or the token of /metrics), and beyond loopback there must be one. $ZHT_RESP_TLS $ZHT_HTTP_TLS
# --resp-tls, --http-tls
resp_tls = "auto"
http_tls = "auto"

# Without a secret or TLS with certificates of both sides no port is opened, on loopback neither, unless this is true: then whoever
# reaches the port, every user of this machine at least, can read and change every key, run tasks as the node's user where MATRIX is
# used, end the node, and speak to the others as a node of the cluster does. --insecure
insecure = false

# --- the cluster ---

# Nodes (host:port of their managers, commas between) of the cluster this one is to belong to. Only a new data folder needs it:
# it is given a number, and later starts know where the others are. Empty: a cluster of one, which others may join.
# $ZHT_JOIN, --join
join = ""

# Instead: the file that lists all nodes of the cluster, host:port a line, optionally followed by instances=N and rack=NAME, the
# same file on all of them; or "slurm:node[01-10]", "slurm:" alone takes $SLURM_JOB_NODELIST. The first three keep the table
# of who holds what. $ZHT_NODES, --nodes
nodes = ""

# The host name or address under which other nodes and clients reach this one. Empty: that of `listen`. $ZHT_ADVERTISE, --advertise
advertise = ""

# Where this node stands. Copies of a partition are kept on different racks where there are any. $ZHT_RACK, --rack
rack = ""

# Copies of each partition, as far as there are nodes, and how many of them have a change before it is acknowledged. 1 to 7.
# --replicas, --sync-replicas
replicas = 3
sync_replicas = 2

# A node that says nothing for so long loses its partitions to the next copy. Longer where machines are very busy; all nodes of
# a cluster should have the same. 50ms to 1m. --failover
failover = "400ms"

# --- how the data is laid out; fixed when the data folder is made ---

# Threads that serve, each with its own share of the keys. 0: what the data folder has; new: one per core, 8 at most.
# --instances
instances = 0

# Slices of the ring of hashes, the units that can be moved. 0: what the data folder has; new: 1024. --partitions
partitions = 0

# --- what survives ---

# "interval": an acknowledged change survives the end of the process at any moment, and a loss of power once sync_interval
# has passed. "always": both, at once; every round of requests waits for the disk. "none": as interval, and the operating
# system decides when to write. $ZHT_DURABILITY, --durability
durability = "interval"

# How often durability "interval" syncs. 1ms to 1h. --sync-interval
sync_interval = "1s"

# Size of a full log file. Old ones go when what they hold is in checkpoints; so smaller ones give space back sooner.
# 64KiB to 4GiB.
segment_size = "64MiB"

# --- bounds ---

# Largest value one request may bring. By appends a value may grow to 63 MiB, what one answer can hold. 1B to 48MiB. --max-value-size
max_value_size = "16MiB"

# Memory that the node's data and what is under way may take, shared by its instances; "0B": half of what the cgroup or the machine
# gives. Values that were not used for long then lie on disk alone; when keys and index leave no room even so, changes that add
# something are refused, no_space. 64MiB and more. $ZHT_MEMORY_LIMIT, --memory-limit
memory_limit = "0B"

# Connections of each instance, of the manager and of the Redis port; one more is told so and closed. An idle connection
# takes about 1 KiB. The limit on open files (ulimit -n) is raised to what is allowed.
max_connections = 20000

# --- speed ---

# A thread that has been getting one request soon after the other looks for the next this long before it sleeps: being
# woken takes longer than answering. It stops where that finds nothing or where others want the processor. "0s": always
# sleep. At most 10ms.
busy_poll = "50us"
)";
}

}  // namespace zht::server

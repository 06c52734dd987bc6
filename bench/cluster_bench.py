#!/usr/bin/env python3
"""How long does a cluster not answer when a node dies, stops or moves its data, and what do copies cost? Starts real nodes on loopback,
loads them (cluster_load), and does it to them. Redis, with replicas and WAIT, for what copies cost. Called by bench/run cluster.

A gap is the longest time a lane (a key with one insert in flight) waited from one acknowledgement to the next around the event: what
a client that retries sees. No operation may fail; every acknowledged value is read back."""
import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import peers  # noqa: E402
import report  # noqa: E402

LANES = 48   # each writes every 2 ms: far less than what would fill the machine, so that a gap is the cluster's and not a queue's


def ports(count):
    """`count` runs of four free ports, far enough from each other."""
    found = []
    while len(found) < count:
        port = peers.free_port()
        if port < 65000 and all(abs(port - other) > 4 for other in found):
            found.append(port)
    return found


class Nodes:
    """Nodes of one cluster, processes of this one."""

    def __init__(self, arguments, folder, count, spare=0, settings=""):
        self.arguments, self.folder = arguments, folder
        self.addresses = [f"127.0.0.1:{port}" for port in ports(count + spare)]
        self.count, self.processes = count, {}
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("ZHT_")}
        self.environment["ZHT_SECRET_FILE"] = "none"
        self.config = os.path.join(folder, "zht.toml")
        with open(self.config, "w", encoding="ascii") as file:
            file.write(settings)
        self.list = os.path.join(folder, "nodes")
        with open(self.list, "w", encoding="ascii") as file:
            file.writelines(f"{address} instances=1\n" for address in self.addresses[:count])

    def data(self, n):
        return os.path.join(self.folder, f"node-{n}")

    def zht(self, *argv, timeout=60):
        return subprocess.run([os.path.join(self.arguments.binaries, "zht"), *argv], env=self.environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=timeout, check=False)

    def start(self, n, *more):
        with open(os.path.join(self.folder, f"node-{n}.log"), "ab") as log:
            self.processes[n] = subprocess.Popen(
                [os.path.join(self.arguments.binaries, "zht"), "serve", "--data", self.data(n), "--config", self.config, "--listen",
                 self.addresses[n], "--insecure", "--instances", "1", *more], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def serves(self, n):
        return self.processes[n].poll() is None and self.zht("status", "--data", self.data(n), "--timeout", "2s").returncode == 0

    def __enter__(self):
        return self

    def found(self, *more, partitions=128):
        """All that the list names; returns when partitions are where they should be."""
        for n in range(self.count):
            self.start(n, *(["--nodes", self.list] if self.count > 1 else []), "--partitions", str(partitions), *more)
        for n in range(self.count):
            peers.wait_for(lambda n=n: self.serves(n), "zht serve", self.processes[n])
        self.wait_even()

    def primaries(self, n=0):
        done = self.zht("members", "--data", self.data(n), "--json", "--timeout", "5s")
        if done.returncode != 0:
            return []
        return [one["partitions"] for one in json.loads(done.stdout)["instances"]]

    def wait_even(self, count=None):
        """Primaries are spread over all nodes, and nothing has changed for a second."""
        def even():
            before = self.primaries()
            if len(before) < (count or self.count) or (max(before) - min(before)) > max(2, 0.1 * max(before)):
                return False
            time.sleep(1)
            return self.primaries() == before
        peers.wait_for(even, "an even cluster", deadline=120)

    def primary_of_most(self):
        """The node that has most partitions, by number."""
        counts = self.primaries()
        return counts.index(max(counts))

    def all(self):
        return ",".join(self.addresses)

    def __exit__(self, *_):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self.processes.values():
            process.wait()


class Load:
    def __init__(self, arguments, *argv):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ZHT_")}
        environment["ZHT_SECRET_FILE"] = "none"
        self.process = subprocess.Popen([os.path.join(arguments.programs, "cluster_load"), *argv], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self):
        """To the end of its time."""
        self.process.wait(120)
        return self.end()

    def end(self):
        out, err = self.process.communicate(timeout=120)
        if self.process.returncode != 0:
            raise RuntimeError(f"cluster_load: {err.strip()[-500:]}")
        return json.loads(out)


def gap_ms(seen, since, until, of=lambda partition: True):
    """The longest that a lane waited, of the waits that began between the two. A lane that waits when something happens began to just
    before. Where none was longer than what the load tells, that: the gap is at most so long."""
    return max([1000 * (to - start) for partition, start, to in seen["gaps"] if since - 0.05 < start < until - 0.05 and of(partition)],
               default=seen["gap_floor_ms"])


def row(name, metric, value, seen=None):
    """`seen`: of the load whose gap it is; one of its floor is `at most` that."""
    floor = {"at_most": True} if seen is not None and value <= seen["gap_floor_ms"] else {}
    print(json.dumps({"row": name, "metric": metric, "value": value, **floor}), flush=True)


def latencies(name, seen):
    row(name, "ops_per_s", seen["ops_per_s"])
    for metric in ("p50_us", "p99_us", "p999_us", "max_us"):
        row(name, metric, seen[metric])


def timeline(arguments, name, seen, marks, title):
    """Acknowledged operations over time as a plot beside other results."""
    folder = os.path.join(report.TREE, "build", "bench")
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, f"cluster-{name}.svg")
    width = 5  # buckets of 10 ms in a point
    buckets = seen["buckets"]
    line = [(i * 0.01, 100 / width * sum(buckets[i:i + width])) for i in range(0, len(buckets) - width, width)]
    with open(target, "w", encoding="utf-8") as file:
        file.write(report.curves({"acknowledged": line}, title, "seconds", "inserts/s", marks=[(at - seen["start"], text) for at, text in marks]))
    print(f"plot: {os.path.relpath(target)}", file=sys.stderr)


def failover(arguments, how):
    calm, after = (0.5, 2) if arguments.tiny else (1.5, 3)
    with tempfile.TemporaryDirectory(prefix="zht-bench-", ignore_cleanup_errors=True) as folder, Nodes(arguments, folder, 3) as nodes:
        nodes.found()
        victim = nodes.primary_of_most()
        load = Load(arguments, "--cluster", nodes.all(), "--lanes", str(LANES), "--every-ms", "2")
        time.sleep(calm)
        struck = time.monotonic()
        nodes.processes[victim].send_signal(signal.SIGKILL if how == "kill -9" else signal.SIGSTOP)
        time.sleep(after)
        back = time.monotonic()
        if how == "kill -9":
            nodes.processes[victim].wait()
            nodes.start(victim)
            peers.wait_for(lambda: nodes.serves(victim), "the node", nodes.processes[victim])
        else:
            nodes.processes[victim].send_signal(signal.SIGCONT)
        time.sleep(after)
        seen = load.end()
        row(f"failover {how}", "gap_ms", gap_ms(seen, struck, back), seen)
        row(f"return after {how}", "gap_ms", gap_ms(seen, back, back + 60), seen)
        row(f"failover {how}", "failed", seen["failed"])
        timeline(arguments, "failover-" + how.split()[0].lower(), seen, [(struck, how), (back, "back")], f"cluster: 3 nodes, {how} of one")


def grow(arguments):
    keys = 5_000 if arguments.tiny else 50_000 if arguments.quick else 1_000_000
    last = 2 if arguments.tiny else 4
    with tempfile.TemporaryDirectory(prefix="zht-bench-", ignore_cleanup_errors=True) as folder, Nodes(arguments, folder, 1, spare=3) as nodes:
        nodes.found()
        filled = Load(arguments, "--cluster", nodes.addresses[0], "--fill", str(keys))
        filled.process.communicate(timeout=600)
        if filled.process.returncode != 0:
            raise RuntimeError("cluster_load --fill failed")
        load = Load(arguments, "--cluster", nodes.addresses[0], "--lanes", str(LANES), "--every-ms", "2")
        time.sleep(1.5)
        marks, started = [], time.monotonic()
        for n in range(1, last):
            marks.append((time.monotonic(), f"node {n + 1} joins"))
            nodes.start(n, "--join", nodes.addresses[0])
            peers.wait_for(lambda n=n: nodes.serves(n), "zht serve", nodes.processes[n])
            nodes.wait_even(n + 1)
        settled = time.monotonic()
        marks.append((settled, "even"))
        time.sleep(1.5)
        seen = load.end()
        counts = nodes.primaries()
        row(f"grow 1 to {last}", "failed", seen["failed"])
        row(f"grow 1 to {last}", "max_over_mean", max(counts) * len(counts) / sum(counts))
        row(f"grow 1 to {last}", "seconds", settled - started)
        row("migration", "pause_ms", gap_ms(seen, started, settled), seen)
        rate = lambda since, until: sum(seen["buckets"][int((since - seen["start"]) * 100):int((until - seen["start"]) * 100)]) / (until - since)  # noqa: E731
        row(f"grow 1 to {last}", "ops_per_s before", rate(started - 1.2, started))
        row(f"grow 1 to {last}", "ops_per_s after", rate(settled, settled + 1.2))
        timeline(arguments, "grow", seen, marks, f"cluster: from 1 node to {last} under load, {keys} keys of 1 kB")


def migrate(arguments):
    """One partition at a time, with its data, to a node that has no copy of it, and on."""
    keys, count = (2_000, 2) if arguments.tiny else (20_000, 8) if arguments.quick else (200_000, 24)
    with tempfile.TemporaryDirectory(prefix="zht-bench-", ignore_cleanup_errors=True) as folder, Nodes(
            arguments, folder, 3, settings="replicas = 2\n") as nodes:
        nodes.found()
        filled = Load(arguments, "--cluster", nodes.all(), "--fill", str(keys))
        filled.process.communicate(timeout=600)
        if filled.process.returncode != 0:
            raise RuntimeError("cluster_load --fill failed")
        instances = [one["id"] for one in json.loads(nodes.zht("members", "--data", nodes.data(0), "--json").stdout)["instances"]]
        load = Load(arguments, "--cluster", nodes.all(), "--lanes", str(4 * LANES), "--every-ms", "8")  # some on every partition
        time.sleep(1)
        windows = []
        for partition in range(0, 128, 128 // count):
            for to in instances:  # of its three homes one is new
                began = time.monotonic()
                done = nodes.zht("migrate", str(partition), "--to", str(to), "--data", nodes.data(0))
                if done.returncode != 0:
                    raise RuntimeError(f"migrate: {done.stderr}")
                windows.append((partition, began, time.monotonic()))
        time.sleep(0.5)
        seen = load.end()
        # What every key may wait on a machine with this much to do is no pause of the one that is moved: it is told beside it.
        pauses = sorted(gap_ms(seen, since, until + 0.05, lambda one, moved=moved: one == moved) for moved, since, until in windows)
        others = [gap_ms(seen, since, until + 0.05, lambda one, moved=moved: one != moved) for moved, since, until in windows]
        row("migration of one partition", "pause_ms", pauses[-1], seen)
        row("migration of one partition", "pause_p50_ms", pauses[len(pauses) // 2], seen)
        row("migration of one partition", "others_pause_ms", max(others), seen)
        row("migration of one partition", "seconds", sum(until - since for _, since, until in windows) / len(windows))
        row("migration of one partition", "failed", seen["failed"])


def restart(arguments):
    keys = 5_000 if arguments.tiny else 300_000 if arguments.quick else 5_000_000
    with tempfile.TemporaryDirectory(prefix="zht-bench-", ignore_cleanup_errors=True) as folder, Nodes(arguments, folder, 1) as nodes:
        nodes.found()
        filled = Load(arguments, "--cluster", nodes.addresses[0], "--fill", str(keys))
        filled.process.communicate(timeout=3600)
        nodes.processes[0].kill()
        nodes.processes[0].wait()
        began = time.monotonic()
        nodes.start(0)
        while nodes.zht("lookup", f"fill-{keys - 1}", "--cluster", nodes.addresses[0], "--timeout", "60s").returncode != 0:
            if nodes.processes[0].poll() is not None:
                raise RuntimeError("the node does not start again")
        row("restart after kill -9", "seconds", time.monotonic() - began)
        row("restart after kill -9", "gb", keys * 1.02e-6)


def copies(arguments):
    seconds, threads = ("0.3", "4") if arguments.tiny else ("2", "16") if arguments.quick else ("8", "16")
    for name, count, replicas, sync in (("1 copy", 1, 1, 1), ("2 copies sync", 2, 2, 2), ("3 copies, 2 sync", 3, 3, 2), ("3 copies sync", 3, 3, 3)):
        with tempfile.TemporaryDirectory(prefix="zht-bench-", ignore_cleanup_errors=True) as folder, Nodes(
                arguments, folder, count, settings=f"replicas = {replicas}\nsync_replicas = {sync}\n") as nodes:
            nodes.found()
            for label, lanes in ((f"x{threads}", threads), ("x1", "1")):
                seen = Load(arguments, "--cluster", nodes.all(), "--blocking", lanes, "--seconds", seconds).run()
                if seen["failed"]:
                    raise RuntimeError(f"{name}: {seen['failed']} failed: {seen['failure']}")
                latencies(f"insert {name} {label}", seen)


def busy_ns(pids):
    """The processor time they have taken, in nanoseconds: a node that sleeps takes less in ten seconds than /proc/PID/stat counts in."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total


def packets():
    """On loopback, of the whole machine: where nothing else runs they are the cluster's."""
    with open("/proc/net/dev", encoding="ascii") as file:
        return next(int(line.split()[2]) for line in file if line.strip().startswith("lo:"))


def idle(arguments):
    """What a node takes that nobody asks anything, and what nodes say to each other then."""
    seconds, settle = (0.5, 0.5) if arguments.tiny else (10, 8)
    for count in (1, 3) if arguments.tiny or arguments.quick else (1, 3, 24):
        with tempfile.TemporaryDirectory(prefix="zht-bench-", ignore_cleanup_errors=True) as folder, Nodes(arguments, folder, count) as nodes:
            nodes.found(partitions=1024)
            time.sleep(settle)
            pids = [process.pid for process in nodes.processes.values()]
            busy, sent, began = busy_ns(pids), packets(), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            row(f"idle, {count} nodes" if count > 1 else "idle, alone", "percent_of_core_a_node", (busy_ns(pids) - busy) / took / 1e7 / count)
            row(f"idle, {count} nodes" if count > 1 else "idle, alone", "packets_per_s", (packets() - sent) / took)


def redis_copies(arguments):
    seconds, threads = ("0.3", "4") if arguments.tiny else ("2", "16") if arguments.quick else ("8", "16")
    program = peers.program("redis-server", "redis-server", not arguments.tiny and not arguments.no_fetch)
    for name, replicas, wait in (("1 copy", 0, 0), ("2 copies sync", 1, 1), ("3 copies, 2 sync", 2, 1), ("3 copies sync", 2, 2)):
        with contextlib.ExitStack() as stack:
            first = peers.free_port()
            base = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no"]
            stack.enter_context(peers.server([program, "--port", str(first), "--dir", stack.enter_context(peers.folder()), *base,
                                              "--repl-diskless-sync-delay", "0"], first))
            for _ in range(replicas):
                port = peers.free_port()
                stack.enter_context(peers.server([program, "--port", str(port), "--dir", stack.enter_context(peers.folder()), *base,
                                                  "--replicaof", "127.0.0.1", str(first)], port))
            if replicas:
                probe = [os.path.join(arguments.programs, "cluster_load"), "--redis", f"127.0.0.1:{first}", "--replicas", str(replicas),
                         "--blocking", "1", "--seconds", "0.05"]
                subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
            for label, lanes in ((f"x{threads}", threads), ("x1", "1")):
                seen = Load(arguments, "--redis", f"127.0.0.1:{first}", "--replicas", str(wait), "--blocking", lanes, "--seconds", seconds).run()
                latencies(f"insert {name} {label}", seen)


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--systems", "--tiny", "--quick", "--no-fetch"):
        parser.add_argument(flag, action="store_true")
    for option in ("--system", "--binaries", "--programs", "--only", "--durability"):
        parser.add_argument(option)
    arguments = parser.parse_args()
    if arguments.systems:
        print("zht redis")
        return 0
    if arguments.system == "redis":
        redis_copies(arguments)
        return 0
    parts = {"kill": lambda: failover(arguments, "kill -9"), "stop": lambda: failover(arguments, "SIGSTOP"), "migrate": lambda: migrate(arguments), "grow": lambda: grow(arguments),
             "restart": lambda: restart(arguments), "copies": lambda: copies(arguments), "idle": lambda: idle(arguments)}
    for name, part in parts.items():
        if not arguments.only or name in arguments.only.split(","):
            part()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except peers.Unavailable as error:
        print(error, file=sys.stderr)
        sys.exit(77)

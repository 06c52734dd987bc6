#!/usr/bin/env python3
"""Three nodes at their limit of memory: more values than fit, overwritten, with a member stopped, values of 16 MiB, all removed. What each
node's process takes is drawn over time (memory.svg, memory.json in build/bench), stays within a bound, and is given back.

And a node alone: keys that leave no room are refused, no_space, before anything ends the process; started again with as little memory as
before it comes back, or, killed while it starts, says so the next time."""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import harness
from harness import Sandbox, rounds, wait_for

sys.path.insert(0, os.path.join(harness.TREE, "bench"))
import report  # noqa: E402

MIB = 1 << 20
LIMIT = 96 * MIB
# The program, its threads and connections; values of 16 MiB under way, each once as it came, once in the log and once for each of two
# members, of which some fall behind on a busy machine; chunks that lie idle (64 MiB of one store).
BESIDE = 272 * MIB


def ports(count):
    holders = [socket.socket() for _ in range(count)]
    for one in holders:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in holders]
    for one in holders:
        one.close()
    return found


def taken(pid):
    """Bytes of its own that a process has in memory; what it sees of the system's file cache is not among them."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) * 1024


class Watch(threading.Thread):
    """Looks at the processes five times a second, under the name of what goes on."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.series, self.marks, self.most = pids, {f"node {i + 1}": [] for i in range(len(pids))}, [], {}
        self.began, self.phase, self.ended = time.monotonic(), "", threading.Event()

    def enter(self, phase):
        self.phase = phase
        self.marks.append((time.monotonic() - self.began, phase))

    def run(self):
        while not self.ended.wait(0.2):
            at = time.monotonic() - self.began
            for name, pid in zip(self.series, self.pids):
                bytes_ = taken(pid)
                self.series[name].append((at, bytes_ / MIB))
                self.most[self.phase] = max(self.most.get(self.phase, 0), bytes_)

    def draw(self):
        folder = os.path.join(harness.BUILD, "..", "bench")
        os.makedirs(folder, exist_ok=True)
        series = dict(self.series, limit=[(0, LIMIT / MIB), (time.monotonic() - self.began, LIMIT / MIB)])
        with open(os.path.join(folder, "memory.svg"), "w", encoding="utf-8") as file:
            file.write(report.curves(series, "memory of three nodes, memory_limit 96 MiB", "seconds", "MiB", marks=self.marks))
        with open(os.path.join(folder, "memory.json"), "w", encoding="utf-8") as file:
            json.dump({"limit_mib": LIMIT / MIB, "marks": self.marks, "series": self.series}, file)


class Memory(unittest.TestCase):
    def test_three_nodes_stay_within_it_and_give_it_back(self):
        with Sandbox() as box:
            first = ports(1)[0]
            nodes, cluster = [], f"127.0.0.1:{first}"
            for n in range(3):
                data = box.path(f"node-{n}")
                listen = cluster if n == 0 else f"127.0.0.1:{ports(1)[0]}"
                argv = ["zht", "serve", "--data", data, "--listen", listen, "--instances", "1", "--memory-limit", f"{LIMIT >> 20}MiB"]
                argv += ["--partitions", "64"] if n == 0 else ["--join", cluster]
                nodes.append(box.start(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                wait_for(lambda d=data: os.path.exists(os.path.join(d, "node.sock")), f"node {n}")
            wait_for(lambda: "3 of 3 keepers live" in box.out("zht", "status", "--cluster", cluster, expect=None), "a cluster of three")
            watch = Watch([one.pid for one in nodes])
            watch.start()
            keys, size = rounds(120_000, 600_000), 1024
            load = ["zht", "bench", "--cluster", cluster, "--quiet", "--json", "--timeout", "60s", "--connections", "4", "--in-flight", "16",
                    "--keys", str(keys), "--value-size", str(size)]
            watch.enter("inserts")
            box.run(*load, "--operation", "insert", "--count", str(keys), timeout=600)
            watch.enter("overwrites")
            box.run(*load, "--operation", "insert", "--count", str(keys), timeout=600)
            watch.enter("one stopped")
            busy = box.start(*load, "--operation", "insert", "--count", str(keys // 2), stdout=subprocess.DEVNULL)
            time.sleep(1)
            nodes[2].send_signal(signal.SIGSTOP)
            time.sleep(6)
            nodes[2].send_signal(signal.SIGCONT)
            self.assertEqual(busy.wait(600), 0)
            watch.enter("16 MiB values")
            with open(box.path("long"), "wb") as file:
                file.write(os.urandom(16 * MIB))
            for i in range(rounds(16, 64)):
                box.run("zht", "insert", f"long{i % 12}", "--file", box.path("long"), "--cluster", cluster, "--timeout", "60s", timeout=200)
            status = box.json("zht", "status", "--cluster", cluster, "--json")
            watch.enter("removal")
            for i in range(12):
                box.run("zht", "remove", f"long{i}", "--cluster", cluster, "--timeout", "60s", expect=None)
            box.run(*load, "--operation", "remove", "--count", str(keys), timeout=600, expect=None)
            watch.enter("at rest")
            watch.most["at rest"] = 0
            wait_for(lambda: max(taken(pid) for pid in watch.pids) < LIMIT + BESIDE // 2, "memory to be given back", 60)
            time.sleep(2)
            watch.ended.set()
            watch.join()
            watch.draw()
            rest = max(taken(pid) for pid in watch.pids)
            figures = {phase: most >> 20 for phase, most in watch.most.items()}
            print(json.dumps({"bench": "memory", "limit_mib": LIMIT >> 20, "data_mib": keys * size >> 20, "most_mib": figures,
                              "at_rest_mib": rest >> 20}), flush=True)
            for phase, most in watch.most.items():
                self.assertLess(most, LIMIT + BESIDE, f"{phase}: {figures}")
            for instance in status["instances"]:
                for name, bound in instance["bounds"].items():
                    if bound["limit"] and name != "memory":
                        self.assertLess(bound["bytes"], 2 * bound["limit"], f"{name}: {bound}")
            self.assertGreater(status["disk_bytes"], 12 * 16 * MIB, "all files count")
            for one in nodes:
                one.send_signal(signal.SIGTERM)
            for one in nodes:
                one.wait(60)

    def test_a_node_alone_refuses_what_it_has_no_room_for(self):
        with Sandbox() as box:
            serve = ["zht", "serve", "--background", "--instances", "1", "--partitions", "16", "--memory-limit", "64MiB"]
            box.run(*serve)
            load = ["zht", "bench", "--quiet", "--json", "--timeout", "20s", "--in-flight", "64", "--key-size", "40", "--value-size", "30"]
            keys = 1_500_000
            said = box.run(*load, "--operation", "insert", "--keys", str(keys), "--count", str(keys), expect=None, timeout=600)
            self.assertIn("memory_limit", said[0] + said[1], "told why")
            box.run("zht", "insert", "more", "x", expect=6)
            status = box.json("zht", "status", "--json")
            self.assertGreater(status["instances"][0]["refused_for_memory"], 0)
            self.assertLess(taken(box.node_pid()), 64 * MIB + BESIDE)
            held = status["keys"]
            # As little memory as before is enough to start with.
            box.run("zht", "stop")
            box.run(*serve)
            self.assertEqual(box.json("zht", "status", "--json")["keys"], held)
            self.assertLess(taken(box.node_pid()), 64 * MIB + BESIDE)

    def test_a_start_that_was_killed_says_so_the_next_time(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background")
            box.run("zht", "stop")
            with open(os.path.join(box.data, "starting"), "w", encoding="ascii") as file:
                file.write("4711 0\n")  # as a process leaves it that does not come to its end
            box.run("zht", "serve", "--background")
            with open(os.path.join(box.data, "node.log"), encoding="utf-8") as file:
                self.assertIn("the last start (process 4711) ended before its data were recovered", file.read())
            self.assertFalse(os.path.exists(os.path.join(box.data, "starting")), "this one has come to its end")


if __name__ == "__main__":
    unittest.main(verbosity=2)

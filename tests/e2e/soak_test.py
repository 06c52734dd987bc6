#!/usr/bin/env python3
"""Mixed operations for long: every answer is right, memory stays flat, the disk within its bound. ZHT_LONG=1: 72 million.

    ZHT_LONG=1 tests/e2e/soak_test.py          prints a line every ten seconds and a summary
"""
import json
import os
import threading
import time
import unittest

import harness
from harness import Sandbox, rounds

OPERATIONS = rounds(300_000, 72_000_000)
KEYS = rounds(20_000, 500_000)
CONNECTIONS, IN_FLIGHT = 4, 32


class Soak(unittest.TestCase):
    def sample(self, box, samples, stop):
        over = False
        while not over:
            over = stop.wait(rounds(0.1, 2))  # and once more at the end
            pid = box.node_pid()
            try:
                with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                    memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
                disk = sum(os.stat(os.path.join(folder, name)).st_blocks * 512 for folder, _, names in
                           os.walk(os.path.join(box.data, "store")) for name in names) / 2**20
            except OSError:
                continue
            samples.append((time.monotonic(), memory, disk))
            if harness.rounds(False, True) and len(samples) % 5 == 0:
                print(f"  after {samples[-1][0] - samples[0][0]:6.0f} s: memory {memory:7.1f} MiB, disk {disk:7.1f} MiB", flush=True)

    def test_mixed_operations_for_long(self):
        with Sandbox() as box:
            box.run("zht", "insert", "first", "1")
            samples, stop = [], threading.Event()
            watcher = threading.Thread(target=self.sample, args=(box, samples, stop), daemon=True)
            watcher.start()
            pid = box.node_pid()
            # Exit status 7 when an answer is not what it must be.
            out, _ = box.run("zht", "bench", "--operation", "six", "--count", OPERATIONS, "--keys", KEYS, "--connections", CONNECTIONS,
                             "--in-flight", IN_FLIGHT, "--zipf", "0.8", "--json", timeout=rounds(240, 7200))
            stop.set()
            watcher.join()
            result = json.loads(out)
            self.assertGreaterEqual(result["operations"], OPERATIONS * 0.999)
            self.assertEqual(set(result["by_operation"]), {"insert", "lookup", "append", "cswap", "remove", "callback"})
            self.assertEqual(box.node_pid(), pid, "the node has been there all the time")
            # Past the filling and the warming up, memory and disk have found their level.
            half, last = samples[len(samples) // 2:], samples[-max(1, len(samples) // 10):]
            level = max(memory for _, memory, _ in half[:max(1, len(half) // 2)])
            end = max(memory for _, memory, _ in last)
            print(f"{result['operations']:,} operations on {KEYS:,} keys in {result['seconds']:.0f} s ({result['ops_per_s']:,.0f}/s), every "
                  f"answer right; p50 {result['p50_us']:.0f} us, p99 {result['p99_us']:.0f} us, max {result['max_us'] / 1000:.0f} ms; "
                  f"memory {level:.0f} MiB half-way, {end:.0f} MiB at the end; disk {samples[-1][2]:.0f} MiB", flush=True)
            self.assertLess(end, level * 1.1 + 32, "memory grows")
            self.assertLess(samples[-1][2], 1024, "MiB of disk for some hundred thousand small values")


if __name__ == "__main__":
    harness.main()

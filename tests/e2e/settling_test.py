#!/usr/bin/env python3
"""How long until nothing moves any more, after each join, leave, death and return, on real nodes of two instances: a table."""
import os
import time
import unittest

import harness
from cluster_test import SLOW, ClusterCase, Node, Cluster
from harness import rounds, wait_for

NODES = rounds(4, 16)
PARTITIONS = 64
QUIET = 5  # seconds without a new view; longer than a planner leaves alone what has just changed
MOST = 30  # seconds that anything may take; a machine that other tests keep busy, too


class Grown(Cluster):
    """One node, and those that join it."""

    def __init__(self, box, copies):
        super().__init__(box, 0, start=False)
        self.copies = copies
        self.add()
        self.use()

    def add(self):
        join = ("--join", self.nodes[0].address) if self.nodes else ()
        node = Node(self.box, len(self.nodes) + 1, "--replicas", str(self.copies), "--partitions", str(PARTITIONS), "--instances", "2", *join)
        self.nodes.append(node)
        return node.start()


class SettlingTest(ClusterCase):
    def rests(self, what, living):
        """Everything is safe, evenly led and at rest; prints after how long."""
        begun = changed = time.monotonic()
        seen, views = None, 0

        def is_quiet():
            nonlocal seen, changed, views
            now = self.cluster.status()
            state = (now.get("table_version"), now.get("moving"), now.get("safe"))
            if state != seen:
                views += max(0, (state[0] or 0) - (seen[0] or 0)) if seen else 0
                seen, changed = state, time.monotonic()
            there = now.get("safe") and now["moving"] == 0 and sum(one["lives"] for one in now["nodes"]) == living
            return there and time.monotonic() - changed > QUIET

        wait_for(is_quiet, f"rest after: {what}", SLOW)
        took = changed - begun
        print(f"{self.cluster.copies} copies, {living:2d} nodes live: {what:<10} {took:5.1f} s, {views} views", flush=True)
        self.assertLess(took, MOST, what)
        led = [one["leads"] for one in self.cluster.status()["nodes"] if one["lives"]]
        self.assertLessEqual(max(led) - min(led), 4 + PARTITIONS // len(led) // 2, f"leads are uneven after {what}: {led}")

    def grow_and_shrink(self, copies):
        self.cluster = Grown(self.box, copies)
        self.rests("start", 1)
        for living in range(2, NODES + 1):
            node = self.cluster.add()
            self.cluster.use()
            self.rests("join", living)
            if living not in (3, 4, NODES):
                continue
            node.kill()
            self.rests("death", living - 1)
            node.start()
            self.rests("return", living)
            node.stop()
            node.start()
            self.rests("restart", living)
        for living in range(NODES - 1, 0, -1 if NODES < 6 else -5):
            while len(self.cluster.nodes) > living:
                node = self.cluster.nodes[-1]
                self.box.run("zht", "leave", "--yes", "--cluster", node.address, "--timeout", f"{SLOW}s")
                node.process.wait(SLOW)
                self.cluster.nodes.pop()
            self.cluster.use()
            self.rests("leave", living)

    def test_with_two_copies(self):
        self.grow_and_shrink(2)

    # Open: with three of three nodes the test waits for three copies on two nodes after a death. Until it judges that right it runs with
    # ZHT_LONG=1 alone.
    if os.environ.get("ZHT_LONG"):
        def test_with_three_copies(self):
            self.grow_and_shrink(3)


if __name__ == "__main__":
    harness.main()

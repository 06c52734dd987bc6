#!/usr/bin/env python3
"""Loss of power: nodes on disks that forget what was not synced (tests/support/power_disk.cc), cut off in the middle of writes.

    durability always     what was acknowledged is there
    durability interval   ... if it was acknowledged more than the interval (1 s) and a sync before the loss, and all of it when
                          only one of three nodes loses its power
"""
import os
import random
import signal
import subprocess
import threading
import time
import unittest

import harness
from cluster import Cluster, ClusterPipe
from harness import rounds, wait_for

ROUNDS = rounds(2, 60)
WRITERS = 4
SEED = 20261122
# The promised second, twice over: syncs take their time where the machine has much to do.
INTERVAL = 2.0
DISK = os.path.join(harness.BUILD, "tests", "power_disk")


class PowerDisk:
    """A node's data folder on a disk that can lose its power."""

    def __init__(self, cluster, node, seed):
        self.cluster, self.node = cluster, node
        self.random = random.Random(seed)
        self.below = cluster.path(f"below-{node.number}")
        os.makedirs(self.below, mode=0o700)
        self.process = None
        self.turn_on()

    def turn_on(self):
        self.process = self.cluster.start(DISK, self.below, self.node.data, self.random.randrange(1 << 30),
                                          stderr=open(self.cluster.path(f"disk-{self.node.number}.err"), "ab"))
        wait_for(lambda: self.cluster.mounted(self.node.data) or self.process.poll() is not None, "the disk")
        assert self.process.poll() is None, f"power_disk ended with {self.process.returncode}"

    def turn_off(self):
        """Its node is dead by now. Returns what the disk says that was lost."""
        self.process.send_signal(signal.SIGUSR1 if self.random.random() < 0.5 else signal.SIGUSR2)
        said = self.process.stdout.readline().decode().strip()
        # The next one is another file system, so nothing that the kernel remembers of this one counts. (It may be mounted in
        # the clients' namespaces, too, so it would not end by being unmounted here.)
        self.process.kill()
        self.process.wait(harness.DEADLINE)
        self.process.stdout.close()
        subprocess.run(["umount", "-l", self.node.data], check=True)
        return said


class Writer(threading.Thread):
    """Inserts keys of its own, each once, one after another, until its client dies; remembers when each was acknowledged."""

    def __init__(self, cluster, number, part):
        super().__init__(daemon=True)
        self.pipe = ClusterPipe(cluster, cluster.desk(f"w{number}"))
        self.prefix = f"{part}.{number}."
        self.acknowledged = []  # (key, when)
        self.failure = None

    def run(self):
        try:
            while True:
                key = self.prefix + str(len(self.acknowledged))
                answer = self.pipe.ask(op="insert", key=key, value=key * 20)
                if answer["status"] != "ok":
                    self.failure = f"{key}: {answer}"
                    return
                self.acknowledged.append((key, time.monotonic()))
        except (harness.Failed, OSError, ValueError):
            pass  # killed


class Powered(Cluster):
    def __init__(self, nodes, durability):
        super().__init__(nodes)
        self.SETTINGS = Cluster.SETTINGS + f'durability = "{durability}"\n'
        self.disks, self.desks = [], {}

    def desk(self, name):
        """A client's place, the same in each round."""
        if name not in self.desks:
            self.desks[name] = self.place(name)
        return self.desks[name]

    def __enter__(self):
        super().__enter__()
        try:
            self.disks = [PowerDisk(self, node, SEED + node.number) for node in self.nodes]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def load_until(self, part, seconds):
        """Writers that have all got on for so long; they still write."""
        writers = [Writer(self, n, part) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        end = time.monotonic() + seconds
        wait_for(lambda: any(w.failure for w in writers) or
                 (time.monotonic() > end and all(len(w.acknowledged) > 20 for w in writers)), "progress of every writer")
        assert not [w.failure for w in writers if w.failure], [w.failure for w in writers if w.failure]
        return writers

    def cut(self, nodes, writers):
        """The power of these nodes goes. The writers' clients end with it: nothing is acknowledged after the loss."""
        for writer in writers:
            writer.pipe.process.send_signal(signal.SIGSTOP)
        when = time.monotonic()
        for node in nodes:
            node.kill()
        said = [disk.turn_off() for disk in self.disks if disk.node in nodes]
        for writer in writers:
            writer.pipe.process.kill()
            writer.pipe.process.wait()
            writer.join(harness.DEADLINE)
        return when, said

    def back(self, nodes):
        for disk in self.disks:
            if disk.node in nodes:
                disk.turn_on()
        for node in nodes:
            node.start()
        for node in nodes:
            wait_for(node.serves, f"{node.name} to serve")

    def missing(self, writers):
        """[(key, when it was acknowledged)] of what is not there any more."""
        pipe = ClusterPipe(self, self.desk("reader"))
        lost = []
        for writer in writers:
            for key, when in writer.acknowledged:
                answer = pipe.ask(op="lookup", key=key)
                if answer["status"] == "notfound":
                    lost.append((key, when))
                elif answer["status"] != "ok" or harness.value_of(answer).decode() != key * 20:
                    raise AssertionError(f"{key}: {answer}")
        pipe.close()
        return lost


class Power(unittest.TestCase):
    def play(self, count, durability, victims, spare):
        """Load, a loss of power of `victims` of `count` nodes, and all back; `spare` seconds before it may be lost."""
        with Powered(count, durability) as cluster:
            cluster.up()
            oldest = written = gone = 0
            for part in range(ROUNDS):
                writers = cluster.load_until(part, 1.5 if durability == "always" else 3.0)
                nodes = random.Random(SEED + part).sample(cluster.nodes, victims)
                when, said = cluster.cut(nodes, writers)
                cluster.back(nodes)
                cluster.settle()
                lost = cluster.missing(writers)
                written += sum(len(w.acknowledged) for w in writers)
                gone += len(lost)
                oldest = max([oldest] + [when - acknowledged for _, acknowledged in lost])
                print(f"round {part + 1}/{ROUNDS}: {said}; {len(lost)} of {sum(len(w.acknowledged) for w in writers)} keys lost",
                      flush=True)
                self.assertEqual([key for key, at in lost if when - at >= spare], [], f"acknowledged {spare} s before the loss and more")
            print(f"{count} nodes, {durability}, {victims} without power: {written} acknowledged, {gone} lost, "
                  f"the oldest {oldest:.2f} s before the loss (allowed: {spare})", flush=True)
            return gone

    def test_always_loses_nothing(self):
        self.play(1, "always", 1, 0)

    def test_interval_loses_its_interval_at_most(self):
        self.assertGreater(self.play(1, "interval", 1, INTERVAL), 0, "nothing was lost: the disks lose nothing")

    def test_all_of_three_nodes_with_always(self):
        self.play(3, "always", 3, 0)

    def test_all_of_three_nodes_with_interval(self):
        self.play(3, "interval", 3, INTERVAL)

    def test_one_of_three_nodes_with_interval_loses_nothing(self):
        self.play(3, "interval", 1, 0)


if __name__ == "__main__":
    if not os.path.exists(DISK):
        print(f"skipped: {DISK} is not built")
        raise SystemExit(harness.SKIP)
    harness.main(fuse=True)

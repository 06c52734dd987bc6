#!/usr/bin/env python3
"""SQLite with four writers over three mounts, some of which, or a mount, or the node, are killed in the middle, round after round: no
commit fails that would not fail on a local file system, each that was acknowledged is there, and integrity_check is clean.

  SEED=7 ROUNDS=50 sqlite_test.py      (without ZHT_LONG=1: 5 rounds, with each kind of them)"""
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402

WRITERS, MOUNTS, KEPT = 4, 3, 20

# Counts one up in its own row, in transactions of two tables, of which one grows no longer than `kept` lines; says each number when
# its commit has returned. A lock that another writer has is waited for, as long as it takes.
WRITER = """
import random, sqlite3, sys, time
path, mine, kept = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
base = sqlite3.connect(path, timeout=600, isolation_level=None)
number = base.execute("SELECT count FROM counts WHERE writer = ?", (mine,)).fetchone()[0]
print(number, flush=True)
while True:
    base.execute("BEGIN IMMEDIATE")
    base.execute("UPDATE counts SET count = count + 1 WHERE writer = ?", (mine,))
    base.execute("INSERT INTO lines VALUES (?, ?, ?)", (mine, number + 1, "x" * (number * 37 % 3000)))
    base.execute("DELETE FROM lines WHERE writer = ? AND number <= ?", (mine, number + 1 - kept))
    base.execute("COMMIT")
    number += 1
    print(number, flush=True)
    time.sleep(random.random() * 0.03)  # who waits looks each 100 ms, and finds a busy writer's lock taken for minutes, on any file system
"""


class Writer:
    def __init__(self, box, number, mount):
        self.number, self.mount, self.said, self.expendable = number, mount, box.path(f"said-{number}"), False
        with open(self.said, "wb") as out:
            self.process = box.start(sys.executable, "-c", WRITER, os.path.join(mount, "base"), number, KEPT, stdout=out,
                                     stderr=subprocess.STDOUT)

    def acknowledged(self):
        with open(self.said, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        numbers = [int(line) for line in lines if line.isdigit()]
        return max(numbers, default=0)

    def complaint(self):
        with open(self.said, "rb") as file:
            return file.read()[-400:].decode()

    def died(self):
        return self.process.poll() is not None


class Sqlite(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        self.writers = []
        self.addCleanup(lambda: [(each.process.kill(), each.process.wait()) for each in self.writers])

    def mount_pid(self, mount):
        found = [pid for pid, command in self.box.processes().items() if command.endswith(" " + mount) and "fusionfs" in command]
        return found[0] if len(found) == 1 else None

    def start(self, number):
        return Writer(self.box, number, self.mounts[number % MOUNTS])

    def kill_writers(self, rng):
        for each in rng.sample(self.writers, rng.randint(1, WRITERS)):
            each.expendable = True
            each.process.kill()
            each.process.wait()

    def kill_mount(self, rng):
        mount = rng.choice(self.mounts)
        for each in self.writers:
            each.expendable = each.expendable or each.mount == mount
        pid = harness.wait_for(lambda: self.mount_pid(mount), "the mount's process")
        os.kill(pid, signal.SIGKILL)
        harness.wait_for(lambda: not harness.alive(pid), "its end")
        for each in self.writers:  # their files are gone
            if each.mount == mount:
                each.process.kill()
                each.process.wait()
        self.box.run("fusionfs", "mount", mount)

    def kill_node(self, rng):
        self.box.kill_node()

    def kill_nothing(self, rng):
        pass

    def check(self, mount, acknowledged):
        base = sqlite3.connect(os.path.join(mount, "base"), timeout=600)
        base.execute("BEGIN")
        self.assertEqual(base.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
        for writer, said in enumerate(acknowledged):
            count, = base.execute("SELECT count FROM counts WHERE writer = ?", (writer,)).fetchone()
            lines = [number for number, in base.execute("SELECT number FROM lines WHERE writer = ? ORDER BY number", (writer,))]
            self.assertEqual(lines, list(range(max(1, count - KEPT + 1), count + 1)), f"writer {writer}")
            self.assertGreaterEqual(count, said, f"writer {writer}: an acknowledged commit is gone")
        base.execute("ROLLBACK")
        base.close()

    def test_no_commit_fails_and_none_is_lost_though_mounts_and_nodes_are_killed(self):
        seed = int(os.environ.get("SEED", random.randrange(1_000_000)))
        rng = random.Random(seed)
        self.mounts = [self.box.mount(f"m{number}") for number in range(MOUNTS)]
        base = sqlite3.connect(os.path.join(self.mounts[0], "base"))
        base.execute("CREATE TABLE counts (writer INTEGER PRIMARY KEY, count INTEGER)")
        base.execute("CREATE TABLE lines (writer INTEGER, number INTEGER, text TEXT)")
        base.executemany("INSERT INTO counts VALUES (?, 0)", [(writer,) for writer in range(WRITERS)])
        base.commit()
        base.close()
        self.writers = [self.start(number) for number in range(WRITERS)]
        kinds = [self.kill_writers, self.kill_node, self.kill_mount, self.kill_nothing]
        count = int(os.environ.get("ROUNDS", harness.rounds(5, 1000)))
        acknowledged, done, slowest, began = [0] * WRITERS, {}, 0, time.monotonic()
        for number in range(count):
            kind = kinds[number] if number < len(kinds) else rng.choices(kinds, (8, 8, 1, 3))[0]
            said = f"SEED={seed}, round {number}: {kind.__name__}"
            started = time.monotonic()
            time.sleep(rng.uniform(0, 0.4))
            kind(rng)
            time.sleep(rng.uniform(0, 0.2))
            for each in self.writers:
                acknowledged[each.number] = max(acknowledged[each.number], each.acknowledged())
            try:
                self.check(rng.choice(self.mounts), acknowledged)
            except (AssertionError, sqlite3.Error) as error:
                raise AssertionError(f"{said}: {error}") from error
            for at, each in enumerate(self.writers):
                if each.died():
                    self.assertTrue(each.expendable, f"{said}: a commit failed: {each.complaint()}")
                    self.writers[at] = self.start(each.number)
            done[kind.__name__] = done.get(kind.__name__, 0) + 1
            if time.monotonic() - started > slowest:
                slowest, slow = time.monotonic() - started, f"round {number}, {kind.__name__}"
            if number % 50 == 49:  # a long run tells how far it has come
                print(f"{number + 1} rounds, {sum(acknowledged)} commits, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        # Each has its turn.
        before = [each.acknowledged() for each in self.writers]
        harness.wait_for(lambda: all(each.acknowledged() > was or each.died() for each, was in zip(self.writers, before)), "commits by all")
        self.assertEqual([each.complaint() for each in self.writers if each.died()], [])
        print(f"{done}: {sum(acknowledged)} commits, the slowest was {slow} with {slowest:.1f} s", file=sys.stderr)
        for each in self.writers:
            each.process.kill()
            each.process.wait()
        for mount in self.mounts:
            self.box.umount(mount)


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

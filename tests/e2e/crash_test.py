#!/usr/bin/env python3
"""kill -9 of the node, again and again, while clients change keys through `zht pipe`.

Afterwards: every acknowledged change is there, and no append or cswap was applied twice. Each client owns some keys and
shares others, so both can be said exactly:

  own keys    insert and remove: the last acknowledged change, or a later one whose answer was `unknown`
  log keys    each client appends lines with its own numbers, in order: each acknowledged one is there, each is there
              once, in order; one that certainly failed is not there
  counters    all clients add one by cswap: the value is the number of swaps that succeeded, give or take the `unknown`
"""
import os
import random
import signal
import subprocess
import threading
import time
import unittest

import harness
from harness import Pipe, Sandbox, rounds, value_of

CLIENTS = 4
ROUNDS = rounds(10, 100)
SEED = 20261121


class Load(threading.Thread):
    """One client: random operations until told to stop, and what it knows of their outcome."""

    def __init__(self, box, number, counters):
        super().__init__(daemon=True)
        self.pipe = Pipe(box)
        self.number, self.counters = number, counters
        self.random = random.Random(SEED + number)
        self.stopping = False
        self.failure = None
        self.done = 0                 # operations answered
        self.own = {}                 # key -> set of values it may hold (None: absent)
        self.appended = []            # (line, status) in the order sent
        self.swapped = {c: [0, 0] for c in counters}  # counter -> [certainly, perhaps]
        self.sequence = 0

    def run(self):
        try:
            while not self.stopping:
                self.step()
            self.pipe.close()
        except BaseException as error:  # reported by the test, in its own thread
            self.failure = error

    def step(self):
        choice = self.random.random()
        self.sequence += 1
        if choice < 0.35:
            key = f"own-{self.number}-{self.random.randrange(50)}"
            value = f"{self.number}:{self.sequence}" + "x" * self.random.choice([0, 10, 2000])
            self.settle_own(key, value, self.pipe.ask(op="insert", key=key, value=value))
        elif choice < 0.45:
            key = f"own-{self.number}-{self.random.randrange(50)}"
            self.settle_own(key, None, self.pipe.ask(op="remove", key=key))
        elif choice < 0.55:
            key = f"own-{self.number}-{self.random.randrange(50)}"
            answer = self.pipe.ask(op="lookup", key=key)
            if answer["status"] in ("ok", "notfound"):
                found = value_of(answer)
                found = None if found is None else found.decode()
                if found not in self.own.get(key, {None}):
                    raise AssertionError(f"{key} holds {found!r}, not one of {self.own.get(key, {None})}")
                self.own[key] = {found}
        elif choice < 0.8:
            line = f"{self.number}.{self.sequence};"
            answer = self.pipe.ask(op="append", key=f"log-{self.number % 2}", value=line)
            self.appended.append((line, answer["status"]))
        else:
            self.add_one(self.random.choice(self.counters))
        self.done += 1

    def settle_own(self, key, value, answer):
        before = self.own.get(key, {None})
        status = answer["status"]
        if status == "ok" or (status == "notfound" and value is None):
            self.own[key] = {value}
        elif status == "unknown":
            self.own[key] = before | {value}
        elif status != "fail":
            raise AssertionError(f"{key}: unexpected answer {answer}")

    def add_one(self, counter):
        seen = self.pipe.ask(op="lookup", key=counter)
        if seen["status"] != "ok":
            return
        old = value_of(seen).decode()
        answer = self.pipe.ask(op="cswap", key=counter, expect=old, value=str(int(old) + 1))
        if answer["status"] == "ok":
            self.swapped[counter][0] += 1
        elif answer["status"] == "unknown":
            self.swapped[counter][1] += 1


class Crash(unittest.TestCase):
    def test_nothing_acknowledged_is_lost_or_done_twice_through_kill_9(self):
        counters = ["counter-a", "counter-b"]
        with Sandbox() as box:
            for counter in counters:
                box.run("zht", "insert", counter, "0")
            loads = [Load(box, n, counters) for n in range(CLIENTS)]
            for load in loads:
                load.start()
            chance = random.Random(SEED)
            for number in range(ROUNDS):
                before = sum(load.done for load in loads)
                # A round lasts until every client got on since the last kill: so each kill hits a serving node.
                marks = [load.done for load in loads]
                harness.wait_for(lambda: all(load.done > mark + 20 or load.failure for load, mark in zip(loads, marks)),
                                 f"progress of every client in round {number}")
                self.assertFalse([load.failure for load in loads if load.failure])
                time.sleep(chance.random() * 0.2)
                box.kill_node()
                print(f"round {number + 1}/{ROUNDS}: killed after {sum(load.done for load in loads) - before} operations",
                      flush=True)
            marks = [load.done for load in loads]
            harness.wait_for(lambda: all(load.done > mark or load.failure for load, mark in zip(loads, marks)),
                             "progress after the last kill")
            for load in loads:
                load.stopping = True
            for load in loads:
                load.join(harness.DEADLINE)
                self.assertFalse(load.is_alive(), "a client hangs")
            self.assertFalse([load.failure for load in loads if load.failure])
            box.kill_node()
            self.check(box, loads, counters)

    # Under load the next round writes what this one did not. Here nothing follows: the node is dead a moment after its answer.
    def test_a_change_acknowledged_just_before_the_kill_is_there(self):
        with Sandbox() as box:
            box.run("zht", "insert", "begun", "")
            pipe = Pipe(box)
            for number in range(rounds(12, 200)):
                pid = harness.wait_for(box.node_pid, "a running node")
                self.assertEqual(pipe.ask(op="lookup", key="begun", timeout_ms=harness.DEADLINE * 1000)["status"], "ok")
                for before in range(number % 3):  # no two rounds write equally often
                    self.assertEqual(pipe.ask(op="append", key=f"before{before}", value=".")["status"], "ok")
                answer = pipe.ask(op="insert", key=f"k{number}", value=str(number))
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(answer["status"], "ok")
                harness.wait_for(lambda: not harness.alive(pid), "the end of the node")  # noqa: B023
                found = pipe.ask(op="lookup", key=f"k{number}", timeout_ms=harness.DEADLINE * 1000)
                self.assertEqual(value_of(found), str(number).encode(), f"round {number}: {found}")
            pipe.close()

    def check(self, box, loads, counters):
        pipe = Pipe(box)
        for load in loads:
            for key, allowed in load.own.items():
                found = value_of(pipe.ask(op="lookup", key=key))
                found = None if found is None else found.decode()
                self.assertIn(found, allowed, key)
        logs = {k: (value_of(pipe.ask(op="lookup", key=k)) or b"").decode().split(";")[:-1] for k in ("log-0", "log-1")}
        acknowledged = unknown = 0
        for load in loads:
            lines = [line for line in logs[f"log-{load.number % 2}"] if line.startswith(f"{load.number}.")]
            self.assertEqual(len(lines), len(set(lines)), f"client {load.number}: an append was applied twice")
            numbers = [int(line.split(".")[1]) for line in lines]
            if all(status == "ok" for _, status in load.appended):  # one that timed out may come later
                self.assertEqual(numbers, sorted(numbers), f"client {load.number}: appends out of order")
            there = set(lines)
            for line, status in load.appended:
                acknowledged += status == "ok"
                unknown += status == "unknown"
                if status == "ok":
                    self.assertIn(line[:-1], there, "an acknowledged append is missing")
                elif status == "fail":
                    self.assertNotIn(line[:-1], there, "an append that certainly failed is there")
        for counter in counters:
            value = int(value_of(pipe.ask(op="lookup", key=counter)))
            certain = sum(load.swapped[counter][0] for load in loads)
            perhaps = sum(load.swapped[counter][1] for load in loads)
            self.assertGreaterEqual(value, certain, f"{counter}: a swap was lost")
            self.assertLessEqual(value, certain + perhaps, f"{counter}: a swap was applied twice")
        pipe.close()
        print(f"{ROUNDS} rounds, {sum(load.done for load in loads)} operations, {acknowledged} appends acknowledged, "
              f"{unknown} unknown", flush=True)


class FailedSync(unittest.TestCase):
    """A disk that did not take what it was given to sync, and takes everything again in the node's next life."""

    def test_what_a_sync_did_not_take_is_not_believed_in_the_next_life(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to mount a disk")
        with Sandbox() as box:
            below, image, filler = box.path("below"), box.path("below", "image"), box.path("below", "filler")
            os.mkdir(below)
            os.mkdir(box.data, 0o700)
            config = box.path("zht.toml")
            with open(config, "w", encoding="ascii") as file:
                file.write('segment_size = "1MiB"\npartitions = 4\ninstances = 1\ndurability = "always"\n')

            def mounted(*command):
                if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                    self.skipTest(f"{command[0]} does not do that here")

            def there():
                return [n for n in range(20) if box.run("zht", "lookup", f"after{n}", "--timeout", "20s", expect=None)[0]]
            try:
                mounted("mount", "-t", "tmpfs", "-o", "size=80m", "none", below)
                with open(image, "wb") as file:
                    file.truncate(256 << 20)  # with holes, which a full `below` has no room to fill
                mounted("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image)
                mounted("mount", "-o", "loop", image, box.data)
                box.run("zht", "serve", "--background", "--config", config)
                box.run("zht", "insert", "before", "v")
                with open(filler, "wb", buffering=0) as file, self.assertRaises(OSError):
                    while True:
                        file.write(bytes(65536))
                pipe = Pipe(box)
                for n in range(20):
                    pipe.ask(op="insert", key=f"after{n}", value="w" * 20_000, timeout_ms=300)
                pipe.close()
                self.assertIn("read-only", box.out("zht", "status"))
                box.kill_node()
                os.unlink(filler)
                box.run("zht", "serve", "--background", "--config", config)
                seen = there()
                box.run("zht", "insert", "later", "acknowledged on top of it")
                box.kill_node()
                mounted("umount", box.data)  # what only the page cache had is gone now, as after a loss of power
                mounted("mount", "-o", "loop", image, box.data)
                box.run("zht", "serve", "--background", "--config", config)
                self.assertEqual(there(), seen, "the life before showed what no disk had")
                self.assertEqual(box.out("zht", "lookup", "later"), "acknowledged on top of it")
                self.assertEqual(box.out("zht", "lookup", "before"), "v")
                box.run("zht", "stop")
            finally:
                for folder in (box.data, below):
                    subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


if __name__ == "__main__":
    harness.main()

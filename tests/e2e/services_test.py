#!/usr/bin/env python3
"""Services where users run them: messages, tasks and Redis clients on a cluster of three nodes, of which one is killed, one
frozen and one cut off while they work. Nothing that was acknowledged is lost or done twice, and no command fails."""
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
import unittest

import harness
from cluster import Cluster
from harness import SKIP, rounds, wait_for
from network import Network

RESP = 7090
PRODUCERS, CONSUMERS = 3, 3
TASKS = rounds(1_000, 30_000)
CLONE_NEWNET = 0x40000000


class Services(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster = cls.enterClassContext(Cluster(nodes=3))
        for node in cluster.nodes:  # every one has a door for Redis clients, each time it starts
            start = node.start
            node.start = lambda *more, start=start, node=node: start(*more, "--resp", f"{node.place.address}:{RESP}")
        cluster.up()
        cls.place = cluster.place("users")
        cluster.environment["ZHT_CLUSTER"] = cluster.addresses()

    def user(self, *argv, **options):
        return self.cluster.start(*self.cluster.network.argv(self.place, argv), **options)

    def command(self, *argv, input=None):
        """(exit status, stdout, stderr); for many threads at once."""
        done = subprocess.run(self.cluster.network.argv(self.place, argv), env=self.cluster.environment, cwd=self.cluster.folder,
                              input=b"" if input is None else input, check=False, capture_output=True, timeout=2 * harness.DEADLINE)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def ask(self, *argv, input=None):
        status, out, error = self.command(*argv, input=input)
        self.assertEqual(status, 0, f"{' '.join(argv)}: {error}")
        return out

    # What goes wrong, one after the other; `progress` says how much of the work is done, from 0 to 1, and raises when it cannot be done.
    def trouble(self, progress):
        one, two, three = self.cluster.nodes
        steps = ((0.15, "killed", one.kill, one.start), (0.35, "frozen", two.stop, two.go_on),
                 (0.55, "cut off", lambda: self.cluster.part([three], [one, two]), self.cluster.heal),
                 (0.7, "killed", two.kill, two.start))
        for share, what, begin, end in steps:
            wait_for(lambda: progress() >= share, f"{share:.0%} of the work", 3 * harness.DEADLINE)  # noqa: B023
            begin()
            print(f"{what} at {progress():.0%}", flush=True)
            time.sleep(2)
            end()
            # The next fault waits until all have what they need, as an operator would: of three nodes one may be away.
            self.cluster.settle()

    def test_messages_are_handed_over_once(self):
        self.ask("fabriq", "create", "q")
        pushed, settled, failures, enough, ended = [], [], [], threading.Event(), threading.Event()

        def consume():
            try:
                while True:
                    over = ended.is_set()
                    status, out, error = self.command("fabriq", "pop", "q", "-n", "20", "--wait", "1s", "--lease", "2m", "--json")
                    if status == 3:
                        if over:
                            return
                        continue
                    if status != 0:
                        raise AssertionError(f"pop ended with {status}: {error}")
                    batch = json.loads(out)
                    status, _, error = self.command("fabriq", "ack", "q", *[message["receipt"] for message in batch])
                    if status != 0:
                        raise AssertionError(f"ack ended with {status}: {error}")
                    settled.extend(message["body"] for message in batch)
            except BaseException as error:  # told in the test's own thread
                failures.append(error)

        def produce(number):
            try:
                at = 0
                while not enough.is_set():
                    lines = [f"message {number}.{n}" for n in range(at, at + 20)]
                    status, _, error = self.command("fabriq", "push", "q", "--lines", "--quiet", "--producer", f"p{number}", "--sequence", str(at + 1),
                                                    input="".join(line + "\n" for line in lines).encode())
                    if status != 0:
                        raise AssertionError(f"push ended with {status}: {error}")
                    pushed.extend(lines)
                    at += len(lines)
            except BaseException as error:
                failures.append(error)

        began = time.monotonic()

        def progress():
            if failures:
                raise failures[0]
            return min((time.monotonic() - began) / rounds(12, 600), len(settled) / 500)

        consumers = [threading.Thread(target=consume, daemon=True) for _ in range(CONSUMERS)]
        producers = [threading.Thread(target=produce, args=(n,), daemon=True) for n in range(PRODUCERS)]
        for thread in consumers + producers:
            thread.start()
        self.trouble(progress)
        enough.set()
        for thread in producers:
            thread.join(3 * harness.DEADLINE)
        ended.set()
        for thread in consumers:
            thread.join(3 * harness.DEADLINE)
            self.assertFalse(thread.is_alive(), "a consumer hangs")
        self.assertEqual(failures, [])
        self.assertEqual(len(settled), len(set(settled)), "a message was settled twice")
        self.assertEqual(sorted(settled), sorted(pushed))
        info = json.loads(self.ask("fabriq", "info", "q", "--json"))
        self.assertEqual((info["ready"], info["in_flight"]), (0, 0), info)
        print(f"{len(settled)} messages settled once", flush=True)

    def test_tasks_are_recorded_once(self):
        ran = self.cluster.path("ran")
        script = self.cluster.path("task.sh")
        with open(script, "w", encoding="ascii") as file:
            file.write(f'echo "$1" >>{ran}\nsleep 0.05\necho "result $1"\n')
        agent = self.user("matrix", "agent", "--slots", "4", stdout=subprocess.DEVNULL, stderr=open(self.cluster.path("agent.log"), "wb"))
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        wait_for(lambda: self.command("matrix", "run", "--", "true")[0] == 0, "the agent to serve")
        items = "".join(f"{n}\n" for n in range(TASKS)).encode()
        with open(self.cluster.path("items"), "wb") as file:
            file.write(items)
        with open(self.cluster.path("items"), "rb") as given, open(self.cluster.path("out"), "wb") as out:
            mapping = self.user("matrix", "map", "--wait", "--json", "--", "sh", script, "{}", stdin=given, stdout=out,
                                stderr=open(self.cluster.path("err"), "wb"))
        with contextlib.ExitStack() as after:
            after.callback(lambda: mapping.poll() is not None or mapping.kill())

            def progress():
                self.assertIsNone(agent.poll(), "the agent ended")
                self.assertIn(mapping.poll(), (None, 0), self.read(self.cluster.path("err")))
                return len(self.read(ran).split()) / TASKS if os.path.exists(ran) else 0

            self.trouble(progress)
            self.assertEqual(mapping.wait(4 * harness.DEADLINE), 0, self.read(self.cluster.path("err")))
        job = json.loads(self.read(self.cluster.path("out")))
        self.assertEqual(job["tasks"]["done"], TASKS)
        self.assertEqual(sorted(r["task"] for r in job["results"]), list(range(TASKS)), "each is recorded once")
        wrong = [r for r in job["results"] if r["state"] != "done" or r["stdout"] != f"result {r['item']}\n"]
        self.assertEqual(wrong[:3], [])
        # The agent was there all the time: nothing had to run twice, whatever became of the nodes.
        self.assertEqual(sorted(self.read(ran).split()), sorted(str(n) for n in range(TASKS)))

    # Counters through every node's door. An answer that did not come may have been counted: never more, and never less than what came.
    def test_redis_clients_count_right_through_every_node(self):
        password = self.ask("zht", "secret", "show").strip().encode()
        counted, asked, failures, ended = [0] * 3, [0] * 3, [], threading.Event()

        def count(number):
            try:
                enter(self.place)
                connection = None
                while not ended.is_set():
                    try:
                        connection = connection or Redis(self.cluster.nodes[number].place.address, password)
                        asked[number] += 1
                        value = connection.ask(b"INCR", b"counter")
                        if isinstance(value, int):
                            counted[number] += 1
                        elif not value.startswith((b"-TRYAGAIN", b"-ERR", b"-LOADING", b"-CLUSTERDOWN", b"-MASTERDOWN")):
                            raise AssertionError(f"INCR: {value}")
                    except OSError:
                        if connection:
                            connection.close()
                        connection = None
                        time.sleep(0.05)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=count, args=(n,), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        began = time.monotonic()

        def progress():
            if failures:
                raise failures[0]
            return min((time.monotonic() - began) / rounds(12, 600), min(counted) / 50)

        self.trouble(progress)
        ended.set()
        for thread in threads:
            thread.join(harness.DEADLINE)
            self.assertFalse(thread.is_alive(), "a client hangs")
        self.assertEqual(failures, [])
        total = int(self.ask("zht", "lookup", "counter"))
        self.assertLessEqual(sum(counted), total)
        self.assertGreaterEqual(sum(asked), total)
        print(f"{sum(counted)} acknowledged, {total} counted, {sum(asked)} asked", flush=True)

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8") as file:
            return file.read()


def enter(place):
    """This thread alone goes into the place's network."""
    with open(f"/run/netns/{place.namespace}", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class Redis:
    def __init__(self, address, password):
        self.socket = socket.create_connection((address, RESP), timeout=2)
        self.socket.settimeout(15)
        self.file = self.socket.makefile("rb")
        answer = self.ask(b"AUTH", password)
        if answer != b"+OK":
            self.close()
            raise OSError(f"AUTH: {answer}")

    def ask(self, *words):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the connection ended")
        return int(line[1:]) if line.startswith(b":") else line[:-2]

    def close(self):
        self.file.close()
        self.socket.close()


if __name__ == "__main__":
    why = harness.lacking("zht", "fabriq", "matrix") or Network.lacking()
    if why:
        print("skipped: " + why)
        raise SystemExit(SKIP)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.run_tests()

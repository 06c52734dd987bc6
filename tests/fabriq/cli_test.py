#!/usr/bin/env python3
"""The fabriq program against a node of its own: every verb, what it prints, how it fails, and kill -9 of consumers."""
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402


class Verbs(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        self.box.run("fabriq", "create", "q")

    def fabriq(self, *argv, **options):
        return self.box.out("fabriq", *argv, **options)

    def refused(self, status, *argv, says=""):
        out, err = self.box.run("fabriq", *argv, expect=status)
        self.assertEqual(out, "")
        lines = [line for line in err.splitlines() if not line.startswith("zht: started")]
        self.assertEqual(len(lines), 1, err)
        self.assertTrue(lines[0].startswith("fabriq: "), err)
        self.assertIn(says, lines[0])

    def pop(self, *argv):
        return self.box.json("fabriq", "pop", "q", "--json", *argv)

    def test_a_message_goes_through(self):
        identity = self.fabriq("push", "q", "hello")
        message = self.pop()
        self.assertEqual((message["id"], message["body"], message["deliveries"]), (identity, "hello", 1))
        self.refused(3, "pop", "q", says="no message ready")
        self.assertEqual(self.fabriq("ack", "q", message["receipt"]), "")
        self.fabriq("ack", "q", message["receipt"])  # again is fine
        info = self.box.json("fabriq", "info", "q", "--json")
        self.assertEqual((info["pushed"], info["settled"], info["ready"], info["in_flight"]), (1, 1, 0, 0))

    def test_bodies_arrive_as_they_were(self):
        body = bytes(range(256)) * 4000 + b"\n"
        with open(self.box.path("body"), "wb") as file:
            file.write(body)
        self.fabriq("push", "q", "--file", self.box.path("body"))
        with open(self.box.path("popped"), "wb") as out:
            process = self.box.start("fabriq", "pop", "q", "--raw", "--ack", stdout=out)
            self.assertEqual(process.wait(60), 0)
        with open(self.box.path("popped"), "rb") as file:
            self.assertEqual(file.read(), body)
        self.fabriq("push", "q", "-", input="from a pipe")
        self.assertEqual(self.fabriq("pop", "q", "--ack"), "from a pipe")
        self.fabriq("push", "q", "")
        self.assertEqual(self.pop("--ack")["body"], "")
        self.fabriq("push", "q", "-", input=b"\xff\xfe")
        self.assertEqual(self.pop("--ack")["body_b64"], "//4=")
        self.refused(2, "push", "q", "--file", self.big(), says="16711680")
        self.refused(3, "push", "q", "--file", "/nowhere/at/all", says="/nowhere/at/all")

    def big(self):
        with open(self.box.path("big"), "wb") as file:
            file.truncate(17 << 20)
        return self.box.path("big")

    def test_lines_are_messages_and_a_producer_is_recognised(self):
        lines = "".join(f"line {i}\n" for i in range(500))
        first = self.fabriq("push", "q", "--lines", "--producer", "p", "--sequence", "0", input=lines).splitlines()
        again = self.fabriq("push", "q", "--lines", "--producer", "p", "--sequence", "0", input=lines).splitlines()
        self.assertEqual(len(set(first)), 500)
        self.assertEqual(first, again)
        self.assertEqual(self.fabriq("push", "q", "line 7", "--producer", "p", "--sequence", "7"), first[7])
        info = self.box.json("fabriq", "info", "q", "--json")
        self.assertEqual(info["ready"], 500)
        self.assertEqual(info["push_imbalance"], 0)
        bodies = [m["body"] for m in self.pop("-n", "1000")]
        self.assertEqual(sorted(bodies), sorted(lines.splitlines()))

    def test_a_named_message_is_stored_once(self):
        one = self.box.json("fabriq", "push", "q", "m", "--id", "order-1", "--json")
        two = self.box.json("fabriq", "push", "q", "m", "--id", "order-1", "--json")
        self.assertEqual((one["id"], one["repeated"], two["repeated"]), (two["id"], False, True))

    def test_a_lease_ends_is_extended_and_a_receipt_grows_stale(self):
        self.fabriq("push", "q", "m")
        first = self.pop("--lease", "300ms")
        second = self.pop("--wait", "30s")
        self.assertEqual((second["body"], second["deliveries"]), ("m", 2))
        self.refused(4, "ack", "q", first["receipt"], says="stale")
        self.fabriq("extend", "q", second["receipt"], "--lease", "1h")
        self.fabriq("nack", "q", second["receipt"])
        self.refused(4, "ack", "q", second["receipt"], says="stale")
        third = self.pop()
        self.assertEqual(third["deliveries"], 3)
        altered = third["receipt"][:-1] + ("0" if third["receipt"][-1] != "0" else "1")
        self.refused(4, "ack", "q", altered, says="not one of this queue")
        self.refused(2, "ack", "q", "nonsense", says="nonsense")
        self.fabriq("ack", "q", third["receipt"])

    def test_a_delayed_message_comes_later(self):
        began = time.monotonic()
        self.fabriq("push", "q", "later", "--delay", "1s")
        self.refused(3, "pop", "q")
        self.assertEqual(self.pop("--wait", "60s")["body"], "later")
        self.assertGreaterEqual(time.monotonic() - began, 1)

    def test_dead_messages_purge_and_delete(self):
        self.fabriq("create", "d", "--max-deliveries", "1", "--partitions", "1")
        self.fabriq("push", "d", "poison")
        receipt = self.box.json("fabriq", "pop", "d", "--json")["receipt"]
        self.fabriq("nack", "d", receipt)
        self.refused(3, "pop", "d")
        self.assertEqual(self.fabriq("peek", "d", "--dead"), "poison")
        self.assertEqual(self.box.json("fabriq", "redrive", "d", "--json"), {"redriven": 1})
        self.assertEqual(self.fabriq("peek", "d"), "poison")
        self.refused(2, "purge", "d", says="--yes")
        self.assertEqual(self.box.json("fabriq", "purge", "d", "--yes", "--json"), {"purged": 1})
        self.assertEqual([q["queue"] for q in self.box.json("fabriq", "list", "--json")], ["d", "q"])
        self.refused(2, "delete", "d", says="--yes")
        self.fabriq("delete", "d", "--yes")
        for argv in (["info", "d"], ["push", "d", "m"], ["pop", "d"], ["delete", "d", "--yes"]):
            self.refused(3, *argv, says="fabriq create d")
        self.fabriq("create", "d")

    def test_bad_words_are_refused_with_a_remedy(self):
        self.refused(2, "create", "a b", says="a b")
        self.refused(2, "create", "x" * 81, says="80")
        self.refused(2, "create", "p", "--partitions", "0", says="1 to 1024")
        self.refused(2, "create", "p", "--visibility", "13h", says="12 h")
        self.refused(2, "push", "q", says="no message")
        self.refused(2, "push", "q", "m", "--producer", "p", says="--sequence")
        self.refused(2, "push", "q", "m", "--id", "x" * 201, says="200")
        self.refused(2, "pop", "q", "-n", "0", says="1")
        self.refused(2, "pop", "q", "--lease", "13h", says="12h")
        self.refused(4, "create", "q", says="already")

    def test_a_full_queue_refuses(self):
        self.fabriq("create", "small", "--max-bytes", "10k", "--partitions", "1")
        self.refused(6, "push", "small", "x" * 20_000, says="small")
        self.fabriq("push", "small", "x" * 5_000)

    def test_the_readmes_way_to_make_an_effect_happen_once(self):
        self.box.run("zht", "insert", "{total}sum", "37")
        batch = ('{"op": "insert", "key": "{total}done/7f3a9c12-2-15", "value": "", "new": true}\n'
                 '{"op": "cswap", "key": "{total}sum", "expect": "37", "value": "42"}\n')
        self.box.run("zht", "batch", input=batch)
        self.assertEqual(self.box.out("zht", "lookup", "{total}sum"), "42")
        self.box.run("zht", "batch", input=batch, expect=4)
        self.assertEqual(self.box.out("zht", "lookup", "{total}sum"), "42")


class Crashes(unittest.TestCase):
    def test_what_killed_consumers_held_comes_back(self):
        """Consumers are killed -9 with leases in hand and while they wait; the node is killed, too."""
        count = 600
        with Sandbox() as box:
            box.run("fabriq", "create", "q")
            box.run("fabriq", "push", "q", "--lines", "--quiet", input="".join(f"{i}\n" for i in range(count)))
            waiting = [box.start("fabriq", "pop", "q", "--wait", "100s", "--lease", "1s", "-n", "20") for _ in range(3)]
            for process in waiting:
                process.wait(60)  # they had some and died without a word about it
            doomed = box.start("bash", "-c", "while :; do fabriq pop q --lease 1s -n 7 >/dev/null 2>&1; done", start_new_session=True)
            settled = []

            def consume():
                while True:
                    done = subprocess.run(["fabriq", "pop", "q", "-n", "50", "--wait", "5s", "--json", "--lease", "2m"],
                                          env=box.environment, capture_output=True, check=False, timeout=120)
                    if done.returncode == 3:
                        return
                    batch = harness.json.loads(done.stdout)
                    done = subprocess.run(["fabriq", "ack", "q", *[m["receipt"] for m in batch]],
                                          env=box.environment, capture_output=True, check=False, timeout=120)
                    if done.returncode != 0:
                        raise AssertionError(done.stderr)
                    settled.extend(int(m["body"]) for m in batch)

            threads = [threading.Thread(target=consume) for _ in range(2)]
            for thread in threads:
                thread.start()
            harness.wait_for(lambda: len(settled) >= count // 4, "a quarter of the messages")
            box.kill_node()
            os.killpg(doomed.pid, signal.SIGKILL)
            doomed.wait()
            for thread in threads:
                thread.join(harness.DEADLINE)
            self.assertEqual(sorted(settled), list(range(count)))

    def test_a_parked_consumer_lives_through_the_death_of_the_node(self):
        with Sandbox() as box:
            box.run("fabriq", "create", "q")
            parked = box.start("fabriq", "pop", "q", "--wait", "100s", "--ack")
            time.sleep(0.3)  # it may be parked by then, or not: both must work
            box.kill_node()
            box.run("fabriq", "push", "q", "after the crash")
            out, err = parked.communicate(timeout=harness.DEADLINE)
            self.assertEqual((parked.returncode, out), (0, b"after the crash\n"), err)


if __name__ == "__main__":
    harness.main("fabriq", "zht")

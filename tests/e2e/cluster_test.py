#!/usr/bin/env python3
"""Clusters of real processes on loopback: nodes are killed, stopped, frozen, joined and emptied while clients run.

Histories are checked as history_test.py does it: every operation can be given one moment at which it took effect.
"""
import fnmatch
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import harness
from harness import Pipe, Sandbox, free_port, go_program, rounds, wait_for
from history_test import FOREVER, Client, linearizable, porcupine
from readme_test import commands

CLIENTS = 6
ROUNDS = rounds(4, 40)
SLOW = 90  # seconds: other tests may keep the machine busy
KEYS = 200  # of fill() and read()


class Node:
    """One `zht serve` process with its own data folder, which can be ended and started again."""

    def __init__(self, box, number, *options):
        self.box, self.data, self.options = box, box.path(f"node-{number}"), options
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process, self.log = None, open(box.path(f"node-{number}.log"), "ab")

    def start(self):
        self.process = self.box.start("zht", "serve", "--data", self.data, "--listen", self.address, *self.options,
                                      stdout=self.log, stderr=self.log, env={"ZHT_CLUSTER": ""})
        return self

    def kill(self):
        self.process.kill()
        self.process.wait(harness.DEADLINE)

    def stop(self):
        self.process.terminate()
        status = self.process.wait(SLOW)
        assert status == 0, f"ended with {status}"


class Cluster:
    def __init__(self, box, count, partitions=64, instances=1, start=True):
        self.box = box
        self.nodes = [Node(box, n) for n in range(1, count + 1)]
        listed = box.path("nodes")
        with open(listed, "w", encoding="ascii") as file:
            file.write("".join(f"{node.address} instances={instances}  # node {n}\n" for n, node in enumerate(self.nodes, 1)))
        for node in self.nodes:
            node.options = ("--nodes", listed, "--partitions", str(partitions))
        if not start:
            return
        for node in self.nodes:
            node.start()
        self.use()
        self.wait_until_safe()
        # Each can say where the others are, also when those have died.
        for node in self.nodes:
            wait_for(lambda node=node: sum(one["address"] != "" for one in box.json(
                "zht", "status", "--json", "--cluster", node.address)["cluster"]["nodes"]) == count, "addresses", SLOW)

    def use(self):
        self.box.environment["ZHT_CLUSTER"] = ",".join(node.address for node in self.nodes)

    def status(self):
        out, _ = self.box.run("zht", "status", "--json", "--timeout", "5s", expect=None)
        if self.box.status != 0:
            return {}
        return harness.json.loads(out)["cluster"]

    def wait_until_safe(self, nodes=None):
        nodes = nodes or len(self.nodes)

        def safe():
            cluster = self.status()
            # One that has not said yet where it is counts as living at first, too.
            return (cluster.get("safe") and cluster["moving"] == 0 and
                    sum(one["lives"] and one["address"] != "" for one in cluster["nodes"]) == nodes)

        wait_for(safe, "enough copies of everything", SLOW)

    def end(self):
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()


def check(test, box, clients):
    records = [record for client in clients for record in client.record]
    try:
        status, said = porcupine(go_program(box, "porcupine_go"), records)
        print(said, flush=True)
        test.assertEqual(status, 0, "porcupine")
    except unittest.SkipTest as reason:
        print(f"not checked with porcupine: {reason}", flush=True)
        for key in clients[0].history:
            whole = [entry for client in clients for entry in client.history[key]]
            test.assertTrue(linearizable(whole), f"{key}: {len(whole)} operations have no order that explains them")
    unknown = sum(entry[1] == FOREVER for c in clients for h in c.history.values() for entry in h)
    print(f"{len(records)} operations, {unknown} unknown", flush=True)


class ClusterCase(unittest.TestCase):
    """With a sandbox, and a cluster as soon as the test makes one; it is ended, and when the test fails each node's last words shown."""

    def setUp(self):
        self.box = Sandbox()
        self.box.__enter__()
        self.cluster = None
        self.addCleanup(self.tidy_up)

    def tidy_up(self):
        failed = any(error for _, error in getattr(self._outcome, "errors", [])) or any(
            problem[0] is self for kind in ("failures", "errors") for problem in getattr(getattr(self._outcome, "result", None), kind, []))
        if failed:
            for node in self.cluster.nodes if self.cluster else []:
                print(f"--- {node.log.name}", subprocess.run(["tail", "-n", "12", node.log.name], capture_output=True, check=False).stdout.decode())
        if self.cluster:
            self.cluster.end()
        self.box.__exit__(None, None, None)

    def fill(self, value):
        """Keys with this and their number."""
        pipe = Pipe(self.box)
        for n in range(KEYS):
            self.assertEqual(pipe.ask(op="insert", key=f"k{n}", value=f"{value}{n}", timeout_ms=SLOW * 1000)["status"], "ok")
        pipe.close()

    def read(self, value):
        """What fill() has written is there."""
        pipe = Pipe(self.box)
        for n in range(KEYS):
            self.assertEqual(pipe.ask(op="lookup", key=f"k{n}", timeout_ms=SLOW * 1000).get("value"), f"{value}{n}")
        pipe.close()


class ClusterTest(ClusterCase):
    def run_clients(self, disturb):
        """Runs clients while `disturb(round, progress)` does what it does; the history must be linearizable."""
        clients = [Client(self.box, n) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        count = lambda: sum(len(h) for c in clients for h in c.history.values())  # noqa: E731

        def progress(operations=200):
            mark = count()
            wait_for(lambda: count() > mark + operations or any(c.failure for c in clients), "progress", SLOW)
            self.assertEqual([c.failure for c in clients if c.failure], [])

        progress()
        for number in range(ROUNDS):
            disturb(number, progress)
        progress()
        for client in clients:
            client.stopping = True
        for client in clients:
            client.join(SLOW)
            client.pipe.close()
        self.assertEqual([c.failure for c in clients if c.failure], [])
        check(self, self.box, clients)

    def test_any_node_may_be_killed(self):
        self.cluster = cluster = Cluster(self.box, 3)

        def disturb(number, progress):
            node = cluster.nodes[number % 3]
            node.kill()
            progress()  # two of three go on
            node.start()
            cluster.wait_until_safe()

        self.run_clients(disturb)

    def test_a_frozen_node_is_replaced_and_answers_nothing_old_when_it_wakes(self):
        self.cluster = cluster = Cluster(self.box, 3)

        def disturb(number, progress):
            node = cluster.nodes[random.Random(number).randrange(3)]
            node.process.send_signal(signal.SIGSTOP)
            progress()
            node.process.send_signal(signal.SIGCONT)
            progress()
            cluster.wait_until_safe()

        self.run_clients(disturb)

    def test_everything_acknowledged_survives_the_end_of_all_processes(self):
        self.cluster = cluster = Cluster(self.box, 3)
        pipe = Pipe(self.box)
        for n in range(300):
            self.assertEqual(pipe.ask(op="insert", key=f"k{n}", value=str(n))["status"], "ok")
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        for n in range(300):
            self.assertEqual(pipe.ask(op="lookup", key=f"k{n}", timeout_ms=SLOW * 1000)["value"], str(n))
        pipe.close()

    def test_what_may_be_old_is_read_while_nobody_leads(self):
        self.cluster = cluster = Cluster(self.box, 3)
        pipe = Pipe(self.box)
        keys = [f"k{n}" for n in range(6)]
        for key in keys:
            self.assertEqual(pipe.ask(op="insert", key=key, value=key)["status"], "ok")

        def all_read():  # False: the third has not heard yet that they are committed
            for node in cluster.nodes[:2]:
                node.process.send_signal(signal.SIGSTOP)
            try:
                for key in keys:  # a lease that the third has ends first
                    wait_for(lambda: pipe.ask(op="lookup", key=key, timeout_ms=500)["status"] == "fail", "nobody to lead", SLOW)
                answers = [pipe.ask(op="lookup", key=key, eventual=True, timeout_ms=SLOW * 1000) for key in keys]
            finally:
                for node in cluster.nodes[:2]:
                    node.process.send_signal(signal.SIGCONT)
            return [answer.get("value") for answer in answers] == keys

        wait_for(all_read, "what was acknowledged to be readable at the third", SLOW)
        pipe.close()

    def test_the_logs_tell_the_story_of_a_failover_in_order(self):
        self.cluster = cluster = Cluster(self.box, 3)
        wait_for(lambda: min(one["leads"] for one in cluster.status()["nodes"]) > 0, "something to lead for each node", SLOW)
        victim, number = cluster.nodes[0], 1
        old = f"{1024 * (number - 1)}."  # its instances, in whatever life

        def story(nodes):
            lines = []
            for node in nodes:
                with open(node.log.name, encoding="utf-8") as file:
                    lines += [line for line in file if re.match(r"\d{4}-\d\d-\d\dT", line)]
            return sorted(lines)  # all on one clock

        def tells(lines, *patterns):
            at = 0
            for pattern in patterns:
                found = [i for i in range(at, len(lines)) if re.search(pattern, lines[i])]
                if not found:
                    return False
                at = found[0] + 1
            return True
        before = len(story(cluster.nodes))
        victim.kill()  # and before it is started again, all that follows from that is seen
        self.assertEqual(Pipe(self.box).ask(op="insert", key="k", value="v", timeout_ms=SLOW * 1000)["status"], "ok")
        wait_for(lambda: tells(story(cluster.nodes)[before:], f"zht.witness node={number} .*has ended; the cluster knows"), "the witness", SLOW)
        died = (r"warn zht\.manager node=1 incarnation=1 a node's process has ended, says its witness",
                rf"info zht\.view .*\d+\.\d+ leads after {re.escape(old)}1, ", r"warn zht\.safety .*partitions lack copies")
        wait_for(lambda: tells(story(cluster.nodes[1:])[before // 3:], *died), "the story of its end", SLOW)
        # What an operator sees: the two others have everything, and the third copy is missing.
        expected = (r"(?s)DATA IS NOT SAFE: 2 of 3 keepers live; 64 partitions have fewer copies than wanted\n.*"
                    rf"\n +1 +{re.escape(victim.address)} +[^\n]* silent, keeper\n")
        wait_for(lambda: re.search(expected, self.box.out("zht", "status")), "status to say that copies are missing", SLOW)
        victim.start()
        cluster.wait_until_safe()
        self.assertIn("data is safe: 3 of 3 keepers live", self.box.out("zht", "status"))

        def calm(node):
            ones = self.box.json("zht", "status", "--json", "--cluster", node.address)["instances"]
            return all(one["leases"] == one["partitions"] and one["behind"] == one["sending"] == one["receiving"] == 0 for one in ones)
        wait_for(lambda: all(map(calm, cluster.nodes)), "a lease for everything, and nobody behind", SLOW)
        back = (*died, rf"info zht\.view .*{re.escape(old)}\d+ learns",
                r"info zht\.safety .*data are safe")
        wait_for(lambda: tells(story(cluster.nodes[1:]), *back), "the story of its return", SLOW)
        for node in cluster.nodes:  # nobody is told of what did not happen
            node.log.flush()
        self.assertFalse([line for line in story(cluster.nodes) if " error " in line])

    def settled(self):
        """Nothing is moved to and fro: the table stays as it is for a while."""
        seen = {}

        def same():
            version, now = self.cluster.status().get("table_version"), time.monotonic()
            return now - seen.setdefault(version, now) > 1.5
        wait_for(same, "a table that stays as it is", SLOW)

    def rolling_restart(self, count, end=Node.stop):
        """Nodes are ended and started again, one after the other, while one client appends and another reads: every one of them,
        but of five only two in the short form."""
        self.cluster = cluster = Cluster(self.box, count)
        stopping, appends, lookups, longest = [], [], [], {"append": 0.0, "lookup": 0.0}

        def work(answers, operation):
            pipe, n = Pipe(self.box), 0
            while not stopping:
                n += 1
                start = time.monotonic()
                answers.append(pipe.ask(key=f"k{n % 50}", timeout_ms=SLOW * 1000, **operation)["status"])
                longest[operation["op"]] = max(longest[operation["op"]], time.monotonic() - start)
            pipe.close()

        workers = [harness.threading.Thread(target=work, args=(appends, {"op": "append", "value": "x"})),
                   harness.threading.Thread(target=work, args=(lookups, {"op": "lookup"}))]
        for worker in workers:
            worker.start()
        try:
            for _ in range(rounds(1, 20)):
                for node in cluster.nodes[:rounds(2 if count == 5 else count, count)]:
                    end(node)
                    with open(node.log.name, encoding="utf-8") as log:  # it went without waiting for a time to be over
                        self.assertNotIn("could be handed over", log.read())
                    marks = len(appends), len(lookups)
                    wait_for(lambda: len(appends) > marks[0] + 50 and len(lookups) > marks[1] + 50, "progress", SLOW)  # noqa: B023
                    if count == 5 and node is cluster.nodes[0]:
                        self.settled()
                    node.start()
                    cluster.wait_until_safe()
        finally:
            stopping.append(True)
            for worker in workers:
                worker.join(SLOW)
        self.assertEqual(set(appends), {"ok"})
        self.assertLessEqual(set(lookups), {"ok", "notfound"})
        total = sum(len(self.box.out("zht", "lookup", f"k{k}", "--raw")) for k in range(50))
        self.assertEqual(total, len(appends), "each append once")
        took = ", ".join(f"the longest {name} {1000 * seconds:.0f} ms" for name, seconds in longest.items())
        print(f"{rounds(1, 20)} rolling restarts of {count} nodes: {len(appends)} appends, {len(lookups)} lookups, no error; {took}", flush=True)

    def test_a_rolling_restart_of_three_nodes_shows_no_error(self):
        self.rolling_restart(3)

    def test_a_rolling_restart_of_five_nodes_shows_no_error(self):
        self.rolling_restart(5)

    def test_kill_9_of_one_node_after_the_other_shows_no_error(self):
        self.rolling_restart(5, Node.kill)

    def test_it_grows_out_of_one_node_and_shrinks_again(self):
        self.cluster = cluster = Cluster.__new__(Cluster)
        cluster.box, cluster.nodes = self.box, [Node(self.box, 1, "--instances", "1", "--partitions", "64").start()]
        cluster.use()
        wait_for(lambda: self.box.run("zht", "status", expect=None) and self.box.status == 0, "the first node", SLOW)
        for n in range(100):
            self.box.out("zht", "insert", f"k{n}", str(n)) if n < 3 else None
        pipe = Pipe(self.box)
        for n in range(100):
            self.assertEqual(pipe.ask(op="insert", key=f"k{n}", value=str(n))["status"], "ok")
        for number in (2, 3, 4):
            cluster.nodes.append(Node(self.box, number, "--instances", "1", "--join", cluster.nodes[0].address).start())
            cluster.wait_until_safe()
            with open(cluster.nodes[-1].log.name, encoding="utf-8") as log:  # nothing is wrong with a join
                self.assertNotIn(" warn ", log.read())

        def even():
            leads = [one["leads"] for one in cluster.status().get("nodes", [])]
            return len(leads) == 4 and max(leads) - min(leads) <= 2

        wait_for(even, "as many partitions on each node", SLOW)
        self.assertEqual([one["node"] for one in cluster.status()["nodes"]], [1, 2, 3, 4])
        table = self.box.json("zht", "members", "--json")
        self.box.run("zht", "migrate", "5", "--to", str(table["instances"][0]["id"]))
        # The first node kept the table alone; now there are three who do, and any one of them may die.
        wait_for(lambda: cluster.status()["keepers"] == 3, "three keepers", SLOW)
        pipe.close()
        cluster.use()
        pipe = Pipe(self.box)  # that knows all of them
        cluster.nodes[0].kill()
        for n in range(100):
            self.assertEqual(pipe.ask(op="append", key=f"k{n}", value="+", timeout_ms=SLOW * 1000)["status"], "ok")
        cluster.nodes[0].start()
        cluster.wait_until_safe()
        self.box.run("zht", "leave", "--yes", "--cluster", cluster.nodes[3].address)
        cluster.nodes[3].process.wait(SLOW)
        cluster.nodes.pop()
        cluster.use()
        cluster.wait_until_safe()
        for n in range(100):
            self.assertEqual(pipe.ask(op="lookup", key=f"k{n}")["value"], f"{n}+")
        pipe.close()

    def test_who_is_killed_while_joining_finds_the_others_in_its_next_life(self):
        self.cluster = cluster = Cluster(self.box, 1)
        for number in (2, 3, 4):
            node = Node(self.box, number, "--instances", "1", "--join", cluster.nodes[0].address)
            cluster.nodes.append(node.start())
            while not os.path.exists(os.path.join(node.data, "node.json")) and node.process.poll() is None:
                pass
            node.kill()
            node.start()
            cluster.wait_until_safe()
        self.assertEqual(len({one["node"] for one in cluster.status()["nodes"]}), 4)

    def test_a_name_server_that_is_silent_holds_up_those_alone_who_go_by_name(self):
        """One of two nodes is known by name, which takes this client eight seconds to look up; keys of the other are answered at once."""
        if shutil.which("cc") is None:
            self.skipTest("no compiler for a slow getaddrinfo")
        with open(self.box.path("slow.c"), "w", encoding="ascii") as file:
            file.write("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <netdb.h>\n#include <string.h>\n#include <unistd.h>\n"
                       "int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints, struct addrinfo** found) {\n"
                       "  int (*real)(const char*, const char*, const struct addrinfo*, struct addrinfo**) = dlsym(RTLD_NEXT, \"getaddrinfo\");\n"
                       "  if (node && !strcmp(node, \"localhost\") && !(hints && (hints->ai_flags & AI_NUMERICHOST))) sleep(8);\n"
                       "  return real(node, service, hints, found);\n}\n")
        self.box.run("cc", "-shared", "-fPIC", "-o", self.box.path("slow.so"), self.box.path("slow.c"))
        self.cluster = cluster = Cluster(self.box, 1)
        cluster.nodes.append(Node(self.box, 2, "--instances", "1", "--join", cluster.nodes[0].address, "--advertise", "localhost").start())
        cluster.wait_until_safe()
        wait_for(lambda: min(one["leads"] for one in cluster.status()["nodes"]) > 20, "both to lead", SLOW)
        self.box.environment["LD_PRELOAD"] = self.box.path("slow.so")
        pipe = Pipe(self.box, "--pipeline", "100", "--cluster", cluster.nodes[0].address)
        del self.box.environment["LD_PRELOAD"]
        for n in range(40):
            pipe.send(op="insert", key=f"k{n}", value="v", timeout_ms=60_000)
        began = time.monotonic()

        def there():
            return int(self.box.out("zht", "scan", "--count"))
        wait_for(lambda: there() >= 8, "keys of the node that goes by number", SLOW)
        self.assertLess(time.monotonic() - began, 6)
        self.assertLess(there(), 40, "keys of the other wait")
        for _ in range(40):
            self.assertEqual(pipe.receive()["status"], "ok")
        pipe.close()

    def test_who_may_not_listen_takes_no_number(self):
        self.cluster = cluster = Cluster(self.box, 1)
        seed = cluster.nodes[0].address
        _, err = self.box.run("zht", "serve", "--data", self.box.path("open"), "--listen", f"0.0.0.0:{free_port()}", "--join", seed, expect=2,
                              env={"XDG_DATA_HOME": self.box.path("knows-no-secret")})
        self.assertIn("unauthenticated", err)
        cluster.nodes.append(Node(self.box, 2, "--instances", "1", "--join", seed).start())
        cluster.wait_until_safe()
        self.assertEqual([one["node"] for one in cluster.status()["nodes"]], [1, 2])

    def test_who_ends_while_it_is_emptied_has_not_left(self):
        self.cluster = cluster = Cluster(self.box, 3)
        leaver = cluster.nodes[2]
        asked = self.box.start("zht", "leave", "--yes", "--cluster", leaver.address, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertIn("is being emptied", asked.stderr.readline())
        leaver.kill()
        said = asked.stderr.read()
        self.assertEqual(asked.wait(SLOW), 5, said)
        self.assertIn("node 3 ended before it was empty", said)
        leaver.start()
        cluster.wait_until_safe()

    def test_stopped_one_after_another_the_last_do_not_wait_for_keepers_that_ended(self):
        self.cluster = cluster = Cluster(self.box, 5)
        for node in cluster.nodes:
            node.stop()
            with open(node.log.name, encoding="utf-8") as log:
                self.assertNotIn("handed over in time", log.read())
        for node in cluster.nodes:
            node.start()
        cluster.wait_until_safe()

    def test_a_lost_keeper_is_replaced_and_one_that_leaves_hands_over(self):
        self.cluster = cluster = Cluster(self.box, 5)
        pipe = Pipe(self.box)
        for n in range(50):
            self.assertEqual(pipe.ask(op="insert", key=f"k{n}", value=str(n))["status"], "ok")
        keepers = lambda: [one["node"] for one in cluster.status().get("nodes", []) if one["keeper"]]  # noqa: E731
        self.assertEqual(keepers(), [1, 2, 3])
        # Were the lost one not replaced, nobody could decide anything once two of the three were lost.
        for lost, kept in ((0, [2, 3, 4]), (1, [3, 4, 5])):
            cluster.nodes[lost].kill()
            wait_for(lambda: keepers() == kept, f"another keeper in place of node {lost + 1}", SLOW)  # noqa: B023
        cluster.wait_until_safe(3)
        for n in range(50):
            self.assertEqual(pipe.ask(op="append", key=f"k{n}", value="+", timeout_ms=SLOW * 1000)["status"], "ok")
        for back in (0, 1):
            cluster.nodes[back].start()
        cluster.wait_until_safe()
        # One that keeps leaves: others keep before it ends.
        self.box.run("zht", "leave", "--yes", "--cluster", cluster.nodes[2].address)
        cluster.nodes[2].process.wait(SLOW)
        cluster.nodes.pop(2)
        cluster.use()
        wait_for(lambda: len(keepers()) == 3 and 3 not in keepers(), "three keepers without the one that left", SLOW)
        cluster.wait_until_safe()
        for n in range(50):
            self.assertEqual(pipe.ask(op="lookup", key=f"k{n}")["value"], f"{n}+")
        pipe.close()

    def test_an_operation_is_one_request_and_one_reply(self):
        self.cluster = cluster = Cluster(self.box, 3)
        bench = ("zht", "bench", "--operation", "mix", "--connections", "2", "--count", "4000", "--keys", "500", "--json")
        wait_for(lambda: self.box.json(*bench)["redirects"] == 0, "a settled cluster", SLOW)  # the balancer may still be at it
        settled = self.box.json(*bench)
        self.assertEqual((settled["requests"], settled["replies"], settled["redirects"]), (4000, 4000, 0))
        # A client with an old table: after its partition has moved it is told once where to.
        pipe = Pipe(self.box)
        pipe.ask(op="insert", key="k", value="1")
        before = cluster.status()["table_version"]
        instances = [one["id"] for one in self.box.json("zht", "members", "--json")["instances"]]
        redirects = lambda: sum(one["redirects"] for node in cluster.nodes  # noqa: E731
                                for one in self.box.json("zht", "status", "--json", "--cluster", node.address)["instances"])
        for to in instances[:2]:  # one of the two is not where they are
            self.box.run("zht", "migrate", *map(str, range(64)), "--to", str(to))
            told = redirects()
            self.assertEqual(pipe.ask(op="append", key="k", value="2")["status"], "ok")
            self.assertLessEqual(redirects() - told, 1)
        self.assertGreater(cluster.status()["table_version"], before)
        pipe.close()

    def test_a_partition_moves_to_any_instance(self):
        self.cluster = Cluster(self.box, 2, instances=2)
        self.box.run("zht", "insert", "k", "v")
        instances = [one["id"] for one in self.box.json("zht", "members", "--json")["instances"]]
        self.assertEqual(instances, [0, 1, 1024, 1025])
        for to in instances + instances[:1]:  # to its own node's other instance, too
            self.box.run("zht", "migrate", *map(str, range(8)), "--to", str(to), "--timeout", f"{SLOW}s", timeout=SLOW)
            self.assertEqual(self.box.out("zht", "lookup", "k"), "v")

    def test_the_readmes_commands(self):
        for number, command, expected in commands(os.path.join(harness.TREE, "zht", "README.md")):
            out, _ = self.box.run("bash", "-c", command.replace("/tmp/zht-", self.box.path("c")))
            self.assertTrue(fnmatch.fnmatchcase(out, expected.replace("...", "*")), f"zht/README.md:{number}: {command}: printed {out!r}")


if __name__ == "__main__":
    harness.main()

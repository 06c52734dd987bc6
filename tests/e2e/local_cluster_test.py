#!/usr/bin/env python3
"""`zht cluster up`, `down` and `status` as people use them: three nodes to try things out on, one killed, one more, all ended."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import unittest

import harness
from harness import Sandbox, alive, wait_for


class LocalCluster(unittest.TestCase):
    def up(self, box, count, *more, **options):
        out = box.out("zht", "cluster", "up", count, "--partitions", "64", *more, **options)
        self.assertRegex(out, r"^export ZHT_CLUSTER=127\.0\.0\.1:\d+(,127\.0\.0\.1:\d+)*$")
        return out.split("=", 1)[1]

    def nodes(self, box, expect=0):
        return json.loads(box.run("zht", "cluster", "status", "--json", expect=expect)[0])["nodes"]

    @staticmethod
    def last(node, what):
        with open(os.path.join(node["data"], "node.log"), encoding="utf-8") as log:
            return [line.split()[0] for line in log if line.rstrip().endswith("zht.manager " + what)][-1]

    def test_up_use_kill_up_grow_down(self):
        with Sandbox() as box:
            box.run("zht", "cluster", "status", expect=3)
            box.run("zht", "cluster", "down", expect=3)
            addresses = self.up(box, 3)
            self.assertEqual(len(addresses.split(",")), 3)
            away = {"ZHT_CLUSTER": addresses}
            for n in range(30):
                box.run("zht", "insert", f"k{n}", f"v{n}", env=away)
            before = self.nodes(box)
            self.assertEqual([n["state"] for n in before], ["serves"] * 3)
            self.assertEqual(self.up(box, 3), addresses, "again: nothing to do")
            self.assertEqual([n["pid"] for n in self.nodes(box)], [n["pid"] for n in before])
            # Data is on more than one node: when one dies, all of it is still there.
            wait_for(lambda: all(n["keys"] > 0 for n in self.nodes(box)), "copies on all nodes")
            victim = before[0]  # any one may die, the first too
            os.kill(victim["pid"], 9)
            wait_for(lambda: not alive(victim["pid"]), "its end")
            for n in range(30):
                self.assertEqual(box.out("zht", "lookup", f"k{n}", env=away), f"v{n}")
            self.assertEqual(self.nodes(box, expect=5)[0]["state"], "not running")
            self.up(box, 3)
            self.assertNotEqual(self.nodes(box)[0]["pid"], victim["pid"])
            grown = self.up(box, 4)
            self.assertEqual(grown.split(",")[:3], addresses.split(","))
            self.assertEqual(len(self.nodes(box)), 4)
            self.assertIn("cluster of 4", box.run("zht", "cluster", "up", "2", expect=2)[1])
            # A node that is not of this cluster stays.
            box.run("zht", "serve", "--background")
            own = box.node_pid()
            pids = [n["pid"] for n in self.nodes(box)]
            box.run("zht", "cluster", "down")
            self.assertFalse([p for p in pids if alive(p)])
            self.assertTrue(alive(own))
            # None handed its partitions to another that was to end next: all were asked before the last but one had ended.
            self.assertLess(self.last(before[0], "asked to stop"), self.last(before[1], "stopped"))
            self.up(box, 4)  # the data is there again
            for n in range(30):
                self.assertEqual(box.out("zht", "lookup", f"k{n}", env={"ZHT_CLUSTER": grown}), f"v{n}")
            box.run("zht", "cluster", "down", "--remove")
            self.assertFalse(re.findall(r"cluster\.json|\d", " ".join(os.listdir(box.data + "-cluster"))))

    def test_a_node_whose_data_is_gone_comes_back_as_another(self):
        with Sandbox() as box:
            addresses = self.up(box, 3)
            away = {"ZHT_CLUSTER": addresses}
            for n in range(10):
                box.run("zht", "insert", f"k{n}", f"v{n}", env=away)
            wait_for(lambda: "data is safe" in box.run("zht", "status", env=away, expect=None)[0], "copies of everything")
            victim = self.nodes(box)[0]
            os.kill(victim["pid"], 9)
            wait_for(lambda: not alive(victim["pid"]), "its end")
            shutil.rmtree(victim["data"])
            _, err = box.run("zht", "cluster", "up", "3", "--partitions", "64")
            self.assertIn("joined as a new node", err)
            wait_for(lambda: "data is safe" in box.run("zht", "status", env=away, expect=None)[0], "copies of everything")

            def living():
                return [one["node"] for one in box.json("zht", "status", "--json", env=away)["cluster"]["nodes"] if one["lives"]]
            wait_for(lambda: living() == [2, 3, 4], "the news that the node it was is gone")
            for n in range(10):
                self.assertEqual(box.out("zht", "lookup", f"k{n}", env=away), f"v{n}")
            box.run("zht", "cluster", "down", "--remove")

    def test_whoever_starts_a_dead_node_starts_it_as_it_was(self):
        """All nodes killed; clients of their folders, whose environment says nothing of how to be a node, bring them back."""
        with Sandbox() as box:
            addresses = self.up(box, 3, "--durability", "always")
            away = {"ZHT_CLUSTER": addresses}
            box.run("zht", "insert", "k", "v", env=away)
            wait_for(lambda: "data is safe" in box.run("zht", "status", env=away, expect=None)[0], "copies of everything")
            nodes = self.nodes(box)
            pipes = [harness.Pipe(box, "--data", node["data"], "--timeout", "100s") for node in nodes]
            try:
                for pipe in pipes:
                    self.assertEqual(pipe.ask(op="lookup", key="k")["value"], "v")
                for node in nodes:
                    os.kill(node["pid"], 9)
                wait_for(lambda: not any(alive(node["pid"]) for node in nodes), "their end")
                for n, pipe in enumerate(pipes):
                    pipe.send(op="insert", key=f"after{n}", value="v")
                for pipe in pipes:
                    self.assertEqual(pipe.receive()["status"], "ok")
            finally:
                for pipe in pipes:
                    pipe.close()
            # Two of them answer for the third, while that still begins.
            serve = [("serves", n["address"]) for n in nodes]
            wait_for(lambda: [(n["state"], n["address"]) for n in self.nodes(box, expect=None)] == serve, "all of them to serve as they did")
            wait_for(lambda: "data is safe: 3 of 3" in box.run("zht", "status", env=away, expect=None)[0], "copies of everything again")
            # One of a cluster is never started on its unix socket alone; who says nothing of an address means the one it had.
            victim = self.nodes(box)[0]
            os.kill(victim["pid"], 9)
            wait_for(lambda: not alive(victim["pid"]), "its end")
            box.run("zht", "serve", "--background", "--data", victim["data"])
            self.assertEqual(self.nodes(box)[0]["state"], "serves")
            box.run("zht", "stop", "--data", victim["data"])
            self.up(box, 3)
            for node in nodes:
                self.assertEqual(box.json("zht", "status", "--json", "--data", node["data"])["durability"], "always")
            box.run("zht", "stop", "--data", victim["data"])
            os.unlink(os.path.join(victim["data"], "served.toml"))
            err = box.run("zht", "serve", "--data", victim["data"], expect=2)[1]
            self.assertIn("--listen", err)
            box.run("zht", "cluster", "down", "--remove")

    def test_what_the_command_line_says_wins(self):
        """After the line that `cluster up` suggests, --data names the node that is meant all the same."""
        with Sandbox() as box:
            addresses = self.up(box, 4)
            away = {"ZHT_CLUSTER": addresses}
            wait_for(lambda: "data is safe" in box.run("zht", "status", env=away, expect=None)[0], "copies of everything")
            nodes = self.nodes(box)
            for node in nodes:
                self.assertEqual(box.json("zht", "status", "--json", "--data", node["data"], env=away)["pid"], node["pid"])
            _, err = box.run("zht", "leave", env=away, expect=2)
            self.assertIn("4 nodes are named", err)
            _, err = box.run("zht", "leave", "--data", nodes[3]["data"], env=away, expect=2)
            self.assertIn("--yes", err)
            self.assertIn(nodes[3]["data"], err)
            _, err = box.run("zht", "leave", "--yes", "--data", nodes[3]["data"], env=away)
            self.assertIn("node 4", err)
            self.assertEqual([n["state"] for n in self.nodes(box, expect=5)], ["serves"] * 3 + ["not running"])
            # A mistyped folder is no reason to start a node there, for who only looks.
            mistyped = box.path("mistyped")
            for argv in (("zht", "lookup", "k"), ("zht", "scan"), ("zht", "callback", "k"), ("fabriq", "list"), ("fabriq", "pop", "q"),
                         ("matrix", "status")):
                if harness.lacking(argv[0]):
                    continue
                _, err = box.run(*argv, "--data", mistyped, env=away, expect=5)
                self.assertIn(mistyped, err)
                self.assertFalse(os.path.exists(os.path.join(mistyped, "node.json")), argv)
            _, err = box.run("zht", "insert", "k", "v", "--data", mistyped, env=away)
            self.assertIn(f"zht stop --data {mistyped}", err)
            box.run("zht", "lookup", "k", "--data", mistyped)
            box.run("zht", "stop", "--data", mistyped)
            box.run("zht", "cluster", "down", "--remove")

    def test_who_interrupts_is_told_what_goes_on(self):
        with Sandbox() as box:
            try:
                for _ in range(10):  # it may be done before it is interrupted
                    up = box.start("zht", "cluster", "up", "5", "--partitions", "64", text=True)
                    first = up.stderr.readline()
                    up.send_signal(signal.SIGINT)
                    _, err = up.communicate(timeout=harness.DEADLINE)
                    states = [n["state"] for n in self.nodes(box, expect=None)]
                    if up.returncode == -signal.SIGINT:
                        break
                    box.run("zht", "cluster", "down", "--remove")
                self.assertIn("node 1 serves", first)
                self.assertIn("zht: interrupted; nodes that were started go on: zht cluster up starts the rest", err)
                self.assertNotEqual(states[0], "not running")
                self.up(box, 5)
                self.assertEqual([n["state"] for n in self.nodes(box)], ["serves"] * 5)
            finally:
                box.run("zht", "cluster", "down", "--remove", expect=None)

    def test_a_full_disk_is_named(self):
        with Sandbox() as box:
            folder = box.path("full")
            os.mkdir(folder, 0o700)
            mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", folder]
            if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
                self.skipTest("no file system of its own can be mounted here")
            try:
                with open(os.path.join(folder, "filler"), "wb", buffering=0) as file, self.assertRaises(OSError):
                    while True:
                        file.write(bytes(4096))
                _, err = box.run("zht", "serve", "--background", "--data", os.path.join(folder, "node"), expect=None)
                self.assertNotEqual(box.status, 0)
                self.assertRegex(err, "(?i)no space left on .*device")
            finally:
                subprocess.run(["umount", folder], check=True)

    def test_what_is_wrong_is_said(self):
        with Sandbox() as box, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            err = box.run("zht", "cluster", "up", "1", "--port", port, expect=4)[1]
            self.assertIn(str(port), err)
            self.assertIn("taken", err)
            box.run("zht", "cluster", "up", "0", expect=2)
            folder = box.path("c")
            addresses = box.out("zht", "cluster", "up", "1", "--dir", folder).split("=", 1)[1]
            box.run("zht", "cluster", "down", "--dir", folder)
            with socket.socket() as thief:  # somebody has its port now
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.bind(("127.0.0.1", int(addresses.rsplit(":", 1)[1])))
                thief.listen()
                err = box.run("zht", "cluster", "up", "1", "--dir", folder, expect=4)[1]
                self.assertIn("node 1 at " + addresses, err)
            # A node that cannot come up: its folder is not a folder of ours.
            with open(os.path.join(folder, "1", "node.json"), "w", encoding="ascii") as file:
                file.write("{}")
            err = box.run("zht", "cluster", "up", "1", "--dir", folder, expect=None)[1]
            self.assertNotEqual(box.status, 0)
            self.assertIn("node.json", err)
            with open(os.path.join(folder, "cluster.json"), "w", encoding="ascii") as file:
                file.write("[]")
            self.assertIn("cluster.json", box.run("zht", "cluster", "status", "--dir", folder, expect=7)[1])


if __name__ == "__main__":
    harness.main()

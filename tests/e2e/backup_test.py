#!/usr/bin/env python3
"""`zht backup` and `zht restore`: of one node, of a live cluster under load with a mount, onto other numbers of nodes, partitions and
instances; what is damaged, unfinished, newer or full is refused by name."""
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
import unittest

import harness
from cluster_test import SLOW, Cluster, ClusterCase, Node
from files_test import digest
from harness import Pipe, Sandbox, rounds, wait_for


def backup(box, *options, **more):
    return box.json("zht", "backup", box.path("backups"), "--json", *options, **more)


def keys_of(listed):
    return {line.split("\t")[0] for line in listed.splitlines()}


class Restored:
    """A backup as a node of its own."""

    def __init__(self, box, name, *options):
        self.box, self.data = box, box.path(name)
        self.told = box.json("zht", "restore", box.path("backups"), "--json", "--data", self.data, *options)

    def __enter__(self):
        self.box.run("zht", "serve", "--background", "--data", self.data, env={"ZHT_CLUSTER": ""})
        return self

    def __exit__(self, *_):
        self.box.run("zht", "stop", "--data", self.data, env={"ZHT_CLUSTER": ""})

    def out(self, *argv, **more):
        return self.box.out(*argv, "--data", self.data, env={"ZHT_CLUSTER": ""}, **more)

    def lookup(self, key):
        return json.loads(self.out("zht", "lookup", key, "--json"))

    def keys(self):
        return keys_of(self.out("zht", "scan"))


class Lone(unittest.TestCase):
    def test_what_was_there_comes_back_with_other_partitions_and_instances(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--partitions", "32", "--instances", "2")
            box.run("zht", "backup", box.path("backups"), "--incremental", expect=3)
            lines = "".join(json.dumps({"op": "insert", "key": f"k{n}", "value": f"v{n}" * (n % 7 + 1)}) + "\n" for n in range(500))
            box.run("zht", "pipe", input=lines)
            for piece in ("one", "", "three"):
                box.run("zht", "append", "fragments", piece)
            box.run("zht", "insert", "short", "v", "--ttl", "1h")
            box.run("zht", "insert", "big", "-", input=b"\xff" * 3_000_000)
            first = backup(box)
            self.assertEqual((first["backup"], first["builds_on"], first["entries"]), (1, None, 503))
            versions = {key: json.loads(box.out("zht", "lookup", key, "--json"))["version"] for key in ("k1", "k2", "fragments")}
            box.run("zht", "insert", "k1", "changed")
            box.run("zht", "remove", "k2")
            box.run("zht", "insert", "more", "1")
            second = backup(box, "--incremental")
            self.assertEqual((second["builds_on"], second["entries"], second["removed"]), (1, 2, 1))
            self.assertLess(second["size_bytes"], first["size_bytes"] // 100)
            third = backup(box, "--incremental")
            self.assertEqual((third["entries"], third["removed"], third["changed_partitions"]), (0, 0, 0))
            self.assertEqual(box.json("zht", "backup", box.path("backups"), "--verify", "--json")["keys"], 503)
            listed = box.json("zht", "backup", box.path("backups"), "--list", "--json")
            self.assertEqual([one["backup"] for one in listed], [1, 2, 3])
            later = json.loads(box.out("zht", "insert", "k1", "later still", "--json"))["version"]
            for number, options in ((1, ()), (1, ("--partitions", "5")), (3, ("--instances", "3")), (3, ("--partitions", "100"))):
                with Restored(box, f"r{number}-{len(options)}-{options[-1:]}", "--number", str(number), *options) as now:
                    self.assertEqual(now.told["keys"], 503)
                    self.assertEqual(len(now.keys()), 503)
                    for n in (0, 3, 77, 499):
                        self.assertEqual(now.out("zht", "lookup", f"k{n}"), f"v{n}" * (n % 7 + 1))
                    self.assertEqual(now.out("zht", "lookup", "k1"), "v1v1" if number == 1 else "changed")
                    if number == 1:
                        self.assertEqual(now.lookup("k2")["version"], versions["k2"])
                    else:
                        box.run("zht", "lookup", "k2", "--data", now.data, expect=3)
                    found = now.lookup("fragments")
                    self.assertEqual((found["value"], found["fragment_count"], found["version"]), ("onethree", 3, versions["fragments"]))
                    self.assertEqual(now.lookup("big")["size_bytes"], 3_000_000)
                    # A version that was given out after the cut is not given out again.
                    again = json.loads(now.out("zht", "insert", "k1", "other", "--json"))["version"]
                    self.assertGreater(again, later)

    def test_times_to_live_go_on(self):
        with Sandbox() as box:
            box.run("zht", "insert", "short", "v", "--ttl", "3s")
            box.run("zht", "insert", "long", "v", "--ttl", "1h")
            backup(box)
            time.sleep(3.1)
            with Restored(box, "r") as now:
                self.assertEqual(now.out("zht", "lookup", "long"), "v")
                box.run("zht", "lookup", "short", "--data", now.data, expect=3)

    def test_what_is_wrong_is_refused_by_name(self):
        with Sandbox() as box:
            backups = box.path("backups")
            lines = "".join(json.dumps({"op": "insert", "key": f"k{n}", "value": "v" * 1000}) + "\n" for n in range(300))
            box.run("zht", "pipe", input=lines)
            backup(box)
            data = os.path.join(backups, "000001", "data")
            shutil.copy(data, box.path("kept"))
            with open(data, "r+b") as file:
                file.seek(os.path.getsize(data) // 2)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 16]))
            for command in (["backup", backups, "--verify"], ["restore", backups, "--data", box.path("r")]):
                _, err = box.run("zht", *command, expect=7)
                self.assertIn("000001/data offset ", err)
            self.assertFalse(os.path.exists(box.path("r")) or os.path.exists(box.path("r.restoring")))
            os.truncate(data, 1000)
            _, err = box.run("zht", "backup", backups, "--verify", expect=7)
            self.assertIn("1000 bytes", err)
            shutil.copy(box.path("kept"), data)
            box.run("zht", "backup", backups, "--verify")

            manifest = os.path.join(backups, "000001", "manifest.json")
            with open(manifest, encoding="utf-8") as file:
                text = file.read()
            for change, status, said in ((('"format": 1', '"format": 9'), 8, "format 9"), (('"entries": 300', '"entries": 301'), 7, "checksum")):
                with open(manifest, "w", encoding="utf-8") as file:
                    file.write(text.replace(*change))
                for command in (["backup", backups, "--verify"], ["backup", backups, "--incremental"], ["restore", backups, "--data", box.path("r")]):
                    _, err = box.run("zht", *command, expect=status)
                    self.assertIn(said, err)
            with open(manifest, "w", encoding="utf-8") as file:
                file.write(text)

            os.makedirs(box.path("full"))
            with open(box.path("full", "something"), "w", encoding="ascii"):
                pass
            _, err = box.run("zht", "restore", backups, "--data", box.path("full"), expect=4)
            self.assertIn("not empty", err)
            box.run("zht", "restore", backups, expect=2)
            box.run("zht", "restore", backups, "--number", "7", "--data", box.path("r"), expect=3)
            box.run("zht", "restore", box.path("nowhere"), "--data", box.path("r"), expect=3)
            # Another cluster's is not built on.
            box.run("zht", "stop")
            shutil.rmtree(box.data)
            box.run("zht", "insert", "other", "cluster")
            _, err = box.run("zht", "backup", backups, "--incremental", expect=4)
            self.assertIn("cluster", err)
            # What was killed in the middle is not there, and is said to be thrown away.
            os.makedirs(os.path.join(backups, "000002.new"))
            _, err = box.run("zht", "backup", backups)
            self.assertIn("000002.new did not come to its end", err)
            self.assertEqual(sorted(os.listdir(backups)), ["000001", "000002", "LOCK"])
            _, err = box.run("zht", "restore", backups, "--data", box.path("r"))
            os.makedirs(box.path("q.restoring"))
            _, err = box.run("zht", "restore", backups, "--data", box.path("q"))
            self.assertIn("q.restoring is of a restore", err)

    def test_a_full_disk_is_told_and_nothing_of_the_backup_stays(self):
        if os.geteuid() != 0:
            self.skipTest("not root: no small disk can be mounted")
        with Sandbox() as box:
            small = box.path("small")
            os.makedirs(small)
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], capture_output=True, check=False)
            if done.returncode != 0:
                self.skipTest("no small disk can be mounted")
            try:
                box.run("zht", "insert", "big", "-", input=b"x" * 3_000_000)
                _, err = box.run("zht", "backup", os.path.join(small, "b"), expect=6)
                self.assertIn(small, err)
                self.assertEqual(os.listdir(os.path.join(small, "b")), ["LOCK"])
                box.run("zht", "insert", "still", "there")  # nothing waits
            finally:
                subprocess.run(["umount", small], check=False)


class Pair(threading.Thread):
    """Two clients, of which the second writes what the first has written, one after the other."""

    def __init__(self, box, name):
        super().__init__()
        self.box, self.name, self.done, self.over, self.failed = box, name, 0, False, None

    def run(self):
        first, second = Pipe(self.box), Pipe(self.box)
        try:
            while not self.over:
                n = self.done
                for pipe, key in ((first, f"x-{self.name}-{n}"), (second, f"y-{self.name}-{n}")):
                    while pipe.ask(op="insert", key=key, value=str(n), timeout_ms=SLOW * 1000)["status"] != "ok":
                        if self.over:
                            return
                self.done = n + 1
        except Exception as error:  # pylint: disable=broad-except
            self.failed = error
        finally:
            first.close()
            second.close()


class Live(ClusterCase):
    def load(self, count=3):
        pairs = [Pair(self.box, str(n)) for n in range(count)]
        for pair in pairs:
            pair.start()

        def end():
            for pair in pairs:
                pair.over = True
            for pair in pairs:
                pair.join()
                self.assertIsNone(pair.failed)

        self.addCleanup(lambda: [setattr(pair, "over", True) or pair.join() for pair in pairs])
        return pairs, end

    def check_moment(self, keys, acknowledged):
        """All that was acknowledged before, and no effect without its cause."""
        for name, count in acknowledged.items():
            for n in range(count):
                self.assertIn(f"x-{name}-{n}", keys)
                self.assertIn(f"y-{name}-{n}", keys)
        alone = [key for key in keys if key.startswith("y-") and "x" + key[1:] not in keys]
        self.assertEqual(alone, [], "effects without their causes")

    def test_cuts_under_load_are_moments(self):
        self.cluster = Cluster(self.box, 3, instances=2)
        pairs, end = self.load()
        acknowledged, pauses = {}, []
        for number in range(1, rounds(6, 60) + 1):
            time.sleep(0.3)
            acknowledged[number] = {pair.name: pair.done for pair in pairs}
            told = backup(self.box, *(("--incremental",) if number > 1 else ()))
            self.assertEqual(told["backup"], number)
            pauses.append(told["pause_us"])
        end()
        self.assertGreater(sum(pair.done for pair in pairs), 50)
        print(f"{sum(pair.done for pair in pairs)} pairs, pauses of {min(pauses)} to {max(pauses)} us", flush=True)
        self.box.environment["ZHT_CLUSTER"] = ""
        for number, counts in acknowledged.items():
            with Restored(self.box, f"r{number}", "--number", str(number)) as now:
                self.check_moment(now.keys(), counts)
            shutil.rmtree(now.data)

    def test_a_node_that_dies_meanwhile(self):
        self.cluster = Cluster(self.box, 3)
        pairs, end = self.load(2)
        for number in range(1, 4):
            acknowledged = {pair.name: pair.done for pair in pairs}
            making = self.box.start("zht", "backup", self.box.path("backups"), "--json")
            time.sleep(0.05 * number)
            self.cluster.nodes[number % 3].kill()
            out, err = making.communicate(timeout=SLOW)
            # It is whole, or it says what went wrong and there is nothing of it.
            if making.returncode != 0:
                self.assertEqual(making.returncode, 5, err)
            else:
                self.check_moment_of(json.loads(out)["backup"], acknowledged)
            self.cluster.nodes[number % 3].start()
            self.cluster.wait_until_safe()
        end()
        backup(self.box)
        self.box.run("zht", "backup", self.box.path("backups"), "--verify")

    def test_a_backup_that_is_killed_leaves_nothing_waiting(self):
        self.cluster = Cluster(self.box, 3)
        pairs, end = self.load(2)
        for number in range(6):
            making = self.box.start("zht", "backup", self.box.path("backups"))
            time.sleep(0.01 * number)
            making.kill()
            making.communicate()
            before = [pair.done for pair in pairs]
            wait_for(lambda: all(pair.done > was for pair, was in zip(pairs, before)), "changes that go on", 10)
        began = time.monotonic()
        _, err = self.box.run("zht", "backup", self.box.path("backups"))
        self.assertLess(time.monotonic() - began, 20, err)
        end()
        self.assertEqual([name for name in os.listdir(self.box.path("backups")) if name.endswith(".new")], [])

    def check_moment_of(self, number, acknowledged):
        with Restored(self.box, f"r{number}", "--number", str(number)) as now:
            self.check_moment(now.keys(), acknowledged)

    def test_a_live_cluster_with_a_mount_comes_back_on_two_nodes(self):
        harness.need("fusionfs", fuse=True)
        box, self.cluster = self.box, Cluster(self.box, 3)
        mount = box.mount()
        tree = os.path.join(mount, "tree")
        shutil.copytree("/usr/include/linux", tree, symlinks=True)
        for n in range(6):
            with open(os.path.join(tree, f"big-{n}"), "wb") as file:
                file.write(hashlib.sha512(str(n).encode()).digest() * (1 << 14))  # 1 MiB
        with open(os.path.join(tree, "sparse"), "wb") as file:
            file.seek(70 << 20)
            file.write(b"far away")
        expected = digest(tree)
        busy, stop = os.path.join(mount, "busy"), threading.Event()
        os.makedirs(busy)

        def write_files():
            n = 0
            while not stop.is_set():
                with open(os.path.join(busy, f"f{n % 40}"), "wb") as file:
                    file.write(os.urandom(20_000))
                if n % 3 == 0 and n >= 40:
                    os.unlink(os.path.join(busy, f"f{n % 40}"))
                n += 1

        pairs, end = self.load(2)
        writer = threading.Thread(target=write_files)
        writer.start()
        self.addCleanup(lambda: stop.set() or writer.join())
        time.sleep(1)
        # From another node's place: chunks come through their server.
        elsewhere = ("--data", box.path("elsewhere"), "--cluster", box.environment["ZHT_CLUSTER"])
        first = backup(box, *elsewhere)
        self.assertGreaterEqual(first["parts"]["fusionfs"]["file_bytes"], 6 << 20)
        with open(os.path.join(tree, "big-3"), "r+b") as file:
            file.seek(500_000)
            file.write(b"changed")
        os.unlink(os.path.join(tree, "big-5"))
        expected = digest(tree)
        acknowledged = {pair.name: pair.done for pair in pairs}
        second = backup(box, "--incremental", *elsewhere)
        # The files that nobody changed are not copied again, of the one that was a piece.
        self.assertLess(second["parts"]["fusionfs"]["pack_bytes"], first["parts"]["fusionfs"]["pack_bytes"] // 3)
        stop.set()
        writer.join()
        end()
        box.run("zht", "backup", box.path("backups"), "--verify")
        data_bytes = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(tree) for name in names)
        print(f"{data_bytes} bytes of files; whole: {first['size_bytes']} bytes in {first['duration_ms']} ms, incremental: "
              f"{second['size_bytes']} bytes in {second['duration_ms']} ms, pauses {first['pause_us']} and {second['pause_us']} us; "
              f"moved on: {second['parts']['fusionfs']['moved_on']}, lost: {second['parts']['fusionfs']['lost']}", flush=True)
        box.umount(mount)
        self.cluster.end()

        one, two = Node(box, 11), Node(box, 12)
        box.environment["ZHT_CLUSTER"] = ""
        restored = box.json("zht", "restore", box.path("backups"), "--data", one.data, "--json")
        self.assertGreater(restored["parts"]["fusionfs"]["files"], 6)
        self.cluster.nodes = [one, two]
        one.start()
        self.cluster.use()
        wait_for(lambda: self.cluster.status().get("safe"), "the first node", SLOW)
        two.options = ("--join", one.address, "--instances", "1")
        two.start()

        def both_have_all():
            told = self.cluster.status()
            return told.get("safe") and sum(node["lives"] for node in told["nodes"]) == 2 and told["nodes"][1]["copies"] > 0

        wait_for(both_have_all, "two nodes with copies of everything", SLOW)
        keys = keys_of(box.out("zht", "scan"))
        self.check_moment(keys, acknowledged)
        again = box.mount("again", "--data", one.data)
        self.assertEqual(digest(os.path.join(again, "tree")), expected)
        for name in os.listdir(os.path.join(again, "busy")):
            with open(os.path.join(again, "busy", name), "rb") as file:
                self.assertIn(len(file.read()), (0, 20_000))
        box.umount(again)
        box.run("fusionfs", "fsck", "--data", one.data)
        box.run("fusionfs", "scrub", "--data", one.data)


if __name__ == "__main__":
    harness.main("zht")

#!/usr/bin/env python3
"""One tree mounted on three nodes, each in a network namespace: what one makes the others see; nodes are killed in the middle, their
stores and their mounts at once or one of them; contents are read from the copy that is left, and damage is healed when the node is
back. What the dead mount left in the middle those that live settle: fsck finds nothing, and is not asked to repair. SEED=n: who dies,
and when."""
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import unittest

import harness
from cluster import Cluster
from harness import need, rounds, wait_for
from network import Network

FILES = rounds(300, 20_000)  # that each mount makes
LARGE = rounds(5, 25)        # every so many a file has its bytes in chunks
DEATHS = rounds(2, 5)

# Makes files until it has made all of them or cannot; says a file's number when fsync has returned and it is closed. Beside them
# changes in two homes, for the crash to find one half done: directories, links and moves from one to another, removals.
MAKER = """
import os, sys
folder, mine, first, last, large = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
own = f"{folder}.{mine}"
for number in range(first, last):
    file = os.open(f"{folder}/{mine}-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    line = f"{mine}-{number};".encode()
    os.write(file, line * (1000 if number % large == 0 else 1))
    os.fsync(file)
    os.close(file)
    print(number, flush=True)
    at = f"{own}/{number % 7}-{first}"
    what = number % 5
    if what == 0:
        os.makedirs(at + "/deep", exist_ok=True)
        os.link(f"{folder}/{mine}-{number}", f"{own}/link-{number}")
    elif what == 1:
        os.makedirs(at, exist_ok=True)
        os.close(os.open(f"{own}/moved-{number}", os.O_WRONLY | os.O_CREAT))
        os.rename(f"{own}/moved-{number}", f"{at}/moved-{number}")
    elif what == 2 and os.path.exists(f"{own}/link-{number - 2}"):
        os.unlink(f"{own}/link-{number - 2}")
    elif what == 3 and os.path.exists(at + "/deep"):
        os.rename(at + "/deep", f"{own}/was-deep-{number}")
    elif what == 4 and os.path.exists(f"{own}/was-deep-{number - 1}"):
        os.rmdir(f"{own}/was-deep-{number - 1}")
"""


def content(mine, number):
    return f"{mine}-{number};".encode() * (1000 if number % LARGE == 0 else 1)


def forget_pages(path):
    """The kernel's: who reads next asks the mount."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def patiently(path):
    """A file's bytes. One that was written while its other node was dead has one copy, whose node has just come back."""
    def read():
        try:
            with open(path, "rb") as file:
                return [file.read()]
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
    return wait_for(read, f"{path} to be read")[0]


class Mount:
    """The tree as one node sees it. Mounted from the node's network, seen in everybody's folders."""

    def __init__(self, cluster, node, *options):
        self.cluster, self.node, self.options = cluster, node, options
        self.point = cluster.path("mnt-" + node.name)
        os.makedirs(self.point, exist_ok=True)

    def command(self, *argv):
        return ["nsenter", f"--net=/run/netns/{self.node.place.namespace}", *argv]

    def place(self):
        return ["--cluster", self.cluster.addresses(), "--data", self.node.data]

    def up(self):
        self.cluster.run(*self.command("fusionfs", "mount", *self.place(), *self.options, self.point))
        self.pid = wait_for(lambda: self.cluster.mount_pid(self.point), f"the process of {self.point}")

    def down(self):
        self.cluster.run(*self.command("fusionfs", "umount", *self.place(), self.point))

    def tool(self, *argv, **options):
        return self.cluster.run(*self.command("fusionfs", *argv, *self.place()), **options)

    def path(self, *names):
        return os.path.join(self.point, *names)

    def log(self):
        with open(os.path.join(self.node.data, "fusionfs.log"), encoding="utf-8", errors="replace") as file:
            return file.read()


class Tree(Cluster):
    """Three nodes and their mounts."""

    def __init__(self, *options, tls=False):
        super().__init__(nodes=3)
        self.options, self.tls, self.trees = options, tls, []

    def __enter__(self):
        super().__enter__()
        try:
            if self.tls:
                self.make_certificates()
            self.up()
            self.trees = [Mount(self, node, *self.options) for node in self.nodes]
            for mount in self.trees:
                mount.up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def show_log(self):
        super().show_log()
        for mount in self.trees:
            print(f"--- end of {mount.node.name}'s fusionfs.log\n{mount.log()[-3000:]}---", flush=True)

    def mount_pid(self, point):
        found = [pid for pid, command in self.processes().items()
                 if command.split()[0].endswith("fusionfs") and point in command.split()]
        return found[0] if len(found) == 1 else None

    def kill_node_of(self, mount):
        """As a loss of power: everything that runs on it."""
        mount.node.kill()
        for pid, command in self.processes().items():
            if mount.node.data in command.split():
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda gone=pid: not harness.alive(gone), f"the end of process {pid}")

    def back(self, mount):
        mount.node.start()
        wait_for(mount.node.serves, f"{mount.node.name} to serve again")
        mount.up()

    def chunk_service(self, mount):
        """The process that serves a node's chunks, if there is one."""
        try:
            with open(os.path.join(mount.node.data, "services", "fusionfs-chunks.lock"), encoding="ascii") as file:
                pid = int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if self.processes().get(pid, "").split()[1:2] == ["serve"] else None

    def all_know_each_other(self):
        """Each mount has heard of the others' chunks, so that copies are made."""
        for mount in self.trees:
            def copied(at=mount):
                with open(at.path("probe-" + at.node.name), "wb") as file:
                    file.write(bytes(10_000))
                return os.getxattr(file.name, "fusionfs.copies") != b"none"
            wait_for(copied, f"{mount.node.name} to know other chunk stores")


class Maker(threading.Thread):
    def __init__(self, tree, mount, folder, first, last, acknowledged=()):
        super().__init__(daemon=True)
        os.makedirs(mount.path(f"{folder}.{mount.node.name}"), exist_ok=True)
        self.process = tree.start(sys.executable, "-c", MAKER, mount.path(folder), mount.node.name, first, last, LARGE,
                                  stderr=open(tree.path(f"maker-{mount.node.name}-{first}"), "wb"))
        self.process.stderr_path = tree.path(f"maker-{mount.node.name}-{first}")
        self.mine, self.acknowledged = mount.node.name, list(acknowledged)
        self.start()

    def run(self):
        for line in self.process.stdout:
            self.acknowledged.append(int(line))
        self.process.wait()

    def check(self):
        """It ended as it should."""
        if self.process.returncode != 0:
            with open(self.process.stderr_path, encoding="utf-8", errors="replace") as file:
                raise AssertionError(f"{self.mine}: {file.read()[-2000:]}")


class Mounts(unittest.TestCase):
    def setUp(self):
        need("fusionfs", fuse=True)
        if reason := Network.lacking():
            self.skipTest(reason)

    def tree(self, *options, **how):
        tree = Tree(*options, **how)
        self.enterContext(tree)
        return tree

    def assert_clean(self, tree):
        """Nobody repairs: whoever finds out that a mount died sees to what it left, and each node to its chunks."""
        said = {}

        def clean():
            running = [tree.start(*mount.command("fusionfs", "fsck", *mount.place()), stderr=subprocess.STDOUT) for mount in tree.trees]
            for mount, process in zip(tree.trees, running):
                said[mount.node.name] = process.communicate()[0].decode(errors="replace")
            return not any(process.returncode for process in running)
        try:
            wait_for(clean, "nothing for fsck to find")
        except AssertionError as error:
            raise AssertionError(f"{error}: {said}") from error

    def test_three_mounts_of_one_tree_and_nodes_killed_in_the_middle(self):
        seed = int(os.environ.get("SEED") or int.from_bytes(os.urandom(2), "little"))
        rng = random.Random(seed)
        tree = self.tree("-o", "replicas=2")
        tree.all_know_each_other()
        for number, mount in enumerate(tree.trees):
            os.mkdir(mount.path(f"of-{number}"))
            for size in (0, 10, 5_000, 200_000):
                with open(mount.path(f"of-{number}", str(size)), "wb") as file:
                    file.write(b"%d" % number * size)
        for mount in tree.trees:
            for number in range(3):
                for size in (0, 10, 5_000, 200_000):
                    with open(mount.path(f"of-{number}", str(size)), "rb") as file:
                        self.assertEqual(file.read(), b"%d" % number * size)

        os.mkdir(tree.trees[0].path("all"))
        makers = [Maker(tree, mount, "all", 0, FILES) for mount in tree.trees]
        for death in range(DEATHS):
            self.let_die(tree, makers, rng.randrange(3), rng.choice(("node", "mount", "store")), rng.randint(FILES // 10, FILES // 2), seed)
        for maker in makers:
            maker.join(3600)
            maker.check()

        acknowledged = {f"{maker.mine}-{number}" for maker in makers for number in maker.acknowledged}
        self.assertEqual(len(acknowledged), 3 * FILES)
        for mount in tree.trees:
            self.assertEqual(acknowledged - set(os.listdir(mount.path("all"))), set(), mount.node.name)
        wrong = []
        for number in range(FILES):
            for maker in makers:
                # Each mount reads a third, no one its own.
                reader = tree.trees[(int(maker.mine[1:]) + number % 2) % 3]
                if patiently(reader.path("all", f"{maker.mine}-{number}")) != content(maker.mine, number):
                    wrong.append((maker.mine, number))
        self.assertEqual(wrong, [])
        self.assert_clean(tree)
        self.a_copy_serves_while_its_node_is_down_and_damage_is_healed_when_it_is_back(tree)

    def let_die(self, tree, makers, number, what, files, seed):
        """Of the node `number`: all of it, its mount or its store, when its maker has made so many files more; and back it comes."""
        dead, maker = tree.trees[number], makers[number]
        print(f"SEED={seed}: {what} of {dead.node.name} dies after {files} files of {maker.mine}", flush=True)
        before = len(maker.acknowledged)
        wait_for(lambda: len(maker.acknowledged) > before + files or not maker.is_alive(), f"{files} files", 3600)
        if what == "node":
            tree.kill_node_of(dead)
        elif what == "mount":
            os.kill(dead.pid, signal.SIGKILL)
            wait_for(lambda: not harness.alive(dead.pid), "the end of the mount")
        else:
            dead.node.kill()
        others = [each for each in makers if each is not maker or what == "store"]
        so_far = [len(each.acknowledged) for each in others]
        wait_for(lambda: all(len(each.acknowledged) > count + FILES // 20 or not each.is_alive() for each, count in zip(others, so_far)),
                 "the others to go on", 3600)
        if what == "node":
            tree.back(dead)
        elif what == "mount":
            dead.up()
        else:
            dead.node.start()
            wait_for(dead.node.serves, f"{dead.node.name} to serve again")
        if what != "store":
            maker.join(harness.DEADLINE)
            self.assertFalse(maker.is_alive())
            first = maker.acknowledged[-1] + 1
            makers[number] = Maker(tree, dead, "all", first, FILES, maker.acknowledged)

    def a_copy_serves_while_its_node_is_down_and_damage_is_healed_when_it_is_back(self, tree):
        two, three, one = tree.trees
        path, data = two.path("file"), os.urandom(3_000_000)
        with open(path, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        chunk = json.loads(two.tool("locate", path, "--json")[0])["chunks"][0]["path"]
        tree.kill_node_of(two)
        with open(chunk, "r+b") as file:  # what the crash has done to its disk
            file.seek(1_234_567)
            file.write(b"damage")
        for mount in (one, three):
            with open(mount.path("file"), "rb") as file:
                self.assertEqual(file.read(), data)
        tree.back(two)
        healed = json.loads(two.tool("scrub", "--json")[0])
        self.assertEqual((healed["damaged_count"], healed["healed_count"]), (1, 1))
        with open(two.path("file"), "rb") as file:
            self.assertEqual(file.read(), data)
        self.assert_clean(tree)

    def test_without_a_copy_the_chunk_is_named_and_the_file_comes_back_with_its_node_mounted_or_not(self):
        tree = self.tree(tls=shutil.which("openssl") is not None)
        one, two, three = tree.trees
        data = os.urandom(300_000)
        with open(two.path("file"), "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        inode = os.stat(two.path("file")).st_ino
        with open(one.path("file"), "rb") as file:
            self.assertEqual(file.read(), data)

        def read(mount):
            try:
                with open(mount.path("file"), "rb") as file:
                    return file.read() == data
            except OSError:
                return False
        # The node serves its chunks: not the mount, which may go, and not one process, which may die.
        two.down()
        os.kill(wait_for(lambda: tree.chunk_service(two), "the chunk service"), signal.SIGKILL)
        wait_for(lambda: tree.chunk_service(two), "another chunk service")
        wait_for(lambda: read(three), "the file to be read without a mount at its node")

        tree.kill_node_of(two)
        forget_pages(three.path("file"))
        with open(three.path("file"), "rb") as file:
            with self.assertRaises(OSError) as failed:
                file.read()
        self.assertEqual(failed.exception.errno, 5)
        self.assertIn(f"inode {inode} chunk 0 (byte 0)", three.log())
        with open(three.path("other"), "wb") as file:  # all else goes on
            file.write(bytes(10_000))
        two.node.start()  # as after a reboot: nobody mounts
        wait_for(lambda: read(three), "the file to be read again")
        two.up()
        self.assert_clean(tree)


if __name__ == "__main__":
    harness.main("fusionfs", fuse=True)

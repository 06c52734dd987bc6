#!/usr/bin/env python3
"""What goes wrong around a mount: full disks, damage, killed nodes and mounts, a store that does not answer."""
import contextlib
import errno
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402


def pid_of_mount(box, point):
    pids = [pid for pid, command in box.processes().items() if command.split()[0].endswith("fusionfs") and point in command.split()]
    assert len(pids) == 1, box.processes()
    return pids[0]


def log_of(box):
    with open(os.path.join(box.data, "fusionfs.log"), encoding="utf-8", errors="replace") as file:
        return file.read()


def access_list(*entries):
    """As setxattr(2) takes it: version 2, then tag, permissions and id of each entry."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, 0xffffffff if who is None else who)
                                           for tag, bits, who in entries)


def write(path, size, byte=b"x", sync=False):
    with open(path, "wb") as file:
        file.write(byte * size)
        file.flush()
        if sync:
            os.fsync(file.fileno())


class Writer(threading.Thread):
    """A program that works in a folder of its own and says after each file what it has done to it."""
    PROGRAM = """
import os, sys
folder = sys.argv[1]
os.mkdir(folder)
for number in range(1 << 30):
    name, size = f"{folder}/{number}", 20 if number % 3 else 20_000
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"%d;" % number * size, 0)
    os.fsync(file)
    if number % 4 == 0:
        os.pwrite(file, b"again", 0)
        os.fsync(file)
    os.close(file)
    if number % 5 == 0:
        os.link(name, f"{name}.linked")
        os.rename(name, f"{name}.moved")
    if number % 7 == 0:
        os.unlink(f"{name}.linked" if number % 5 == 0 else name)
    print(number, flush=True)
"""

    def __init__(self, box, mount, number):
        super().__init__(daemon=True)
        self.folder, self.said = os.path.join(mount, f"w{number}"), []
        self.process = box.start(sys.executable, "-c", self.PROGRAM, self.folder, stderr=open(box.path(f"writer-{number}"), "wb"))
        self.errors = box.path(f"writer-{number}")
        self.start()

    def run(self):
        for line in self.process.stdout:
            self.said.append(int(line))

    def end(self):
        if self.process.poll() is not None:
            with open(self.errors, encoding="utf-8", errors="replace") as file:
                raise AssertionError(file.read()[-2000:])
        self.process.kill()
        self.process.wait()
        self.join()

    def wrong(self):
        found = []
        there = set(os.listdir(self.folder))
        for number in self.said:
            names = [f"{number}.moved", f"{number}.linked"] if number % 5 == 0 else [f"{number}"]
            if number % 7 == 0:
                names.pop()
            here = {f"{number}", f"{number}.moved", f"{number}.linked"} & there
            if here != set(names):
                found.append((number, here))
            content = b"%d;" % number * (20 if number % 3 else 20_000)
            if number % 4 == 0:
                content = b"again" + content[5:]
            for name in here & set(names):
                with open(os.path.join(self.folder, name), "rb") as file:
                    if file.read() != content:
                        found.append((number, name))
        return found


class Faults(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)

    def small_disk(self, path, size):
        """A file system of its own at `path`, to be filled."""
        if os.geteuid() != 0:
            self.skipTest("mounting a small disk needs root")
        os.makedirs(path, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
        self.addCleanup(lambda: subprocess.run(["umount", "-l", path], capture_output=True, check=False))

    def test_a_full_chunk_disk_is_told_and_recovers(self):
        os.makedirs(self.box.data, mode=0o700)
        self.small_disk(os.path.join(self.box.data, "chunks"), "8m")
        mount = self.box.mount()
        write(os.path.join(mount, "kept"), 3_000_000, b"k", sync=True)
        with self.assertRaises(OSError) as failed:
            write(os.path.join(mount, "much"), 20_000_000, sync=True)
        self.assertEqual(failed.exception.errno, errno.ENOSPC)
        with open(os.path.join(mount, "kept"), "rb") as file:
            self.assertEqual(file.read(), b"k" * 3_000_000)
        write(os.path.join(mount, "small"), 100)  # inline: in the store, which has room
        os.unlink(os.path.join(mount, "much"))
        harness.wait_for(lambda: os.statvfs(mount).f_bavail * os.statvfs(mount).f_bsize > 4_000_000, "the space to come back")
        write(os.path.join(mount, "again"), 3_000_000, b"a", sync=True)
        with open(os.path.join(mount, "again"), "rb") as file:
            self.assertEqual(file.read(), b"a" * 3_000_000)
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))
        self.assertIn("clean", self.box.out("fusionfs", "scrub"))

    def test_a_full_store_is_told_and_nothing_synced_is_lost(self):
        self.small_disk(self.box.data, "96m")
        os.chmod(self.box.data, 0o700)
        mount = self.box.mount()
        made, error = 0, 0
        for made in range(100_000):
            try:
                write(os.path.join(mount, f"f{made}"), 4000, b"%d" % (made % 10))
            except OSError as failed:
                error = failed.errno
                break
        self.assertIn(error, (errno.ENOSPC, errno.EIO), f"after {made} files")
        self.assertGreater(made, 100)
        for number in range(0, made, max(1, made // 50)):
            with open(os.path.join(mount, f"f{number}"), "rb") as file:
                self.assertEqual(file.read(), b"%d" % (number % 10) * 4000)
        self.assertTrue(os.listdir(mount))
        # There is room again: the mount and the node go on by themselves.
        subprocess.run(["mount", "-o", "remount,size=400m", self.box.data], check=True)

        def made_again():
            try:
                write(os.path.join(mount, "again"), 4000, b"a", sync=True)
                return True
            except OSError:
                return False
        harness.wait_for(made_again, "the store to take writes again")
        with open(os.path.join(mount, "again"), "rb") as file:
            self.assertEqual(file.read(), b"a" * 4000)
        self.assertEqual(subprocess.run(["fusionfs", "umount", mount], env=self.box.environment, timeout=120,
                                        capture_output=True, check=False).returncode, 0)

    def test_damage_on_the_disk_is_an_error_that_names_the_chunk(self):
        mount = self.box.mount()
        path = os.path.join(mount, "file")
        write(path, 100_000, sync=True)
        chunk = self.box.json("fusionfs", "locate", path, "--json")["chunks"][0]["path"]
        self.box.umount(mount)
        with open(chunk, "r+b") as file:
            file.seek(50_000)
            file.write(b"y")
        self.assertIn("block 12", self.box.run("fusionfs", "scrub", expect=7)[0])
        mount = self.box.mount()
        with open(path, "rb") as file:
            self.assertEqual(file.read(40_000), b"x" * 40_000)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with self.assertRaises(OSError) as failed:
            os.pread(file, 4096, 49_152)
        os.close(file)
        self.assertEqual(failed.exception.errno, errno.EIO)
        self.assertIn(chunk + ": block 12 at byte 49152", log_of(self.box))
        write(path, 100_000, b"z")  # written anew
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"z" * 100_000)
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "scrub"))

    def test_a_mount_killed_with_dirty_files_loses_nothing_synced(self):
        mount = self.box.mount()
        for number in range(20):
            write(os.path.join(mount, f"synced{number}"), 10_000 * number, b"s", sync=True)
        writer = self.box.start(sys.executable, "-c", """
import os, sys
number = 0
while True:
    file = os.open(f"{sys.argv[1]}/dirty{number % 7}", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"d" * 7777, number % 50 * 7000)
    if number % 3 == 0:
        os.close(file)
    number += 1
    if number == 30:
        print("going", flush=True)
""", mount, stderr=subprocess.DEVNULL)
        self.addCleanup(writer.kill)
        writer.stdout.readline()
        pid = pid_of_mount(self.box, mount)
        held = []  # not closed, not by a child either, for that would commit them too
        for number in range(20):
            held.append(os.open(os.path.join(mount, f"held{number}"), os.O_RDWR | os.O_CREAT))
            os.write(held[-1], b"h" * 10_000 * number)
            os.fsync(held[-1])
        os.kill(pid, signal.SIGKILL)
        writer.wait(60)  # its next call fails
        self.assertNotEqual(writer.returncode, 0)
        harness.wait_for(lambda: not harness.alive(pid), "the end of the mount")
        for file in held:
            with contextlib.suppress(OSError):
                os.close(file)
        mount = self.box.mount()  # takes the dead one away
        for number in range(20):
            for name in ("synced", "held"):
                with open(os.path.join(mount, f"{name}{number}"), "rb") as file:
                    self.assertEqual(file.read(), name[:1].encode() * 10_000 * number, f"{name}{number}")
        for name in os.listdir(mount):
            if name.startswith("dirty"):
                with open(os.path.join(mount, name), "r+b") as file:
                    self.assertEqual(set(file.read()) - set(b"d\0"), set())
                    file.write(b"e")
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck", "--repair"))
        self.assertIn("clean", self.box.out("fusionfs", "scrub"))

    def test_sigterm_unmounts_cleanly(self):
        mount = self.box.mount()
        file = os.open(os.path.join(mount, "open"), os.O_RDWR | os.O_CREAT)
        os.write(file, b"o" * 50_000)
        pid = pid_of_mount(self.box, mount)
        os.kill(pid, signal.SIGTERM)
        harness.wait_for(lambda: not harness.alive(pid), "the end of the mount")
        try:
            os.close(file)
        except OSError:
            pass
        self.assertFalse(self.box.mounted(mount))
        mount = self.box.mount()
        self.assertEqual(os.path.getsize(os.path.join(mount, "open")), 50_000)
        self.box.umount(mount)

    def test_a_store_killed_under_a_running_mount_is_started_again(self):
        mount = self.box.mount()
        for round_ in range(5):
            write(os.path.join(mount, f"a{round_}"), 20_000, sync=True)
            self.box.kill_node()
            os.mkdir(os.path.join(mount, f"d{round_}"))
            self.assertEqual(os.path.getsize(os.path.join(mount, f"a{round_}")), 20_000)
        self.assertEqual(len(os.listdir(mount)), 10)
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))

    def test_a_store_killed_and_stopped_under_load_loses_nothing_synced(self):
        """Writers that sync, link, rename and remove; what they were told was done is as they were told, here and after a mount anew."""
        mount = self.box.mount()
        writers = [Writer(self.box, mount, number) for number in range(3)]
        rng = random.Random(int(os.environ.get("SEED", "1")))
        for round_ in range(harness.rounds(6, 60)):
            so_far = [len(writer.said) for writer in writers]
            harness.wait_for(lambda before=so_far: all(len(writer.said) > count + 20 for writer, count in zip(writers, before)),
                             f"all writers to go on in round {round_}")
            node = harness.wait_for(self.box.node_pid, "a node")
            how = rng.choice(("killed", "stopped", "stopped and killed"))
            if how != "killed":
                os.kill(node, signal.SIGSTOP)
                time.sleep(rng.choice((0.1, 1, 3)))  # longer than a client waits before it looks for the node
            os.kill(node, signal.SIGCONT if how == "stopped" else signal.SIGKILL)
        for writer in writers:
            writer.end()
        for _ in range(2):
            for writer in writers:
                self.assertEqual(writer.wrong(), [])
            self.box.umount(mount)
            self.assertIn("clean", self.box.out("fusionfs", "fsck"))
            self.assertIn("clean", self.box.out("fusionfs", "scrub"))
            mount = self.box.mount()
        self.box.umount(mount)

    def test_a_store_that_does_not_answer_blocks_up_to_a_time_out_and_the_mount_always_unmounts(self):
        point = self.box.path("mnt")
        os.mkdir(point)
        self.box.mounts.append(point)
        self.box.run("fusionfs", "mount", "--timeout", "3s", point)
        write(os.path.join(point, "a"), 10_000)
        node = self.box.node_pid()
        os.kill(node, signal.SIGSTOP)
        self.addCleanup(lambda: harness.alive(node) and os.kill(node, signal.SIGCONT))
        started = time.monotonic()
        with self.assertRaises(OSError) as failed:
            os.mkdir(os.path.join(point, "d"))
        self.assertEqual(failed.exception.errno, errno.EIO)
        self.assertGreater(time.monotonic() - started, 1)
        with self.assertRaises(OSError):
            os.stat(os.path.join(point, "never seen"))
        self.box.run("fusionfs", "umount", point, expect=None, timeout=150)
        harness.wait_for(lambda: not self.box.mounted(point), "the unmount")
        os.kill(node, signal.SIGCONT)
        mount = self.box.mount()
        self.assertEqual(os.path.getsize(os.path.join(mount, "a")), 10_000)
        self.box.umount(mount)

    def test_a_program_killed_with_many_dirty_files_ends_while_the_store_is_silent(self):
        mount = self.box.path("mnt")
        os.mkdir(mount)
        self.box.mounts.append(mount)
        self.box.run("fusionfs", "mount", "--timeout", "3s", "-o", "attr_timeout=3600", mount)
        node = self.box.node_pid()
        self.addCleanup(lambda: harness.alive(node) and os.kill(node, signal.SIGCONT))
        writer = self.box.start(sys.executable, "-c", """
import os, signal, sys, time
files = [os.open(f"{sys.argv[1]}/f{number}", os.O_RDWR | os.O_CREAT) for number in range(100)]
for file in files:
    os.write(file, b"d" * 100)
    os.fsync(file)
os.kill(int(sys.argv[2]), signal.SIGSTOP)
for file in files:
    os.pwrite(file, b"e" * 100, 100)
print("dirty", flush=True)
time.sleep(3600)
""", mount, node)
        self.assertEqual(writer.stdout.readline(), b"dirty\n")
        writer.kill()
        writer.wait(harness.DEADLINE)  # not a time-out for each file, and not for as long as the store is silent
        os.kill(node, signal.SIGCONT)

        def committed():
            try:
                return all(os.path.getsize(os.path.join(mount, f"f{number}")) == 200 for number in range(100))
            except OSError:
                return False
        harness.wait_for(committed, "what was written to be committed")
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))

    def test_umount_by_force_ends_what_waits(self):
        if os.geteuid() != 0:
            self.skipTest("not root: umount2(2) with MNT_FORCE is refused")
        mount = self.box.path("mnt")
        os.mkdir(mount)
        self.box.mounts.append(mount)
        self.box.run("fusionfs", "mount", "--timeout", "1h", mount)  # nothing else ends the waiting
        node = self.box.node_pid()
        self.addCleanup(lambda: harness.alive(node) and os.kill(node, signal.SIGCONT))
        os.kill(node, signal.SIGSTOP)
        waiting = self.box.start(sys.executable, "-c", "import os, sys; print('going', flush=True); os.mkdir(sys.argv[1])",
                                 os.path.join(mount, "d"), stderr=subprocess.DEVNULL)
        self.assertEqual(waiting.stdout.readline(), b"going\n")

        def sleeps():
            with open(f"/proc/{waiting.pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rsplit(")", 1)[1].split()[0] in "SD"
        harness.wait_for(sleeps, "mkdir to wait for the store")
        # Its process waits for the store on: what was asked has no answer yet.
        ending = self.box.start("fusionfs", "umount", "--force", mount)
        self.assertNotEqual(waiting.wait(harness.DEADLINE), 0)
        os.kill(node, signal.SIGCONT)
        self.assertEqual(ending.wait(harness.DEADLINE), 0)
        self.assertFalse(self.box.mounted(mount))
        self.box.umount(self.box.mount("again"))

    def test_read_only_mounts_refuse_changes(self):
        mount = self.box.mount()
        write(os.path.join(mount, "a"), 10_000)
        self.box.umount(mount)
        mount = self.box.mount("mnt", "-o", "ro")
        for attempt in (lambda: write(os.path.join(mount, "b"), 1), lambda: os.unlink(os.path.join(mount, "a")),
                        lambda: os.mkdir(os.path.join(mount, "d")), lambda: os.truncate(os.path.join(mount, "a"), 0)):
            with self.assertRaises(OSError) as failed:
                attempt()
            self.assertEqual(failed.exception.errno, errno.EROFS)
        self.assertEqual(os.path.getsize(os.path.join(mount, "a")), 10_000)
        self.box.umount(mount)

    def test_a_chunk_disk_that_takes_no_changes_is_read(self):
        chunks = os.path.join(self.box.data, "chunks")
        os.makedirs(self.box.data, mode=0o700)
        self.small_disk(chunks, "8m")
        mount = self.box.mount()
        write(os.path.join(mount, "large"), 100_000, b"l", sync=True)
        write(os.path.join(mount, "small"), 100, b"s")
        self.box.umount(mount)
        harness.wait_for(lambda: subprocess.run(["mount", "-o", "remount,ro", chunks], capture_output=True, check=False).returncode == 0,
                         "a disk that nobody has open")
        mount = self.box.path("mnt")
        said = self.box.run("fusionfs", "mount", mount, expect=None)[1]
        self.assertNotEqual(self.box.status, 0)
        self.assertIn("Read-only file system", said)
        mount = self.box.mount("mnt", "-o", "ro")
        for name, size in (("large", 100_000), ("small", 100)):
            with open(os.path.join(mount, name), "rb") as file:
                self.assertEqual(file.read(), name[0].encode() * size)
        with self.assertRaises(OSError) as failed:
            write(os.path.join(mount, "large"), 1)
        self.assertEqual(failed.exception.errno, errno.EROFS)
        self.box.umount(mount)

    def test_names_are_bytes(self):
        """Whatever is not a slash or a zero byte is a name, and comes back as it was, through every verb too."""
        mount = self.box.mount().encode()
        names = [b"\xff\xfe", b"\xc3\x28", b"a\nb", b"\x01\x7f", b"tab\there", b" ", b"-rf", b"\\", b"'\"", b"\xed\xa0\x80", b"%s%n",
                 "\u00e9".encode(), "e\u0301".encode(), b"\xf0" * 255]
        for number, name in enumerate(names):
            write(os.path.join(mount, name), number)
        self.assertEqual(sorted(os.listdir(mount)), sorted(names))
        for number, name in enumerate(names):
            self.assertEqual(os.path.getsize(os.path.join(mount, name)), number)
            os.rename(os.path.join(mount, name), os.path.join(mount, b"was" + name[:252]))
            os.symlink(name, os.path.join(mount, name))
            self.assertEqual(os.readlink(os.path.join(mount, name)), name)
        os.setxattr(os.path.join(mount, b"was\xff\xfe"), b"user.\xff", b"\0\xff")
        self.assertEqual(os.listxattr(os.path.join(mount, b"was\xff\xfe")), [os.fsdecode(b"user.\xff")])
        for verb in (("ls", "/"), ("ls", "/", "--json"), ("du", "/"), ("stat", b"/was\xff\xfe"), ("stat", b"/\xc3\x28", "--json")):
            self.box.run("fusionfs", *(os.fsdecode(word) for word in verb))
        self.box.umount(mount.decode())
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))

    def test_two_nodes_two_copies(self):
        """Two mounts with chunk folders of their own, one store: what is written on one is read on the other; kill -9 of
        one loses nothing that was synced; scrub heals, and makes copies anew."""
        port = harness.free_port()
        node = self.box.start("zht", "serve", "--listen", f"127.0.0.1:{port}", stderr=subprocess.DEVNULL)
        self.addCleanup(node.kill)
        cluster = f"127.0.0.1:{port}"
        harness.wait_for(lambda: self.box.run("zht", "members", "--cluster", cluster, expect=None) and self.box.status == 0,
                         "the node")
        points, folders = [], []
        for name in ("one", "two"):
            point, folder = self.box.path(name), self.box.path("data-" + name)
            os.mkdir(point)
            self.box.mounts.append(point)
            self.box.run("fusionfs", "mount", "--cluster", cluster, "--data", folder, "-o", "replicas=2", point)
            points.append(point)
            folders.append(folder)
        one, two = points
        place = ("--cluster", cluster, "--data", folders[0])
        write(os.path.join(one, "alone"), 2_000_000, b"1", sync=True)  # before it knew of the other
        harness.wait_for(lambda: write(os.path.join(one, "probe"), 10_000) or
                         os.getxattr(os.path.join(one, "probe"), "fusionfs.copies") != b"none", "the other node to be known")
        write(os.path.join(one, "both"), 2_000_000, b"2", sync=True)
        for name, byte in (("alone", b"1"), ("both", b"2")):
            with open(os.path.join(two, name), "rb") as file:
                self.assertEqual(file.read(), byte * 2_000_000)
        chunk = self.box.json("fusionfs", "locate", os.path.join(one, "both"), *place, "--json")["chunks"][0]["path"]
        with open(chunk, "r+b") as file:
            file.seek(777_777)
            file.write(b"!")
        healed = self.box.json("fusionfs", "scrub", *place, "--json")
        self.assertEqual((healed["damaged_count"], healed["healed_count"]), (1, 1))
        made = self.box.json("fusionfs", "scrub", "--replicas", "2", *place, "--json")
        self.assertEqual(made["copies_lacking_count"], 0)
        harness.wait_for(lambda: os.getxattr(os.path.join(two, "alone"), "fusionfs.copies") != b"none", "a copy to be seen")
        os.kill(pid_of_mount(self.box, one), signal.SIGKILL)
        for name, byte in (("alone", b"1"), ("both", b"2")):
            with open(os.path.join(two, name), "rb") as file:
                self.assertEqual(file.read(), byte * 2_000_000)
        with open(os.path.join(two, "both"), "r+b") as file:
            file.write(b"3" * 1000)
            os.fsync(file.fileno())
        with open(os.path.join(two, "both"), "rb") as file:
            self.assertEqual(file.read(), b"3" * 1000 + b"2" * 1_999_000)
        self.box.umount(two)
        self.assertIn("clean", self.box.out("fusionfs", "fsck", "--cluster", cluster, "--data", folders[1]))

    def test_sparse_calls_answer_as_a_local_file_system(self):
        mount = self.box.mount()
        local = self.box.path("local")
        os.mkdir(local)
        answers = []
        for place in (local, mount):
            said = []
            path = os.path.join(place, "f")
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            os.pwrite(file, b"a" * 300_000, 0)
            os.pwrite(file, b"b" * 10, 2_000_000)
            for arguments in (("-p", "-o", "65536", "-l", "65536"), ("-n", "-o", "0", "-l", "5000000"), ("-z", "-o", "5000", "-l", "3000"),
                              ("-o", "0", "-l", "2500000")):
                done = subprocess.run(["fallocate", *arguments, path], capture_output=True, check=False)
                said.append((arguments, done.returncode, os.fstat(file).st_size))
            os.fsync(file)
            for where in (0, 65_536, 70_000, 131_072, 1_000_000, 2_100_000):
                for whence in (os.SEEK_DATA, os.SEEK_HOLE):
                    try:
                        found = os.lseek(file, where, whence)
                        # Where holes end is the disk's affair; that data is found is not.
                        said.append((where, whence, found if found % 4096 == 0 else "inside"))
                    except OSError as failed:
                        said.append((where, whence, failed.errno))
            other = os.open(os.path.join(place, "g"), os.O_RDWR | os.O_CREAT)
            said.append(os.copy_file_range(file, other, 400_000, 10_000, 70_000))
            said.append(os.fstat(other).st_size)
            said.append(hash(os.pread(other, 600_000, 0)))
            said.append(hash(os.pread(file, 3_000_000, 0)))
            for attempt in (lambda f=file: os.lseek(f, 10_000_000, os.SEEK_DATA), lambda f=file: os.ftruncate(f, -1),
                            lambda f=file: os.posix_fallocate(f, 0, 0), lambda f=file: os.pwrite(f, b"x", -1)):
                try:
                    attempt()
                    said.append("fine")
                except OSError as failed:
                    said.append(failed.errno)
            os.close(file)
            os.close(other)
            answers.append(said)
        self.assertEqual([one for one in zip(*answers) if one[0] != one[1]], [])
        self.box.umount(mount)

    def test_default_access_lists_are_handed_down(self):
        mount = self.box.mount("mnt", "-o", "acl")
        local = self.box.path("local")
        os.mkdir(local)
        default = access_list((0x01, 7, None), (0x02, 7, 1), (0x04, 5, None), (0x08, 5, 2), (0x10, 7, None), (0x20, 4, None))
        plain = access_list((0x01, 7, None), (0x04, 5, None), (0x20, 1, None))
        try:
            os.setxattr(local, "system.posix_acl_default", default)
        except OSError:
            self.skipTest("the local file system has no access lists to compare with")
        os.removexattr(local, "system.posix_acl_default")
        answers = []
        for place in (local, mount):
            said = []
            for top, given in (("top", default), ("small", plain), ("bare", None)):
                os.mkdir(os.path.join(place, top), 0o770)
                if given:
                    os.setxattr(os.path.join(place, top), "system.posix_acl_default", given)
                old = os.umask(0o027)
                try:
                    for name in ("d", "d/e"):
                        os.mkdir(os.path.join(place, top, name), 0o775)
                    write(os.path.join(place, top, "d/f"), 1)
                    os.close(os.open(os.path.join(place, top, "x"), os.O_CREAT | os.O_WRONLY, 0o751))
                    os.mkfifo(os.path.join(place, top, "pipe"))
                    os.symlink("x", os.path.join(place, top, "link"))
                finally:
                    os.umask(old)
                for name in ("", "d", "d/e", "d/f", "x", "pipe"):
                    path = os.path.join(place, top, name)
                    said.append((top, name, oct(os.lstat(path).st_mode)))
                    for kind in ("access", "default"):
                        try:
                            said.append((kind, os.getxattr(path, "system.posix_acl_" + kind)))
                        except OSError as error:
                            said.append((kind, error.errno))
            answers.append(said)
        self.assertEqual([one for one in zip(*answers) if one[0] != one[1]], [])
        self.box.umount(mount)

    def test_relatime_and_provenance(self):
        mount = self.box.mount("mnt", "-o", "relatime,provenance")
        path = os.path.join(mount, "f")
        write(path, 10_000)
        os.utime(path, (1_000_000_000, 1_000_000_001))
        with open(path, "rb") as file:
            file.read()
        harness.wait_for(lambda: os.stat(path).st_atime > 1_500_000_000, "an access time")
        status = os.stat(path)
        self.assertEqual(status.st_mtime, 1_000_000_001)
        with open(path, "rb") as file:
            file.read()
        time.sleep(1.1)  # past what the kernel believes
        self.assertEqual(os.stat(path).st_atime, status.st_atime, "already after the last change")
        uses = self.box.json("fusionfs", "provenance", path, "--json")
        self.assertEqual([each["use"] for each in uses], ["write", "read", "read"])
        self.assertTrue(all(each["process"] == os.getpid() for each in uses))
        self.assertIn("faults_test", uses[0]["command"])
        self.box.umount(mount)


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

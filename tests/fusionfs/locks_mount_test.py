#!/usr/bin/env python3
"""Locks and appends across two real mounts of one file system, as processes take them."""
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402

# A process that takes locks as it is told, one word a line, and says how it went.
HOLDER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(InterruptedError(4, "signal")))
kinds = {"flock": fcntl.flock, "lockf": fcntl.lockf}
file = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
for line in sys.stdin:
    kind, what, *span = line.split()
    flags = {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH, "un": fcntl.LOCK_UN, "tryex": fcntl.LOCK_EX | fcntl.LOCK_NB,
             "trysh": fcntl.LOCK_SH | fcntl.LOCK_NB}
    try:
        if kind == "close":
            os.close(os.open(sys.argv[1], os.O_RDWR))  # POSIX: any descriptor of it
        else:
            kinds[kind](file, flags[what], *map(int, span))
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""

APPENDER = """
import os, sys
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for number in range(count):
    record = f"{name}:{number}:".encode()
    record += b"x" * ((number * 37) % 300) + b"\\n"
    assert os.write(file, record) == len(record)
os.close(file)
"""


class Holder:
    def __init__(self, box, path):
        self.process = box.start(sys.executable, "-c", HOLDER, path, stdin=subprocess.PIPE, stderr=None)
        assert self.answer() == "ready"

    def answer(self):
        return self.process.stdout.readline().decode().strip()

    def tell(self, text):
        self.process.stdin.write((text + "\n").encode())
        self.process.stdin.flush()

    def do(self, text):
        self.tell(text)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


class Locks(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        self.a, self.b = self.box.mount("a"), self.box.mount("b")
        self.path = "file"
        with open(os.path.join(self.a, self.path), "wb") as file:
            file.write(b"0" * 100)

    def holder(self, mount):
        holder = Holder(self.box, os.path.join(mount, self.path))
        self.addCleanup(holder.process.wait)
        self.addCleanup(holder.process.kill)
        return holder

    def blocked(self, holder):
        """Whether it waits: it has no answer, and its process sleeps in the kernel for ours."""
        stat = f"/proc/{holder.process.pid}/syscall"
        return harness.wait_for(lambda: open(stat, encoding="ascii").read().split()[0] in ("72", "73"), "a wait for a lock")

    def test_flock_excludes_and_wakes_across_mounts(self):
        one, two = self.holder(self.a), self.holder(self.b)
        self.assertEqual(one.do("flock ex"), "ok")
        self.assertEqual(two.do("flock tryex"), str(errno.EAGAIN))
        self.assertEqual(two.do("flock trysh"), str(errno.EAGAIN))
        self.assertEqual(two.do("lockf tryex"), "ok", "record locks are another matter")
        two.tell("flock sh")
        self.blocked(two)
        self.assertEqual(one.do("flock sh"), "ok")  # shared from now on: both
        self.assertEqual(two.answer(), "ok")
        one.tell("flock ex")
        self.blocked(one)
        two.end()  # the end of the process is the end of its lock
        self.assertEqual(one.answer(), "ok")

    def test_record_locks_by_range(self):
        one, two = self.holder(self.a), self.holder(self.b)
        self.assertEqual(one.do("lockf ex 10 0"), "ok")
        self.assertEqual(two.do("lockf tryex 10 10"), "ok")
        self.assertEqual(two.do("lockf tryex 5 5"), str(errno.EAGAIN))
        self.assertEqual(one.do("lockf un 4 4"), "ok")
        self.assertEqual(two.do("lockf tryex 4 4"), "ok")
        # What F_GETLK says of them, from a third process.
        with open(os.path.join(self.b, self.path), "r+b") as file:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, start, size, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
        self.assertEqual(kind, fcntl.F_WRLCK)
        self.assertIn((start, size, pid), [(0, 4, one.process.pid), (8, 2, one.process.pid), (4, 4, two.process.pid),
                                           (10, 10, two.process.pid)])
        # Closing any descriptor of the file gives up all of them.
        self.assertEqual(one.do("close it"), "ok")
        self.assertEqual(two.do("lockf tryex 0 0"), "ok")

    def test_a_signal_ends_the_waiting(self):
        one, two = self.holder(self.a), self.holder(self.b)
        for kind in ("flock", "lockf"):
            self.assertEqual(one.do(f"{kind} ex"), "ok")
            two.tell(f"{kind} ex")
            self.blocked(two)
            two.process.send_signal(signal.SIGUSR1)
            self.assertEqual(two.answer(), str(errno.EINTR))
            two.tell(f"{kind} ex")
            self.blocked(two)
            self.assertEqual(one.do(f"{kind} un"), "ok")
            self.assertEqual(two.answer(), "ok", "and it can wait again")
            self.assertEqual(two.do(f"{kind} un"), "ok")

    def test_a_circle_is_found(self):
        one, two, three = self.holder(self.a), self.holder(self.b), self.holder(self.a)
        for holder, at in ((one, 0), (two, 1), (three, 2)):
            self.assertEqual(holder.do(f"lockf ex 1 {at}"), "ok")
        one.tell("lockf ex 1 1")
        self.blocked(one)
        two.tell("lockf ex 1 2")
        self.blocked(two)
        three.tell("lockf ex 1 0")
        # One of them is told; when it gives way the others go on.
        waiting = {one: 0, two: 1, three: 2}
        answers = {}

        def told():
            for holder in list(waiting):
                with open(f"/proc/{holder.process.pid}/syscall", encoding="ascii") as file:
                    if file.read().split()[0] == "0":  # reading its next order
                        answers[holder] = holder.answer()
                        del waiting[holder]
            return answers

        harness.wait_for(told, "EDEADLK for one of three")
        victim = next(iter(answers))
        self.assertEqual(answers[victim], str(errno.EDEADLK))
        order = [one, two, three]
        at = order.index(victim)
        self.assertEqual(victim.do(f"lockf un 1 {at}"), "ok")
        before = order[at - 1]
        if before in waiting:
            self.assertEqual(before.answer(), "ok")

    def test_locks_of_a_killed_mount_end_with_its_lease(self):
        one, two = self.holder(self.a), self.holder(self.b)
        self.assertEqual(one.do("flock ex"), "ok")
        self.assertEqual(one.do("lockf ex"), "ok")
        two.tell("flock ex")
        self.blocked(two)
        pid = [pid for pid, command in self.box.processes().items() if command.endswith(" " + self.a)]
        self.assertEqual(len(pid), 1)
        os.kill(pid[0], signal.SIGKILL)
        self.assertEqual(two.answer(), "ok")
        self.assertEqual(two.do("lockf ex"), "ok")

    def test_unmounting_ends_the_waiting_and_frees_the_locks(self):
        one, two = self.holder(self.a), self.holder(self.b)
        self.assertEqual(one.do("flock ex"), "ok")
        two.tell("flock ex")
        self.blocked(two)
        pid = [pid for pid, command in self.box.processes().items() if command.endswith(" " + self.b)]
        os.kill(pid[0], signal.SIGTERM)
        self.assertNotEqual(two.answer(), "ok")
        harness.wait_for(lambda: not harness.alive(pid[0]), "the end of the mount")
        self.assertEqual(one.do("flock un"), "ok")

    def test_what_is_written_under_a_lock_is_read_under_the_next(self):
        counter = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for _ in range(int(sys.argv[2])):
    fcntl.lockf(file, fcntl.LOCK_EX)
    number = int(os.pread(file, 20, 0) or b"0")
    os.pwrite(file, b"%020d" % (number + 1), 0)
    fcntl.lockf(file, fcntl.LOCK_UN)
"""
        for path, size in (("small", 0), ("large", 100_000)):
            with open(os.path.join(self.a, path), "wb") as file:
                file.write(b"0" * 20 + b"y" * size)
            each = harness.rounds(150, 3000)
            running = [self.box.start(sys.executable, "-c", counter, os.path.join(mount, path), each, stderr=None)
                       for mount in (self.a, self.b, self.a)]
            for process in running:
                self.assertEqual(process.wait(300), 0)
            with open(os.path.join(self.b, path), "rb") as file:
                self.assertEqual(int(file.read(20)), 3 * each)

    def test_records_appended_on_two_mounts_are_whole_and_in_order(self):
        count = harness.rounds(400, 10_000)
        names = ("a0", "a1", "b0", "b1")
        running = [self.box.start(sys.executable, "-c", APPENDER, os.path.join(self.a if name[0] == "a" else self.b, "log"),
                                  name, count, stderr=None) for name in names]
        for process in running:
            self.assertEqual(process.wait(300), 0)
        for mount in (self.a, self.b):
            with open(os.path.join(mount, "log"), "rb") as file:
                lines = file.read().split(b"\n")
            self.assertEqual(lines.pop(), b"")
            following = dict.fromkeys(names, 0)
            for line in lines:
                name, number, rest = line.split(b":")
                self.assertEqual(int(number), following[name.decode()], line[:40])
                self.assertEqual(rest, b"x" * ((int(number) * 37) % 300))
                following[name.decode()] += 1
            self.assertEqual(set(following.values()), {count})

    def test_one_mount_alone_appends_at_the_true_end(self):
        path = os.path.join(self.a, "log")
        with open(path, "ab", buffering=0) as one, open(path, "a+b", buffering=0) as two:
            for number in range(50):
                one.write(b"%04d" % (2 * number))
                two.write(b"%04d" % (2 * number + 1))
                two.seek(-8, os.SEEK_END)
                self.assertEqual(two.read(8), b"%04d%04d" % (2 * number, 2 * number + 1))
            self.assertEqual(os.path.getsize(path), 400)
        started = time.monotonic()
        with open(os.path.join(self.b, "log"), "ab", buffering=0) as other:
            other.write(b"b")  # has to wait for the first mount to give up what nobody else wanted
        self.assertLess(time.monotonic() - started, 60)
        with open(path, "rb") as file:
            self.assertEqual(file.read()[-5:], b"0099b")

    def test_locks_of_an_open_file_description_end_with_it(self):
        get_lock, set_lock = 36, 37  # F_OFD_GETLK, F_OFD_SETLK
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        path = os.path.join(self.a, self.path)
        one, other = (os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for _ in range(2))
        for turn in range(25):
            fcntl.fcntl(one, set_lock, whole)
            if turn % 2 == 0:
                os.write(one, b"x" * 1_000_000)  # its release has something to commit first
            os.close(os.dup(one))
            with self.assertRaises(BlockingIOError):
                fcntl.fcntl(other, set_lock, whole)
            self.assertEqual(struct.unpack("hhqqi4x", fcntl.fcntl(other, get_lock, whole))[0], fcntl.F_WRLCK)
            os.close(one)  # `other` keeps the file open
            fcntl.fcntl(other, set_lock, whole)
            one, other = other, os.open(path, os.O_RDWR)
        # A process's locks end when it closes any descriptor; those it takes afterwards are not lost with an older one.
        for _ in range(20):
            first, second = os.open(path + "2", os.O_RDWR | os.O_CREAT, 0o644), os.open(path + "2", os.O_RDWR)
            fcntl.lockf(first, fcntl.LOCK_EX)
            os.close(first)
            fcntl.lockf(second, fcntl.LOCK_EX)
            child = os.fork()
            if child == 0:
                try:
                    fcntl.lockf(os.open(path + "2", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            os.close(second)
        os.close(one)
        os.close(other)


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

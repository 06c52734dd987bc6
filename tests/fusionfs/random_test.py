#!/usr/bin/env python3
"""Random use against a shadow: one file's bytes by every call there is (as fsx), a tree's names (as fsstress); on one mount,
and on two that take turns. SEED=n replays a round."""
import ctypes
import mmap
import os
import random
import shutil
import stat
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402

LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH, ZERO = 1, 2, 16


def fallocate(file, mode, offset, size):
    if LIBC.fallocate(file, mode, ctypes.c_long(offset), ctypes.c_long(size)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class File:
    """One file under test, open on one of the mounts, and what it must hold."""

    def __init__(self, paths, rng, span):
        self.paths, self.rng, self.span = paths, rng, span
        self.model = bytearray()
        self.file = os.open(paths[0], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def reopen(self):
        os.close(self.file)
        self.file = os.open(self.rng.choice(self.paths), os.O_RDWR)

    def piece(self):
        at = self.rng.randrange(self.span)
        return at, self.rng.randint(1, min(self.span - at, self.rng.choice([1, 100, 5000, self.span])))

    def grow(self, size):
        if len(self.model) < size:
            self.model.extend(b"\0" * (size - len(self.model)))

    def step(self):
        rng = self.rng
        what = rng.choice(["write", "write", "write", "read", "read", "truncate", "punch", "zero", "allocate", "append", "mmap",
                           "copy", "reopen", "sync", "hole"])
        at, size = self.piece()
        if what == "write":
            data = rng.randbytes(size)
            assert os.pwrite(self.file, data, at) == size
            self.grow(at + size)
            self.model[at:at + size] = data
        elif what == "read":
            found = os.pread(self.file, size, at)
            assert found == self.model[at:at + size], (what, at, size, len(self.model), len(found))
        elif what == "truncate":
            size = rng.choice([0, at, at, len(self.model)])
            os.ftruncate(self.file, size)
            self.grow(size)
            del self.model[size:]
        elif what in ("punch", "zero"):
            keep = what == "punch" or rng.random() < 0.5
            fallocate(self.file, (PUNCH if what == "punch" else ZERO) | (KEEP_SIZE if keep else 0), at, size)
            if not keep:
                self.grow(at + size)
            end = min(at + size, len(self.model))
            if end > at:
                self.model[at:end] = b"\0" * (end - at)
        elif what == "allocate":
            keep = rng.random() < 0.5
            fallocate(self.file, KEEP_SIZE if keep else 0, at, size)
            if not keep:
                self.grow(at + size)
        elif what == "append":
            other = os.open(rng.choice(self.paths), os.O_WRONLY | os.O_APPEND)
            if len(self.model) < self.span:
                data = rng.randbytes(rng.randint(1, 3000))
                os.close(self.file)  # what was written through it must be there for whoever opens
                os.close(other)
                other = os.open(rng.choice(self.paths), os.O_WRONLY | os.O_APPEND)
                assert os.write(other, data) == len(data)
                os.close(other)
                self.file = os.open(rng.choice(self.paths), os.O_RDWR)
                self.model.extend(data)
            else:
                os.close(other)
        elif what == "mmap" and self.model:
            with mmap.mmap(self.file, len(self.model)) as view:
                end = min(at + size, len(self.model))
                if end > at:
                    assert view[at:end] == self.model[at:end], (what, at, end)
                    data = rng.randbytes(end - at)
                    view[at:end] = data
                    self.model[at:end] = data
                view.flush()
        elif what == "copy" and self.model:
            to = rng.randrange(self.span)
            size = min(size, self.span - to)
            if at + size <= to or to + size <= at:  # copy_file_range(2) refuses to overlap in one file
                os.fstat(self.file)  # the kernel goes by the size it last saw, even of a file that another mount made longer
                data = self.model[at:at + size]
                done = os.copy_file_range(self.file, self.file, size, at, to)
                assert done == len(data), (what, at, size, to, done, len(data))
                if done:
                    self.grow(to + done)
                    self.model[to:to + done] = data
        elif what == "reopen":
            self.reopen()
        elif what == "sync":
            os.fsync(self.file)
        elif what == "hole":
            assert os.fstat(self.file).st_size == len(self.model), (os.fstat(self.file).st_size, len(self.model))
            where = 0
            while where < len(self.model):
                try:
                    data = os.lseek(self.file, where, os.SEEK_DATA)
                except OSError:
                    data = len(self.model)
                assert not any(self.model[where:data]), ("a hole with bytes in it", where, data)
                where = os.lseek(self.file, data, os.SEEK_HOLE) if data < len(self.model) else data
        return what

    def check(self):
        for path in self.paths:
            os.fsync(self.file)
            self.reopen()
            with open(path, "rb") as file:
                assert file.read() == self.model, path
        os.close(self.file)


class Tree:
    """Names of all kinds below the mounts, and the same below a local folder."""

    def __init__(self, tops, local, rng):
        self.tops, self.local, self.rng = tops, local, rng
        self.folders, self.names = [""], []

    def new_name(self):
        return os.path.join(self.rng.choice(self.folders), f"n{self.rng.randrange(40)}")

    def both(self, act):
        """The same on a mount and beside it: the same errno, or none."""
        said = []
        for top in (self.rng.choice(self.tops), self.local):
            try:
                said.append((None, act(top)))
            except OSError as error:
                said.append((error.errno, None))
        assert said[0][0] == said[1][0], said
        return said[0][0] is None

    def step(self):
        rng, one, other = self.rng, self.new_name(), self.new_name()
        what = rng.choice(["file", "file", "mkdir", "link", "symlink", "rename", "rename", "unlink", "rmdir", "rmtree", "chmod",
                           "fifo"])
        at = os.path.join
        if what == "file":
            def make(top):
                with open(at(top, one), "ab") as file:
                    file.write(one.encode() * 3)
            self.both(make)
        elif what == "mkdir":
            if self.both(lambda top: os.mkdir(at(top, one))) and len(self.folders) < 30:
                self.folders.append(one)
        elif what == "link":
            self.both(lambda top: os.link(at(top, one), at(top, other), follow_symlinks=False))
        elif what == "symlink":
            self.both(lambda top: os.symlink(other, at(top, one)))
        elif what == "rename":
            self.both(lambda top: os.rename(at(top, one), at(top, other)))
        elif what == "unlink":
            self.both(lambda top: os.unlink(at(top, one)))
        elif what == "rmdir":
            self.both(lambda top: os.rmdir(at(top, one)))
        elif what == "rmtree" and rng.random() < 0.2:
            self.both(lambda top: shutil.rmtree(at(top, one)))
        elif what == "chmod":
            mode = rng.randrange(0o1000)
            self.both(lambda top: os.chmod(at(top, one), mode | 0o700))
        elif what == "fifo":
            self.both(lambda top: os.mkfifo(at(top, one + ".fifo")))  # opened by nobody: that would wait
        return what

    @staticmethod
    def picture(top):
        found = {}
        for folder, folders, files in os.walk(top):
            for name in folders + files:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                entry = [status.st_mode, status.st_nlink]
                if stat.S_ISREG(status.st_mode):
                    with open(path, "rb") as file:
                        entry += [file.read(), status.st_size]
                elif stat.S_ISLNK(status.st_mode):
                    entry += [os.readlink(path)]
                found[os.path.relpath(path, top)] = entry
        return found

    def check(self):
        expected = self.picture(self.local)
        for top in self.tops:
            found = self.picture(top)
            assert found == expected, sorted(set(map(str, found.items())) ^ set(map(str, expected.items())))[:6]


class Random(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        self.seeds = [int(os.environ["SEED"])] if os.environ.get("SEED") else range(1, harness.rounds(4, 60) + 1)
        self.steps = harness.rounds(250, 3000)

    def run_all(self, make):
        for seed in self.seeds:
            subject = make(seed, random.Random(seed))
            done = []
            try:
                for _ in range(self.steps):
                    done.append(subject.step())
                subject.check()
            except (AssertionError, OSError) as error:
                raise AssertionError(f"SEED={seed} step {len(done)}, after {done[-5:]}: {error}") from error

    def assert_scrubbed(self):
        said = self.box.json("fusionfs", "scrub", "--json")
        self.assertEqual((said["damaged_count"], said["new_checksum_count"]), (0, 0), said)

    def test_one_file_on_one_mount(self):
        mount = self.box.mount("mnt", "-o", "embed")
        for span in (6_000, 300_000):
            self.run_all(lambda seed, rng, span=span: File([os.path.join(mount, f"f{span}.{seed}")], rng, span))
        self.box.umount(mount)
        self.assert_scrubbed()

    def test_one_file_on_two_mounts(self):
        mounts = [self.box.mount("a"), self.box.mount("b")]
        for span in (6_000, 300_000):
            self.run_all(lambda seed, rng, span=span: File([os.path.join(m, f"f{span}.{seed}") for m in mounts], rng, span))
        for mount in mounts:
            self.box.umount(mount)
        self.assert_scrubbed()

    def trees(self, mounts):
        def make(seed, rng):
            local = self.box.path(f"local{seed}")
            os.mkdir(local)
            tops = [os.path.join(mount, f"t{seed}") for mount in mounts]
            os.mkdir(tops[0])
            return Tree(tops, local, rng)
        self.run_all(make)
        for mount in mounts:
            self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))

    def test_a_tree_on_one_mount(self):
        self.trees([self.box.mount()])

    def test_a_tree_on_two_mounts(self):
        # What one changes the other's kernel believes for a while: here it is told to believe nothing.
        self.trees([self.box.mount(name, "-o", "attr_timeout=0,entry_timeout=0") for name in ("a", "b")])


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

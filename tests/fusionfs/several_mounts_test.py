#!/usr/bin/env python3
"""Several mounts, one truth: random operations on two and three mounts of one file system, one after the other, and the same beside them
on the local file system; after each step the answers, and what every mount and every open descriptor shows, are compared. The test
knows nothing of how FusionFS works. Every name is looked at on every mount beforehand, so that all caches are full of what was.

  SEED=7 MODE=strict MOUNTS=3 STEPS=400 several_mounts_test.py Differences      replays one round (each failure prints its line)

With --coherence=strict nothing is excused. Without, what README.md ("Coherence") says may be old, and nothing else:
  stat     what stat(2) says of a name, and what a directory on the way to a name is, for a second after another mount changed it;
           a name that is opened (its last part) is as it is, and so are the bytes and the attributes behind it; but who opens for writing
           what was a directory is told so for a second;
  open     what a descriptor shows of a change that another mount made since it was opened."""
import errno
import os
import random
import shutil
import stat
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402

BELIEVED = 1.1  # seconds: attr_timeout, entry_timeout, and a little for the kernel's jiffies
FOLDERS = ("", "d0", "d1", "d0/e")
NAMES = ("f0", "f1", "f2")
SIZES = (1, 10, 700, 4096, 4097, 8000, 20_000)


class Open:
    """A descriptor of the same file on a mount and beside it."""

    def __init__(self, mount, file, beside, inode, flags):
        self.mount, self.file, self.beside, self.inode, self.flags = mount, file, beside, inode, flags
        self.since = time.monotonic()

    def readable(self):
        return self.flags & os.O_ACCMODE != os.O_WRONLY

    def writable(self):
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class World:
    def __init__(self, tops, beside, rng, strict):
        self.tops, self.beside, self.rng, self.strict = tops, beside, rng, strict
        self.open = []
        self.compared = rng.choice((1, 0.3, 0.1))  # to compare is to open: that hides what a mount believes
        self.looked_at = rng.choice((1, 0.3))
        self.names_changed = {}   # path: {mount that changed it: when}
        self.folders_changed = {}  # path that was a directory: the same
        self.inodes_changed = {}  # inode beside: the same
        self.said = ""

    # What may be old ------------------------------------------------------------------------------------------------

    def believes_old(self, changed, mount, since=None):
        if self.strict:
            return False
        return any(other != mount and (time.monotonic() - at < BELIEVED or (since is not None and at > since)) for other, at in changed.items())

    def path_old(self, mount, path, last=True):
        """Whether a directory on the way to the path, or (last) the name itself or its inode, may be old on that mount."""
        parts = path.split("/") if path else []
        for end in range(1, len(parts) + (1 if last else 0)):
            if self.believes_old(self.names_changed.get("/".join(parts[:end]), {}), mount):
                return True
        if not last:
            return False
        try:
            inode = os.lstat(os.path.join(self.beside, path)).st_ino
        except OSError:
            return False
        return self.believes_old(self.inodes_changed.get(inode, {}), mount)

    def changed(self, mount, *paths):
        for path in paths:
            self.names_changed.setdefault(path, {})[mount] = time.monotonic()

    def inode_changed(self, mount, inode):
        self.inodes_changed.setdefault(inode, {})[mount] = time.monotonic()

    # One step -------------------------------------------------------------------------------------------------------

    def look(self):
        """Fills every cache with what is."""
        for top in self.tops:
            for folder in FOLDERS:
                for name in NAMES + ("d0", "d1", "e"):
                    try:
                        os.lstat(os.path.join(top, folder, name))
                    except OSError:
                        pass

    @staticmethod
    def answer(act, *args):
        try:
            return None, act(*args)
        except OSError as error:
            return errno.errorcode[error.errno], None

    def both(self, mount, act):
        """act(top) on the mount and beside it: the same answer. Returns it."""
        here, there = self.answer(act, self.tops[mount]), self.answer(act, self.beside)
        self.said += f" -> {there[0] or there[1]!r}"[:80]
        assert here == there, f"mount {mount} says {here}, a local file system {there}"
        return there[0] is None

    def path(self):
        return os.path.join(self.rng.choice(FOLDERS), self.rng.choice(NAMES + NAMES + ("d0", "d1", "e")))

    def step(self):
        rng = self.rng
        what = rng.choice(["open"] * 8 + ["close"] * 3 + ["read", "write", "write", "write", "truncate", "ftruncate", "chmod", "utimens", "rename",
                          "rename", "rename", "replace", "replace", "link", "unlink", "unlink", "mkdir", "mkdir", "rmdir", "symlink", "xattr",
                          "list", "rewrite", "rewrite", "append", "append"])
        mount = rng.randrange(len(self.tops))
        self.said = f"{what} on {mount}"
        if rng.random() < self.looked_at:
            self.look()
        getattr(self, "do_" + what)(mount)
        if rng.random() < self.compared:
            self.compare()
        return self.said

    def do_open(self, mount):
        rng, path = self.rng, self.path()
        flags = rng.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        if rng.random() < 0.6:
            flags |= os.O_CREAT
        for flag in (os.O_EXCL, os.O_TRUNC, os.O_APPEND):
            if rng.random() < 0.3:
                flags |= flag
        self.said += f" {path} {flags:o}"
        if self.path_old(mount, path, last=False) or len(self.open) >= 12:
            return
        end, existed = self.end_of(path)
        if self.maybe_folder(mount, end):
            return
        here = self.answer(os.open, os.path.join(self.tops[mount], path), flags, 0o644)
        there = self.answer(os.open, os.path.join(self.beside, path), flags, 0o644)
        try:
            self.said += f" -> {there[0] or 'a descriptor'}"
            assert here[0] == there[0], f"mount {mount} says {here[0]}, a local file system {there[0]}"
        except AssertionError:
            for file in (here[1], there[1]):
                if file is not None:
                    os.close(file)
            raise
        if there[0] is None:
            inode = os.fstat(there[1]).st_ino
            self.open.append(Open(mount, here[1], there[1], inode, flags))
            if not existed:
                self.changed(mount, end)
            if not existed or flags & os.O_TRUNC:
                self.inode_changed(mount, inode)

    def end_of(self, path):
        """Where symbolic links lead, and whether anything is there."""
        end = os.path.realpath(os.path.join(self.beside, path))
        return os.path.relpath(end, os.path.realpath(self.beside)), os.path.lexists(end)

    def maybe_folder(self, mount, path):
        """Whether the mount may take it for a directory that it is no more: then its kernel refuses to open it for writing, unasked."""
        return self.believes_old(self.folders_changed.get(path, {}), mount)

    def some(self, which=lambda each: True):
        found = [each for each in self.open if which(each)]
        return self.rng.choice(found) if found else None

    def do_close(self, mount):
        one = self.some()
        if one:
            self.said = f"close on {one.mount}"
            self.open.remove(one)
            assert self.answer(os.close, one.file) == self.answer(os.close, one.beside)

    def seen_old(self, one):
        return self.believes_old(self.inodes_changed.get(one.inode, {}), one.mount, one.since)

    def do_read(self, mount):
        one = self.some(Open.readable)
        if one and not self.seen_old(one):
            self.said = f"read on {one.mount}"
            size = self.rng.choice(SIZES)
            here, there = self.answer(os.read, one.file, size), self.answer(os.read, one.beside, size)
            assert here == there, self.differ(here, there)

    def write(self, one):
        data = self.rng.randbytes(self.rng.choice(SIZES))
        self.said = f"write of {len(data)} on {one.mount}"
        if self.rng.random() < 0.5 and not one.flags & os.O_APPEND:
            at = self.rng.choice((0, 0, 5, 4096, 9000))
            self.said += f" at {at}"
            act = lambda file: os.pwrite(file, data, at)
        else:
            act = lambda file: os.write(file, data)
        here, there = self.answer(act, one.file), self.answer(act, one.beside)
        assert here == there, self.differ(here, there)
        if not self.strict:
            os.fsync(one.file)
        self.inode_changed(one.mount, one.inode)

    def do_write(self, mount):
        # A descriptor that was opened before another mount changed the file writes where the local one writes: in another place of other bytes.
        one = self.some(lambda each: each.writable() and not self.seen_old(each))
        if one:
            self.write(one)

    def do_ftruncate(self, mount):
        one = self.some(lambda each: each.writable() and not self.seen_old(each))
        if one:
            size = self.rng.choice((0, 0, 10, 5000))
            self.said = f"ftruncate to {size} on {one.mount}"
            os.ftruncate(one.file, size)
            os.ftruncate(one.beside, size)
            self.inode_changed(one.mount, one.inode)

    def do_rewrite(self, mount):
        """As `echo ... >file`."""
        path, data = self.path(), self.rng.randbytes(self.rng.choice(SIZES))
        self.said += f" {path} {len(data)}"
        self.put(mount, path, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def do_append(self, mount):
        """As `echo ... >>file`."""
        path, data = self.path(), self.rng.randbytes(self.rng.choice(SIZES))
        self.said += f" {path} {len(data)}"
        self.put(mount, path, data, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def put(self, mount, path, data, flags):
        if self.path_old(mount, path, last=False):
            return False
        end, existed = self.end_of(path)
        if self.maybe_folder(mount, end):
            return False

        def act(top):
            file = os.open(os.path.join(top, path), flags, 0o644)
            try:
                return os.write(file, data)
            finally:
                os.close(file)
        done = self.both(mount, act)
        if done:
            if not existed:
                self.changed(mount, end)
            self.inode_changed(mount, os.stat(os.path.join(self.beside, path)).st_ino)
        return done

    def by_name(self, mount, act, *paths, changes=True, old=False):
        """act(top): a change by name."""
        if not old and any(self.path_old(mount, path) for path in paths):
            return False
        before = {path: self.identity(path) for path in paths}
        folders = [path for path in paths if os.path.isdir(os.path.join(self.beside, path)) and not os.path.islink(os.path.join(self.beside, path))]
        done = self.both(mount, act)
        for path in folders if done else ():
            self.folders_changed.setdefault(path, {})[mount] = time.monotonic()
        if done and changes:
            for path in paths:
                self.changed(mount, path, os.path.dirname(path))
                for inode in (before[path], self.identity(path)):
                    if inode is not None:
                        self.inode_changed(mount, inode)
        elif done:
            for path in paths:
                if self.identity(path) is not None:
                    self.inode_changed(mount, self.identity(path))
        return done

    def identity(self, path):
        try:
            return os.lstat(os.path.join(self.beside, path)).st_ino
        except OSError:
            return None

    def do_truncate(self, mount):
        path, size = self.path(), self.rng.choice((0, 10, 5000))
        self.said += f" {path} to {size}"
        if not os.path.islink(os.path.join(self.beside, path)):
            self.by_name(mount, lambda top: os.truncate(os.path.join(top, path), size), path, changes=False)

    def do_chmod(self, mount):
        path, mode = self.path(), self.rng.choice((0o600, 0o644, 0o755))
        self.said += f" {path} {mode:o}"
        if not os.path.islink(os.path.join(self.beside, path)):
            self.by_name(mount, lambda top: os.chmod(os.path.join(top, path), mode), path, changes=False)

    def do_utimens(self, mount):
        path, when = self.path(), self.rng.randrange(10**9)
        self.said += f" {path}"
        self.by_name(mount, lambda top: os.utime(os.path.join(top, path), ns=(when * 10**9 + 5, when * 10**9 + 7), follow_symlinks=False), path,
                     changes=False)

    def do_xattr(self, mount):
        path, value = self.path(), self.rng.randbytes(10)
        self.said += f" {path}"
        if not os.path.islink(os.path.join(self.beside, path)):
            self.by_name(mount, lambda top: os.setxattr(os.path.join(top, path), "user.x", value), path, changes=False)

    def do_rename(self, mount):
        one, other = self.path(), self.path()
        self.said += f" {one} to {other}"
        if self.by_name(mount, lambda top: os.rename(os.path.join(top, one), os.path.join(top, other)), one, other):
            self.moved(mount, one, other)

    def moved(self, mount, *paths):
        """What lay below was reached by these names."""
        for path in list(self.names_changed) + [os.path.join(folder, name) for folder in FOLDERS for name in NAMES + ("d0", "d1", "e")]:
            if any(path.startswith(each + "/") for each in paths):
                self.changed(mount, path)

    def do_replace(self, mount):
        """As editors save: a new file takes the place of the old one."""
        path, new, data = self.path(), self.path() + ".new", self.rng.randbytes(self.rng.choice(SIZES))
        self.said += f" {path} by {new} of {len(data)}"
        if self.path_old(mount, path) or self.path_old(mount, new):
            return
        if self.put(mount, new, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            done = self.by_name(mount, lambda top: os.rename(os.path.join(top, new), os.path.join(top, path)), new, path, old=True)
            if not done:
                self.by_name(mount, lambda top: os.unlink(os.path.join(top, new)), new, old=True)

    def do_link(self, mount):
        one, other = self.path(), self.path()
        self.said += f" {one} as {other}"
        self.by_name(mount, lambda top: os.link(os.path.join(top, one), os.path.join(top, other), follow_symlinks=False), one, other)

    def do_unlink(self, mount):
        path = self.path()
        self.said += f" {path}"
        self.by_name(mount, lambda top: os.unlink(os.path.join(top, path)), path)

    def do_mkdir(self, mount):
        path = self.rng.choice(("d0", "d1", "d0/e", self.path()))
        self.said += f" {path}"
        self.by_name(mount, lambda top: os.mkdir(os.path.join(top, path), 0o755), path)

    def do_rmdir(self, mount):
        path = self.rng.choice(("d0", "d1", "d0/e", self.path()))
        self.said += f" {path}"
        if self.rng.random() < 0.5:
            if not any(self.path_old(mount, os.path.join(path, name)) for name in NAMES + ("d0", "d1", "e")):
                for name in NAMES:
                    if os.path.lexists(os.path.join(self.beside, path, name)):
                        self.by_name(mount, lambda top, at=os.path.join(path, name): os.unlink(os.path.join(top, at)), os.path.join(path, name))
        self.by_name(mount, lambda top: os.rmdir(os.path.join(top, path)), path)

    def do_symlink(self, mount):
        path, to = self.path(), self.rng.choice(NAMES)
        self.said += f" {path} to {to}"
        self.by_name(mount, lambda top: os.symlink(to, os.path.join(top, path)), path)

    def do_list(self, mount):
        path = self.rng.choice(FOLDERS)
        self.said += f" {path}"
        if not self.path_old(mount, path):
            self.both(mount, lambda top: sorted(os.listdir(os.path.join(top, path))))

    # What every mount shows -----------------------------------------------------------------------------------------

    @staticmethod
    def differ(here, there):
        if isinstance(here, tuple) and isinstance(there, tuple) and len(here) == len(there):
            for x, y in zip(here, there):
                if isinstance(x, bytes) and isinstance(y, bytes) and x != y and len(x) + len(y) > 60:
                    at = next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), min(len(x), len(y)))
                    return f"{len(x)} bytes, from {at} on {x[at:at + 8]} not {y[at:at + 8]} of {len(y)}"
            here, there = ([x[:24] if isinstance(x, bytes) else x for x in each] for each in (here, there))
        return f"{here}, and on a local file system {there}"

    @staticmethod
    def attributes(status):
        times = (status.st_mtime_ns,) if status.st_mtime_ns % 10 == 7 and status.st_mtime < 10**9 else ()
        size = status.st_size if not stat.S_ISDIR(status.st_mode) else 0
        return oct(status.st_mode), status.st_nlink, size, times

    def shown(self, top, path):
        """A file as whoever opens it finds it."""
        file = os.open(os.path.join(top, path), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                return self.attributes(status), sorted(os.listdir(file))
            try:
                kept = os.getxattr(file, "user.x")
            except OSError:
                kept = None
            return self.attributes(status), kept, os.read(file, 200_000)
        finally:
            os.close(file)

    def compare(self):
        paths = [os.path.join(folder, name) for folder in FOLDERS for name in NAMES] + list(FOLDERS[1:])
        for one in self.open:
            self.compare_open(one)
        for number, top in enumerate(self.tops):
            for path in paths:
                if self.path_old(number, path, last=False):
                    continue
                if os.path.islink(os.path.join(self.beside, path)) or os.path.isdir(os.path.join(self.beside, path)):
                    if self.path_old(number, path):
                        continue
                    if os.path.islink(os.path.join(self.beside, path)):
                        here, there = (self.answer(os.readlink, os.path.join(each, path)) for each in (top, self.beside))
                        assert here == there, f"mount {number}: the link {path} says {here}, not {there}"
                        continue
                here, there = self.answer(self.shown, top, path), self.answer(self.shown, self.beside, path)
                assert here == there, f"mount {number} shows {path} as {self.difference(here, there)}"
                if self.strict or not self.path_old(number, path):
                    here, there = (self.answer(lambda at: self.attributes(os.lstat(at)), os.path.join(each, path)) for each in (top, self.beside))
                    assert here == there, f"mount {number}: stat of {path} says {here}, not {there}"

    def difference(self, here, there):
        if here[0] or there[0]:
            return f"{here[0] or 'there'}, not {there[0] or 'there'}"
        return self.differ(here[1], there[1])

    def compare_open(self, one):
        if self.seen_old(one):
            return
        here, there = self.attributes(os.fstat(one.file)), self.attributes(os.fstat(one.beside))
        assert here == there, f"a descriptor of mount {one.mount} says {here}, not {there}"
        if one.readable():
            here, there = (self.answer(os.pread, file, 200_000, 0) for file in (one.file, one.beside))
            assert here == there, f"a descriptor of mount {one.mount} reads {self.differ(here, there)}"

    def end(self):
        for one in self.open:
            os.close(one.file)
            os.close(one.beside)
        self.open = []


class Differences(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        self.seconds = harness.rounds(6, 900)
        self.steps = int(os.environ.get("STEPS", 150))

    def run_world(self, count, strict):
        if os.environ.get("MODE", "strict" if strict else "default") != ("strict" if strict else "default"):
            self.skipTest("another MODE was asked for")
        if int(os.environ.get("MOUNTS", count)) != count:
            self.skipTest("another number of MOUNTS was asked for")
        mounts = [self.box.mount(f"m{number}", *(("-o", "coherence=strict") if strict else ())) for number in range(count)]
        given = os.environ.get("SEED")
        began, seed = time.monotonic(), int(given) if given else random.randrange(1_000_000)
        rounds = 0
        while True:
            self.one_round(mounts, seed, strict)
            rounds += 1
            seed += 1
            if given or time.monotonic() - began > self.seconds:
                break
        print(f"{rounds} rounds of {self.steps} steps, no difference", file=sys.stderr)
        for mount in mounts:
            self.box.umount(mount)

    def one_round(self, mounts, seed, strict):
        top, beside = f"r{seed}", self.box.path("beside")
        os.mkdir(os.path.join(mounts[0], top))
        os.mkdir(beside)
        world = World([os.path.join(mount, top) for mount in mounts], beside, random.Random(seed), strict)
        steps = []
        try:
            for _ in range(self.steps):
                try:
                    steps.append(world.step())
                except (AssertionError, OSError) as error:
                    steps.append(world.said)
                    told = "\n  ".join(steps[-25:])
                    replay = f"SEED={seed} MODE={'strict' if strict else 'default'} MOUNTS={len(mounts)} STEPS={len(steps)}"
                    raise AssertionError(f"{error}\n{replay} several_mounts_test.py Differences\n  {told}") from error
        finally:
            world.end()
        shutil.rmtree(beside)
        shutil.rmtree(world.tops[0], ignore_errors=True)

    def test_two_mounts(self):
        self.run_world(2, strict=False)

    def test_three_mounts(self):
        self.run_world(3, strict=False)

    def test_two_mounts_strict(self):
        self.run_world(2, strict=True)

    def test_three_mounts_strict(self):
        self.run_world(3, strict=True)


class Race:
    """The same call by a thread for each path, all at once. Returns each one's errno name, or None."""

    def __init__(self, calls):
        self.calls, self.answers = calls, [None] * len(calls)
        self.barrier = threading.Barrier(len(calls))

    def one(self, number):
        self.barrier.wait()
        self.answers[number] = World.answer(self.calls[number])[0]

    def run(self):
        threads = [threading.Thread(target=self.one, args=(number,)) for number in range(len(self.calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.answers


class Names(unittest.TestCase):
    """Names that other mounts change, each in a few words."""

    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        self.a, self.b = self.box.mount("a"), self.box.mount("b")

    @staticmethod
    def put(path, data, flags=os.O_TRUNC):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
        os.write(file, data)
        os.fsync(file)
        os.close(file)

    @staticmethod
    def get(path):
        with open(path, "rb") as file:
            return file.read()

    def test_a_file_made_anew_where_another_mount_removed_one_is_there(self):
        for number in range(8):
            for data in (b"small", bytes(9000)):
                self.put(f"{self.a}/f", b"old")
                os.stat(f"{self.b}/f")
                os.unlink(f"{self.a}/f")
                self.put(f"{self.b}/f", data)
                self.assertEqual(self.get(f"{self.b}/f"), data)
                self.assertEqual(self.get(f"{self.a}/f"), data)

    def test_what_is_appended_goes_to_the_file_that_has_the_name_now(self):
        for number in range(8):
            self.put(f"{self.a}/log", b"one")
            self.assertEqual(self.get(f"{self.b}/log"), b"one")
            os.rename(f"{self.a}/log", f"{self.a}/log.1")
            if number % 2:
                self.put(f"{self.a}/log", b"two ")
            self.put(f"{self.b}/log", b"three", os.O_APPEND)
            self.assertEqual(self.get(f"{self.a}/log"), b"two three" if number % 2 else b"three")
            self.assertEqual(self.get(f"{self.a}/log.1"), b"one")
            os.unlink(f"{self.a}/log")

    def test_a_directory_made_anew_elsewhere_takes_files_at_once(self):
        for number in range(8):
            os.mkdir(f"{self.a}/d")
            self.put(f"{self.a}/d/x", b"1")
            self.assertEqual(os.listdir(f"{self.b}/d"), ["x"])
            os.unlink(f"{self.a}/d/x")
            os.rmdir(f"{self.a}/d")
            os.mkdir(f"{self.a}/d")
            self.put(f"{self.b}/d/y", b"2")
            self.assertEqual(os.listdir(f"{self.a}/d"), ["y"])
            os.mkdir(f"{self.b}/d/z")
            os.rmdir(f"{self.a}/d/z")
            os.unlink(f"{self.a}/d/y")
            os.rmdir(f"{self.a}/d")
            self.assertEqual(World.answer(os.listdir, f"{self.b}/d")[0], "ENOENT")

    def test_chmod_and_truncate_by_a_name_change_the_file_that_has_it(self):
        for number in range(4):
            self.put(f"{self.a}/f", b"old")
            os.stat(f"{self.b}/f")
            os.rename(f"{self.a}/f", f"{self.a}/g")
            self.put(f"{self.a}/f", b"new")
            os.chmod(f"{self.b}/f", 0o600)
            os.truncate(f"{self.b}/f", 2)
            self.assertEqual((self.get(f"{self.a}/f"), self.get(f"{self.a}/g")), (b"ne", b"old"))
            file = os.open(f"{self.a}/g", os.O_RDONLY)
            self.assertEqual(os.fstat(file).st_mode & 0o777, 0o644)
            os.close(file)
            os.unlink(f"{self.a}/f")

    def test_a_name_that_went_elsewhere_is_not_opened_though_another_of_the_same_file_was(self):
        for number in range(4):
            self.put(f"{self.a}/f", b"1")
            os.link(f"{self.a}/f", f"{self.a}/g")
            self.put(f"{self.a}/log", b"2")
            for name in ("f", "g", "log"):
                os.stat(f"{self.b}/{name}")
            os.unlink(f"{self.a}/g")
            os.rename(f"{self.a}/log", f"{self.a}/log.1")
            for name, data, gone in (("f", b"1", "g"), ("log.1", b"2", "log")):
                self.assertEqual(self.get(f"{self.b}/{name}"), data)
                self.assertEqual(World.answer(os.open, f"{self.b}/{gone}", os.O_RDONLY)[0], "ENOENT", gone)
                os.unlink(f"{self.a}/{name}")

    def test_a_path_that_ended_at_a_symbolic_link_says_nothing_of_the_next(self):
        for number in range(4):
            for name in ("f", "g"):
                self.put(f"{self.a}/{name}", b"old")
                os.stat(f"{self.b}/{name}")
            for name in ("f", "g"):
                os.unlink(f"{self.a}/{name}")
            os.symlink("g", f"{self.a}/f")
            self.put(f"{self.a}/g", b"new")
            self.assertEqual(World.answer(os.open, f"{self.b}/f", os.O_RDONLY | os.O_NOFOLLOW)[0], "ELOOP")
            self.assertEqual(self.get(f"{self.b}/g"), b"new")
            os.unlink(f"{self.a}/f")
            os.unlink(f"{self.a}/g")

    def test_a_symbolic_link_that_goes_elsewhere_is_followed_no_more(self):
        for number in range(4):
            for name in ("one", "two"):
                self.put(f"{self.a}/{name}", name.encode())
            os.symlink("one", f"{self.a}/latest")
            self.assertEqual(self.get(f"{self.b}/latest"), b"one")
            os.symlink("two", f"{self.a}/new")
            os.rename(f"{self.a}/new", f"{self.a}/latest")
            self.assertEqual(os.readlink(f"{self.b}/latest"), "two")
            self.put(f"{self.b}/latest", b"three")
            os.unlink(f"{self.a}/latest")
            self.put(f"{self.b}/latest", b"own")
            self.assertEqual([self.get(f"{self.a}/{name}") for name in ("one", "two", "latest")], [b"one", b"three", b"own"])
            for name in ("one", "two", "latest"):
                os.unlink(f"{self.a}/{name}")

    def winners(self, calls, losing, rounds=60):
        """calls(round): what races. One wins in each round."""
        for number in range(harness.rounds(rounds, 2000)):
            answers = Race(calls(number)).run()
            self.assertEqual(answers.count(None), 1, (number, answers))
            self.assertEqual({each for each in answers if each}, {losing}, number)

    def test_one_of_several_makers_and_removers_wins(self):
        tops = (self.a, self.b, self.a, self.b)
        self.winners(lambda n: [lambda at=top: os.mkdir(f"{at}/d{n}") for top in tops], "EEXIST")
        self.winners(lambda n: [lambda at=top: os.rmdir(f"{at}/d{n}") for top in tops], "ENOENT")
        self.winners(lambda n: [lambda at=top: os.close(os.open(f"{at}/f{n}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)) for top in tops], "EEXIST")
        self.winners(lambda n: [lambda at=top, to=i: os.rename(f"{at}/f{n}", f"{at}/{to}-{n}") for i, top in enumerate(tops)], "ENOENT")
        for name in os.listdir(self.a):
            os.stat(f"{self.b}/{name}")
        moved = [name for name in sorted(os.listdir(self.a)) if "-" in name]
        self.winners(lambda n: [lambda at=top: os.unlink(f"{at}/{moved[n % len(moved)]}") if n < len(moved) else os.mkdir(f"{at}/x{n}")
                                for top in tops], "ENOENT", min(60, len(moved)))
        self.assertEqual(os.listdir(self.a), [])

    def replaced(self, writers, readers, size):
        """Writers put whole new files over one name; readers open it all the time. Each reads a whole file."""
        path, wrong = "replaced", []
        self.put(f"{writers[0]}/{path}", bytes([65]) * size)
        end = time.monotonic() + harness.rounds(3, 60)

        def write(top, number):
            while time.monotonic() < end and not wrong:
                number = (number - 65 + 2) % 26 + 65
                self.put(f"{top}/new-{number % 2}", bytes([number]) * size)
                os.rename(f"{top}/new-{number % 2}", f"{top}/{path}")

        def read(top):
            while time.monotonic() < end and not wrong:
                try:
                    found = self.get(f"{top}/{path}")
                except OSError as error:
                    wrong.append((top, error))
                    return
                if len(found) != size or found != found[:1] * size or not 65 <= found[0] <= 90:
                    wrong.append((top, len(found), found[:20]))
        threads = [threading.Thread(target=write, args=(top, 65 + i)) for i, top in enumerate(writers)]
        threads += [threading.Thread(target=read, args=(top,)) for top in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_file_replaced_while_others_open_it_is_always_there_and_whole(self):
        for size in (100, 8000):
            self.replaced([self.a], [self.a, self.a], size)
            self.replaced([self.a, self.a], [self.b, self.b], size)

    def test_what_is_open_here_stays_readable_when_its_last_name_goes_elsewhere(self):
        for size in (100, 8000, 200_000):
            self.put(f"{self.a}/f", b"x" * size)
            file = os.open(f"{self.b}/f", os.O_RDWR)
            os.unlink(f"{self.a}/f")
            self.assertEqual(os.pread(file, size + 1, 0), b"x" * size)
            os.pwrite(file, b"y", size - 1)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            self.assertEqual(os.pread(file, size + 1, 0), b"x" * (size - 1) + b"y")
            os.close(file)


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

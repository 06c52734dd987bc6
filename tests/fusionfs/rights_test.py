#!/usr/bin/env python3
"""Who may do what: random changes of access control lists, modes and owners by several users, made on a mount and beside it on the local
file system. After each the answers are compared, and what every user may do: on the mount that made the change, and on a second one
that refuses to set lists (-o noacl) and believes nothing (coherence=strict). What a list forbids on one mount is allowed on none.

  SEED=7 STEPS=50 rights_test.py Lists.test_all_mounts_and_a_local_file_system_say_the_same"""
import errno
import os
import pickle
import random
import shutil
import stat
import struct
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP_OBJECT, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
REFUSED = errno.errorcode[errno.EOPNOTSUPP]
USERS = {0: [0], 1001: [2001], 1002: [2002], 1003: [2001, 2002], 1004: [2004]}  # and their groups, the first one first


def access_list(*entries):
    """(tag, permissions, id), as the kernel takes it."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, 0xffffffff if who is None else who) for tag, bits, who in entries)


def told(act, *args):
    try:
        return act(*args)
    except OSError as error:
        return errno.errorcode[error.errno]


def as_user(user, act, *args):
    """act(*args) in a process of that user."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.setgroups(USERS[user])
            os.setresgid(*USERS[user][:1] * 3)
            os.setresuid(user, user, user)
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(act(*args), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    return answer


def opened(path, flags):
    os.close(os.open(path, flags))
    return "opened"


def shown(top, paths):
    """What a user sees of each path, and may do with it."""
    found = []
    for path in paths:
        at = os.path.join(top, path)
        status = told(os.lstat, at)
        if isinstance(status, os.stat_result):
            status = oct(status.st_mode), status.st_uid, status.st_gid
        lists = [told(os.getxattr, at, name) for name in (ACCESS, DEFAULT)] + [told(lambda: sorted(os.listxattr(at)))]
        may = [told(opened, at, flags) for flags in (os.O_RDONLY, os.O_WRONLY)] + [os.access(at, bits) for bits in (os.R_OK, os.W_OK, os.X_OK)]
        found.append((path, status, lists, may, told(lambda: sorted(os.listdir(at)))))
    return found


class World:
    def __init__(self, rng, changed, looked_at, beside):
        self.rng, self.changed, self.looked_at, self.beside = rng, changed, looked_at, beside
        self.paths = ["f", "d", "d/f"]
        self.said = ""
        for top in (changed, beside):
            os.mkdir(os.path.join(top, "d"), 0o755)
            for name in ("f", "d/f"):
                with open(os.path.join(top, name), "wb") as file:
                    file.write(b"data")
            for name in self.paths:
                os.chown(os.path.join(top, name), 1001, 2001)

    def list(self):
        rng = self.rng
        bits = lambda: rng.choice((0, 1, 4, 5, 6, 7, 7))
        users = [(USER, bits(), user) for user in sorted(rng.sample((1001, 1002, 1003, 1004), rng.choice((0, 0, 1, 2))))]
        groups = [(GROUP, bits(), group) for group in sorted(rng.sample((2001, 2002, 2004), rng.choice((0, 0, 1, 2))))]
        mask = [(MASK, bits(), None)] if users or groups or rng.random() < 0.4 else []
        return access_list((OWNER, rng.choice((6, 7, 7)), None), *users, (GROUP_OBJECT, bits(), None), *groups, *mask, (OTHER, bits(), None))

    def step(self):
        rng = self.rng
        what, user, path = rng.choice(["set"] * 4 + ["hand_down"] * 2 + ["chmod"] * 3 + ["remove", "chown", "create", "create", "damaged", "write"]), \
            rng.choice((0, 1001, 1001, 1001, 1002, 1003)), rng.choice(self.paths)
        if what == "create" and len(self.paths) >= 8:
            what = "chmod"
        mode, umask, value = rng.choice((0o600, 0o640, 0o644, 0o660, 0o755, 0o750, 0o2755, 0o4755, 0o777)), rng.choice((0, 0o022, 0o077)), self.list()
        folder, name = rng.choice([each for each in self.paths if each.startswith("d") and not each.endswith("f")]), f"n{len(self.paths)}"
        directory, name_removed, owner, group = rng.random() < 0.4, rng.choice((ACCESS, DEFAULT)), rng.choice((-1, 1002)), rng.choice((2001, 2002))

        def act(top):
            at = os.path.join(top, path)
            os.umask(umask)
            if what == "set":
                os.setxattr(at, ACCESS, value)
            elif what == "hand_down":
                os.setxattr(at, DEFAULT, value)
            elif what == "remove":
                os.removexattr(at, name_removed)
            elif what == "chmod":
                os.chmod(at, mode)
            elif what == "chown":
                os.chown(at, owner, group)
            elif what == "damaged":
                os.setxattr(at, ACCESS, value[:-3])
            elif what == "write":
                with open(at, "r+b") as file:
                    file.write(b"more")
            elif directory:
                os.mkdir(os.path.join(top, folder, name), mode & 0o1777)
            else:
                os.close(os.open(os.path.join(top, folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777))
        self.said = f"{what} {path} or {folder}/{name}{'/' if directory else ''} by {user}: mode {mode:o}, umask {umask:o}, {value[4:].hex(' ', 8)}"
        here, there = (as_user(user, told, act, top) for top in (self.changed, self.beside))
        self.said += f" -> {there}"
        assert here == there, f"the mount says {here}, a local file system {there}"
        if what == "create" and there is None:
            self.paths.append(os.path.join(folder, name))

    def compare(self):
        for user in USERS:
            there = as_user(user, shown, self.beside, self.paths)
            for number, top in enumerate([self.changed] + self.looked_at):
                for one, other in zip(as_user(user, shown, top, self.paths), there):
                    assert one == other, f"user {user} on mount {number} sees {one}, and on a local file system {other}"


@unittest.skipIf(os.geteuid() != 0, "needs root, to become other users")
class Lists(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)
        os.chmod(self.box.folder, 0o711)
        self.beside = self.box.path("local")
        os.mkdir(self.beside)
        if not self.keeps_lists(self.beside):
            os.rmdir(self.beside)
            self.beside = tempfile.mkdtemp(dir="/dev/shm")
            self.addCleanup(shutil.rmtree, self.beside, True)
            os.chmod(self.beside, 0o755)
            if not self.keeps_lists(self.beside):
                self.skipTest("no local file system with access control lists to compare with")

    @staticmethod
    def keeps_lists(folder):
        try:
            os.setxattr(folder, DEFAULT, access_list((OWNER, 7, None), (GROUP_OBJECT, 5, None), (OTHER, 5, None)))
            os.removexattr(folder, DEFAULT)
            return True
        except OSError:
            return False

    def test_all_mounts_and_a_local_file_system_say_the_same(self):
        changed, other = self.box.mount("m0"), self.box.mount("m1", "-o", "noacl,coherence=strict")
        given = os.environ.get("SEED")
        began, seed, rounds = time.monotonic(), int(given) if given else random.randrange(1_000_000), 0
        while True:
            top = f"r{seed}"
            for folder in (changed, self.beside):
                os.mkdir(os.path.join(folder, top), 0o755)
            world = World(random.Random(seed), os.path.join(changed, top), [os.path.join(other, top)], os.path.join(self.beside, top))
            steps = []
            for _ in range(int(os.environ.get("STEPS", 30))):
                try:
                    world.said = "comparing"
                    world.step()
                    steps.append(world.said)
                    world.compare()
                except AssertionError as error:
                    told_steps = "\n  ".join(steps + [world.said])
                    raise AssertionError(f"{error}\nSEED={seed} STEPS={len(steps)} rights_test.py\n  {told_steps}") from error
            rounds, seed = rounds + 1, seed + 1
            if given or time.monotonic() - began > harness.rounds(10, 600):
                break
        print(f"{rounds} rounds, no difference", file=sys.stderr)
        for mount in (changed, other):
            self.box.umount(mount)

    def test_a_list_counts_on_every_mount_and_is_set_on_those_that_take_them(self):
        mounts = [self.box.mount("m0"), self.box.mount("m1", "-o", "noacl"), self.box.mount("m2", "-o", "noacl,umask=007")]
        path = os.path.join(mounts[0], "f")
        with open(path, "wb") as file:
            file.write(b"data")
        os.chown(path, 1001, 2001)
        os.chmod(path, 0o640)
        for mount in mounts:
            self.assertEqual(as_user(1003, told, opened, os.path.join(mount, "f"), os.O_RDONLY), "EACCES" if mount == mounts[2] else "opened")
        # The mode's group bits are the mask's from now on: 0660.
        value = access_list((OWNER, 6, None), (USER, 6, 1004), (GROUP_OBJECT, 0, None), (MASK, 6, None), (OTHER, 0, None))
        os.setxattr(path, ACCESS, value)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o660)
        time.sleep(1.1)  # other mounts may believe for a second what was
        for mount in mounts:
            at = os.path.join(mount, "f")
            self.assertEqual(as_user(1003, told, opened, at, os.O_RDONLY), "EACCES", mount)
            self.assertEqual(as_user(1004, told, opened, at, os.O_RDWR), "EACCES" if mount == mounts[2] else "opened", mount)
        self.assertEqual(os.getxattr(os.path.join(mounts[1], "f"), ACCESS), value)
        for mount in mounts[1:]:
            at = os.path.join(mount, "f")
            self.assertEqual(told(os.setxattr, at, ACCESS, value), REFUSED)
            self.assertEqual(told(os.removexattr, at, ACCESS), REFUSED)
            self.assertEqual(told(os.setxattr, mount, DEFAULT, value), REFUSED)
        # chmod(2) there changes the mask; the owning group gets nothing by it.
        os.chmod(os.path.join(mounts[1], "f"), 0o664)
        time.sleep(1.1)
        self.assertEqual(os.getxattr(path, ACCESS), value[:-12] + access_list((MASK, 6, None), (OTHER, 4, None))[4 + 4:])
        os.chmod(os.path.join(mounts[1], "f"), 0o640)
        time.sleep(1.1)
        for mount in mounts[:2]:
            at = os.path.join(mount, "f")
            self.assertEqual(as_user(1003, told, opened, at, os.O_RDONLY), "EACCES", mount)
            self.assertEqual([as_user(1004, told, opened, at, flags) for flags in (os.O_RDONLY, os.O_RDWR)], ["opened", "EACCES"], mount)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o640)
        for mount in mounts:
            self.box.umount(mount)


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

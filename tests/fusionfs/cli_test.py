#!/usr/bin/env python3
"""The fusionfs program: its verbs and options, a mount that is its own node, and rm -rf, copies and SQLite on it."""
import ctypes
import errno
import mmap
import os
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402


def tree(top):
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            body = b""
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    body = file.read()
            found[os.path.relpath(path, top)] = (stat.S_IMODE(status.st_mode), status.st_size if body else 0, hash(body))
    return found


def as_nobody(action):
    """Does it in a process of user nobody; how that ended, 0 when nothing was raised."""
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


class Program(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)

    def test_an_emptied_file_system_holds_no_key_but_its_roots_a_minute_later(self):
        mount = self.box.mount("mnt")

        def keys():
            every = self.box.json("zht", "scan", "{d:", "--json")
            return sorted(each["key"] for each in every if not each["key"].startswith("{d:0}"))

        for d in range(6):
            folder = os.path.join(mount, f"d{d}")
            os.makedirs(os.path.join(folder, "below"))
            for f in range(60):
                with open(os.path.join(folder, f"f{f}"), "wb") as file:
                    file.write(b"x" * (10 if f % 3 else 10_000))
        for d in range(5):
            for f in range(20):
                os.rename(os.path.join(mount, f"d{d}", f"f{f}"), os.path.join(mount, f"d{d + 1}", f"moved{f}"))
                os.link(os.path.join(mount, f"d{d}", f"f{20 + f}"), os.path.join(mount, f"d{d + 1}", f"linked{f}"))
            os.rename(os.path.join(mount, f"d{d}", "below"), os.path.join(mount, f"d{d + 1}", "came"))
        os.setxattr(os.path.join(mount, "d0", "f59"), "user.a", b"b")
        self.assertGreater(len(keys()), 400, "or this test shows nothing")
        shutil.rmtree(mount, ignore_errors=True)
        self.assertEqual(os.listdir(mount), [])
        harness.wait_for(lambda: not keys(), "the last key", 60)

    def test_a_mount_that_is_its_own_node(self):
        mount = self.box.mount("mnt", "-o", "embed")
        self.assertEqual(len(self.box.processes()), 1, "mount and node are one process")
        with open(os.path.join(mount, "a"), "w", encoding="ascii") as file:
            file.write("hello")
        self.assertEqual(self.box.out("fusionfs", "ls", "/").split()[-1], "a")
        other = self.box.mount("other")  # beside it, through the node's socket
        with open(os.path.join(other, "a"), encoding="ascii") as file:
            self.assertEqual(file.read(), "hello")
        with open(os.path.join(other, "b"), "w", encoding="ascii") as file:
            file.write("from the other")
        with open(os.path.join(mount, "b"), encoding="ascii") as file:
            self.assertEqual(file.read(), "from the other")
        pid = self.box.node_pid()
        self.box.umount(mount)
        self.assertEqual(self.box.node_pid(), pid, "the other mount has it still")
        os.mkdir(os.path.join(other, "d"))
        self.box.umount(other)
        harness.wait_for(lambda: not self.box.processes(), "the end of the node with the last that used it")
        self.assertEqual(self.box.out("fusionfs", "ls", "/").split()[-1], "d")  # starts a node in the background
        self.box.run("zht", "stop")
        harness.wait_for(lambda: not self.box.processes(), "the end of every process of the sandbox")
        # A lone mount takes its node along.
        mount = self.box.mount("mnt", "-o", "embed")
        self.box.umount(mount)
        harness.wait_for(lambda: not self.box.processes(), "the end of mount and node")
        # kill -9 takes both; what was acknowledged is there at the next mount.
        mount = self.box.mount("mnt", "-o", "embed")
        for number in range(200):
            with open(os.path.join(mount, "d", str(number)), "wb") as file:
                file.write(b"x" * number)
        os.kill(self.box.node_pid(), signal.SIGKILL)
        harness.wait_for(lambda: not self.box.processes(), "the end of the process")
        mount = self.box.mount("mnt", "-o", "embed")
        self.assertEqual(sorted(os.listdir(mount)), ["a", "b", "d"])
        for number in range(200):
            self.assertEqual(os.path.getsize(os.path.join(mount, "d", str(number))), number)
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))

    def test_zht_stop_takes_the_mount_away_first(self):
        mount = self.box.mount("mnt", "-o", "embed")
        with open(os.path.join(mount, "a"), "wb") as file:
            file.write(b"x" * 100_000)
        self.box.run("zht", "stop")
        harness.wait_for(lambda: not self.box.processes(), "the end of every process of the sandbox")
        self.assertFalse(self.box.mounted(mount))
        mount = self.box.mount("mnt")
        self.assertEqual(os.path.getsize(os.path.join(mount, "a")), 100_000)
        self.box.umount(mount)

    def test_the_verbs_that_look_agree_with_the_mount(self):
        mount = self.box.mount()
        os.makedirs(os.path.join(mount, "d/e"))
        for name, size in (("d/small", 10), ("d/e/big", 100_000)):
            with open(os.path.join(mount, name), "wb") as file:
                file.write(b"x" * size)
        os.link(os.path.join(mount, "d/small"), os.path.join(mount, "d/again"))
        os.symlink("small", os.path.join(mount, "d/link"))
        listed = {each["name"]: each for each in self.box.json("fusionfs", "ls", os.path.join(mount, "d"), "--json")}
        self.assertEqual(sorted(listed), sorted(os.listdir(os.path.join(mount, "d"))))
        self.assertEqual(listed["small"]["link_count"], 2)
        one = self.box.json("fusionfs", "stat", "/d/e/big", "--json")
        status = os.stat(os.path.join(mount, "d/e/big"))
        self.assertEqual((one["inode"], one["size_bytes"], one["content"]), (status.st_ino, 100_000, "chunks"))
        total = self.box.json("fusionfs", "du", "/", "--json")[0]
        self.assertEqual((total["file_count"], total["directory_count"], total["size_bytes"]), (3, 3, 100_015))
        self.assertEqual(self.box.json("fusionfs", "df", "--json")["chunk_count"], 1)
        layout = os.getxattr(os.path.join(mount, "d/e/big"), "fusionfs.layout").decode()
        self.assertIn("content=chunks\n", layout)
        self.assertEqual(os.getxattr(os.path.join(mount, "d"), "fusionfs.homes"), b"1")
        self.assertNotIn("fusionfs.layout", os.listxattr(os.path.join(mount, "d")))
        with self.assertRaises(PermissionError):
            os.setxattr(mount, "fusionfs.homes", b"2")
        for arguments in (("ls", "/none"), ("stat", "/d/small/x"), ("du", "/none")):
            self.box.run("fusionfs", *arguments, expect=3)
        self.box.umount(mount)

    def test_options(self):
        mount = self.box.mount("mnt", "-o", "uid=4321,gid=77,umask=077,attr_timeout=0.5")
        with open(os.path.join(mount, "a"), "w", encoding="ascii"):
            pass
        status = os.stat(os.path.join(mount, "a"))
        self.assertEqual((status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)), (4321, 77, 0o600))
        self.box.umount(mount)
        # As fstab and mount(8) may give them.
        mount = self.box.mount("mnt", "-o", "fsname=shared,sync,dirsync,atime,nouser,x-systemd.requires=network.target,comment=a b")
        with open("/proc/self/mounts", encoding="utf-8") as file:
            line = next(each for each in file if each.split()[1] == mount)
        self.assertEqual(line.split()[0], "shared")
        self.assertIn("sync", line.split()[3].split(","))
        with open(os.path.join(mount, "a"), "wb") as file:
            file.write(b"x" * 10_000)
        self.box.umount(mount)
        point = self.box.path("other")
        os.mkdir(point)
        for bad in ("bogus", "uid=x", "umask=9", "threads=0", "attr_timeout=-1"):
            _, err = self.box.run("fusionfs", "mount", "-o", bad, point, expect=2)
            self.assertIn(bad.split("=", maxsplit=1)[0], err)

    def test_the_helper_of_mount(self):
        point = self.box.path("by-helper")
        os.mkdir(point)
        self.box.mounts.append(point)
        self.box.run("mount.fusionfs", "local", point, "-s", "-v", "-o", "rw,noatime,nosuid")
        harness.wait_for(lambda: self.box.mounted(point), "a mount")
        if os.geteuid() == 0:
            # As mount(8) calls it for `mount -o remount,ro`, with what else the mount has.
            others = ",nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other"
            self.box.run("mount.fuse.fusionfs", "fusionfs", point, "-o", "ro,remount" + others)
            with self.assertRaises(OSError) as failed:
                os.mkdir(os.path.join(point, "d"))
            self.assertEqual(failed.exception.errno, errno.EROFS)
            self.box.run("mount.fuse.fusionfs", "fusionfs", point, "-o", "rw,remount" + others)
            os.mkdir(os.path.join(point, "d"))
            self.box.run("mount.fuse.fusionfs", "fusionfs", self.box.folder, "-o", "remount,ro", expect=3)
        self.box.umount(point)

    def test_an_ordinary_user_mounts_through_fusermount3(self):
        if os.geteuid() != 0:
            self.skipTest("not root: cannot become another user")
        for program in ("fusermount3", "setpriv", "unshare"):
            if shutil.which(program) is None:
                self.skipTest(f"no program {program}")
        os.chmod(self.box.folder, 0o711)
        user = self.box.path("user")
        os.mkdir(user)
        os.chown(user, 65534, 65534)
        self.box.data = os.path.join(user, "data")
        self.box.environment.update(ZHT_DATA=self.box.data, HOME=user, XDG_DATA_HOME=user)
        # In a mount namespace of its own, with a device that users may open, as most machines have it.
        device = self.box.path("fuse")
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(10, 229))
        os.chmod(device, 0o666)
        become = "setpriv --reuid=65534 --regid=65534 --clear-groups"
        if self.box.run("sh", "-c", f"{become} test -x {harness.BIN}/fusionfs", expect=None) and self.box.status != 0:
            self.skipTest(f"{harness.BIN} cannot be read by users")
        with open(self.box.path("as-user"), "w", encoding="ascii") as file:
            file.write("set -ex; cd; mkdir m; fusionfs mount m; echo hello > m/a; test `cat m/a` = hello; test `stat -c %u m/a` = 65534\n"
                       "exec 3< m/a; ! fusionfs umount m 2> said; grep -q lazy said; exec 3<&-\n"
                       "fusionfs umount m; ! mountpoint -q m; test -z \"`ls m`\"\n"
                       "if grep -qx user_allow_other /etc/fuse.conf; then fusionfs mount -o allow_other m; fusionfs umount m\n"
                       "else ! fusionfs mount -o allow_other m 2> said; grep -q user_allow_other said; fi; zht stop\n")
        self.box.run("unshare", "-m", "sh", "-c", f"mount --make-rprivate / && mount --bind {device} /dev/fuse && "
                     f"exec {become} sh {self.box.path('as-user')}")

    def test_a_new_files_writes_pass_the_page_cache_and_nobody_can_tell(self):
        mount = self.box.mount("mnt")
        path = os.path.join(mount, "f")
        writer = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
        os.write(writer, b"a" * 8192)
        reader = os.open(path, os.O_RDONLY)
        with mmap.mmap(reader, 8192, prot=mmap.PROT_READ) as mapped:
            self.assertEqual(mapped[:], b"a" * 8192)
            for letter in b"bcdefgh":
                os.pwrite(writer, bytes([letter]) * 5000, 100)
                self.assertEqual(mapped[99:5101], b"a" + bytes([letter]) * 5000 + b"a")
                self.assertEqual(os.pread(reader, 5002, 99), b"a" + bytes([letter]) * 5000 + b"a")
        os.close(reader)
        os.close(writer)
        if os.geteuid() == 0:
            # Written by somebody without privileges, a file is not run with its owner's any more.
            writer = os.open(os.path.join(mount, "g"), os.O_CREAT | os.O_WRONLY, 0o777)
            os.fchmod(writer, 0o6777)
            as_nobody(lambda: os.write(writer, b"x"))
            self.assertEqual(stat.S_IMODE(os.fstat(writer).st_mode), 0o777)
            os.close(writer)
        self.box.umount(mount)

    def test_what_local_file_systems_do_with_odd_arguments(self):
        mount = self.box.mount("mnt")
        path = os.path.join(mount, "f")
        with open(path, "wb") as file:
            file.write(b"x" * 10_000)
            # Room that the disk does not have is refused at once and nothing is taken. (The C library's fallback writes.)
            with self.assertRaises(OSError) as failed:
                os.posix_fallocate(file.fileno(), 0, 1 << 49)
            self.assertEqual(failed.exception.errno, errno.ENOSPC)
            self.assertLess(os.stat(path).st_blocks, 1000)
        # The years that are kept; what lies outside becomes the nearest.
        for wanted, kept in ((-2**31, -2**31), (1 << 33, 1 << 33), (2**62, 9223372035), (-2**62, -9223372035)):
            os.utime(path, (wanted, wanted))
            self.assertEqual((int(os.stat(path).st_atime), int(os.stat(path).st_mtime)), (kept, kept))
        for name, error in (("user.", errno.EINVAL), ("nowhere.x", errno.EOPNOTSUPP), ("x", errno.EOPNOTSUPP),
                            ("system.x", errno.EOPNOTSUPP)):
            with self.assertRaises(OSError) as failed:
                os.setxattr(path, name, b"1")
            self.assertEqual(failed.exception.errno, error, name)
        os.setxattr(path, "user.x", b"1")
        if os.geteuid() == 0:
            for name in ("trusted.x", "security.x"):
                os.setxattr(path, name, b"1")
            self.assertEqual(sorted(os.listxattr(path)), ["security.x", "trusted.x", "user.x"])
            os.chmod(self.box.folder, 0o711)
            os.chmod(path, 0o6777)

            def look_and_empty():
                assert sorted(os.listxattr(path)) == ["security.x", "user.x"], "others are not told of what root alone may read"
                os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
            self.assertEqual(as_nobody(look_and_empty), 0)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o777)
        self.box.umount(mount)

    def test_a_name_given_to_another_file_by_another_mount_opens_that_file_at_once(self):
        one, other = self.box.mount("one"), self.box.mount("other")
        for number in range(30):
            content = b"%d" % number + b"x" * (number % 3 * 4000)
            with open(os.path.join(one, "new"), "wb") as file:
                file.write(content)
            os.rename(os.path.join(one, "new"), os.path.join(one, "f"))
            with open(os.path.join(other, "f"), "rb") as file:  # whose kernel believes to know the name
                self.assertEqual(file.read(), content)
        # What is open stays what it was; it can be opened anew through /proc though no name leads to it.
        with open(os.path.join(other, "f"), "rb") as file:
            os.unlink(os.path.join(one, "f"))
            with open(f"/proc/self/fd/{file.fileno()}", "rb") as again:
                self.assertEqual(again.read(), content)
            self.assertEqual(file.read(), content)
        with self.assertRaises(FileNotFoundError):
            os.open(os.path.join(other, "f"), os.O_RDONLY)
        self.box.umount(one)
        self.box.umount(other)

    def test_a_file_handle_outlives_the_kernels_cache(self):
        if os.geteuid() != 0:
            self.skipTest("not root: open_by_handle_at is not allowed")
        libc = ctypes.CDLL(None, use_errno=True)
        mount = self.box.mount()
        os.makedirs(os.path.join(mount, "a/b"))
        with open(os.path.join(mount, "a/b/f"), "wb") as file:
            file.write(b"content")
        handles = {}
        for name in ("a/b/f", "a/b", "gone"):
            if name == "gone":
                with open(os.path.join(mount, name), "wb"):
                    pass
            handle, where = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136), ctypes.c_int()
            self.assertEqual(libc.name_to_handle_at(-100, os.path.join(mount, name).encode(), handle, ctypes.byref(where), 0), 0)
            handles[name] = handle
        os.unlink(os.path.join(mount, "gone"))
        self.box.umount(mount)
        mount = self.box.mount()  # its kernel knows no inode
        top = os.open(mount, os.O_RDONLY)
        file = libc.open_by_handle_at(top, handles["a/b/f"], os.O_RDONLY)
        self.assertEqual(os.read(file, 100), b"content")
        folder = libc.open_by_handle_at(top, handles["a/b"], os.O_RDONLY)
        self.assertEqual(os.listdir(folder), ["f"])
        self.assertEqual(os.readlink(f"/proc/self/fd/{folder}"), os.path.join(mount, "a/b"))
        self.assertEqual(libc.open_by_handle_at(top, handles["gone"], os.O_RDONLY), -1)
        self.assertEqual(ctypes.get_errno(), errno.ESTALE)
        for each in (top, file, folder):
            os.close(each)
        self.box.umount(mount)

    def test_a_listing_does_not_take_back_what_was_written(self):
        mount = self.box.mount()
        for size in (100, 10_000):
            path = os.path.join(mount, str(size))
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            for part in range(1, 4):
                os.write(file, b"x" * size)  # nothing is committed yet
                # The kernel asks for the attributes of all that is listed.
                self.assertEqual([each.name for each in os.scandir(mount) if each.stat().st_size == 0], [])
                self.assertEqual(os.fstat(file).st_size, part * size)
                self.assertEqual(os.pread(file, 4 * size, 0), b"x" * part * size)
                # tar --sparse takes a file without blocks for one big hole.
                self.assertGreater(os.stat(path).st_blocks, 0)
            os.close(file)
            os.listdir(mount)
            self.assertGreaterEqual(os.stat(path).st_blocks * 512, 3 * size)
        self.box.umount(mount)

    def test_a_directory_counts_its_folders_right_while_threads_change_and_look(self):
        mount = self.box.mount("mnt", "-o", "attr_timeout=0")
        top = os.path.join(mount, "top")
        os.mkdir(top)

        def change(name):
            for _ in range(100):
                os.mkdir(os.path.join(top, name))
                os.rmdir(os.path.join(top, name))
            os.mkdir(os.path.join(top, name))

        threads = [threading.Thread(target=change, args=(str(number),)) for number in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            os.stat(top)
        self.assertEqual(os.stat(top).st_nlink, 2 + len(threads))
        self.box.umount(mount)

    def test_real_use(self):
        mount = self.box.mount("mnt", "-o", "embed")
        local = self.box.path("local")
        shutil.copytree(os.path.join(harness.TREE, "fusionfs"), local, symlinks=True)
        shutil.copytree(local, os.path.join(mount, "copy"), symlinks=True)
        self.assertEqual(tree(local), tree(os.path.join(mount, "copy")))
        database = sqlite3.connect(os.path.join(mount, "data.db"))
        database.execute("pragma journal_mode=delete")
        database.execute("create table t(a integer primary key, b text)")
        for batch in range(20):
            with database:
                database.executemany("insert into t(b) values(?)", [(str(batch) * 100,) for _ in range(100)])
        self.assertEqual(database.execute("select count(*) from t").fetchone(), (2000,))
        self.assertEqual(database.execute("pragma integrity_check").fetchone(), ("ok",))
        database.close()
        many = os.path.join(mount, "many")
        os.mkdir(many)
        count = harness.rounds(20_000, 200_000)  # past the size at which a directory is split
        for number in range(count):
            with open(os.path.join(many, f"f{number}"), "wb"):
                pass
        self.assertEqual(len(set(os.listdir(many))), count)
        self.assertGreater(int(os.getxattr(many, "fusionfs.homes")), 1)
        subprocess.run(["rm", "-rf", many], check=True, timeout=300)
        self.assertEqual(sorted(os.listdir(mount)), ["copy", "data.db"])
        self.box.umount(mount)
        self.assertIn("clean", self.box.out("fusionfs", "fsck"))


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

#!/usr/bin/env python3
"""A mount used as people use a file system: cp -a, tar, git clone and a build, rm -rf, unmount, restart, kill -9."""
import hashlib
import os
import shutil
import stat
import subprocess
import unittest

import harness
from harness import TREE, Sandbox, rounds

SOURCES = "/usr/include/linux" if os.path.isdir("/usr/include/linux") else "/usr/include"


def digest(root):
    """{relative path: everything that must survive a copy}, of all below `root`."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            entry = [stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid]
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    entry += [status.st_size, hashlib.sha256(file.read()).hexdigest(), status.st_mtime_ns]
            elif stat.S_ISLNK(status.st_mode):
                entry = [stat.S_IFLNK, os.readlink(path)]
            found[os.path.relpath(path, root)] = entry
    return found


class Files(unittest.TestCase):
    maxDiff = 2000

    def same(self, expected, found, what):
        self.assertEqual(sorted(set(expected) ^ set(found)), [], f"{what}: names differ")
        different = [(name, expected[name], found[name]) for name in expected if expected[name] != found[name]]
        self.assertEqual(different[:5], [], f"{what}: {len(different)} differ")

    def test_copies_archives_and_repositories_are_equal_and_survive_a_remount(self):
        with Sandbox(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*") as box:
            # A local tree to copy from, with what an include folder lacks.
            local = box.path("local")
            shutil.copytree(SOURCES, local, symlinks=True)
            os.makedirs(os.path.join(local, "empty", "deep" * 10, "x" * 255))
            os.symlink("nowhere", os.path.join(local, "dangling"))
            with open(os.path.join(local, "big"), "wb") as file:
                for i in range(40):
                    file.write(hashlib.sha512(str(i).encode()).digest() * (1 << 13))  # 20 MiB, many chunks
            with open(os.path.join(local, "odd name \u00e9\n"), "wb") as file:
                file.write(b"\0" * 4097)
            os.chmod(os.path.join(local, "big"), 0o751)
            with open(os.path.join(local, "none"), "wb"):
                pass
            expected = digest(local)

            mount = box.mount()
            copy = os.path.join(mount, "copy")
            box.run("cp", "-a", local, copy)
            self.same(expected, digest(copy), "cp -a")

            box.run("tar", "--format=posix", "-C", mount, "-cf", os.path.join(mount, "a.tar"), "copy")
            os.mkdir(os.path.join(mount, "untar"))
            box.run("tar", "-C", os.path.join(mount, "untar"), "-xpf", os.path.join(mount, "a.tar"))
            self.same(expected, digest(os.path.join(mount, "untar", "copy")), "tar")

            repository = TREE
            if not os.path.exists(os.path.join(TREE, ".git")):
                repository = box.path("repository")
                shutil.copytree(TREE, repository, ignore=shutil.ignore_patterns("build"))
                for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"]):
                    box.run("git", "-C", repository, *command)
            clone, beside = os.path.join(mount, "clone"), box.path("beside")
            box.run("git", "clone", "-q", repository, clone)
            box.run("git", "clone", "-q", repository, beside)
            box.run("git", "-C", clone, "fsck", "--full")
            self.assertEqual(box.out("git", "-C", clone, "status", "--porcelain"), "")
            in_clone, in_beside = ({n: e[:2] + e[4:6] for n, e in digest(d).items() if not n.startswith(".git")}
                                   for d in (clone, beside))
            self.same(in_beside, in_clone, "git clone")

            if shutil.which("cmake") and shutil.which("ninja"):
                target = ["--target", "zht_api"] if rounds(1, 0) else []
                box.run("cmake", "--preset", "release", "-DCCACHE=", cwd=clone, timeout=600)
                box.run("cmake", "--build", "--preset", "release", *target, cwd=clone, timeout=3000)
                self.assertTrue(os.path.getsize(os.path.join(clone, "build/release/novoht/libnovoht_base.a")) > 0)

            box.run("rm", "-rf", os.path.join(mount, "untar"), clone)
            self.assertEqual(sorted(os.listdir(mount)), ["a.tar", "copy"])

            box.umount(mount)
            self.assertEqual(os.listdir(mount), [], "the folder under the mount is empty again")
            box.run("zht", "stop")
            harness.wait_for(lambda: not box.processes(), "the end of every process of the sandbox")
            mount = box.mount("again")
            self.same(expected, digest(os.path.join(mount, "copy")), "after unmount, stop and remount")

            # What fsync returned for survives kill -9 of the node; the mount goes on.
            path = os.path.join(mount, "synced")
            with open(path, "wb") as file:
                file.write(b"kept" * 100_000)
                file.flush()
                os.fsync(file.fileno())
            box.kill_node()
            with open(path, "rb") as file:
                self.assertEqual(file.read(), b"kept" * 100_000)
            os.mkdir(os.path.join(mount, "after"))
            box.kill_node()
            self.same(expected, digest(os.path.join(mount, "copy")), "after kill -9 of the node")
            self.assertTrue(os.path.isdir(os.path.join(mount, "after")))
            free = os.statvfs(mount)
            self.assertGreater(free.f_blocks, 0)
            box.run("rm", "-rf", os.path.join(mount, "copy"))
            self.assertEqual(sorted(os.listdir(mount)), ["a.tar", "after", "synced"])
            box.umount(mount)

    def test_a_second_node_reads_what_the_first_has_written(self):
        """Two nodes started and mounted as one does it, with no word of where chunks are served."""
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "1", "--partitions", "32", "--listen", "127.0.0.1:0")
            other = {"ZHT_DATA": box.path("second")}
            box.run("zht", "serve", "--background", "--instances", "1", "--join", box.json("zht", "status", "--json")["tcp"],
                    "--listen", "127.0.0.1:0", env=other)
            try:
                here, there = box.mount(), box.path("there")
                os.mkdir(there)
                box.run("fusionfs", "mount", there, env=other)
                for writer, reader in ((here, there), (there, here)):
                    content = os.urandom(300_000)
                    name = os.path.basename(writer)
                    with open(os.path.join(writer, name), "wb") as file:
                        file.write(content)
                    with open(os.path.join(reader, name), "rb") as file:
                        self.assertEqual(file.read(), content)
                # What is unmounted here is read there all the same: the node keeps serving it.
                box.umount(here)
                with open(os.path.join(there, "mnt"), "rb") as file:
                    self.assertEqual(len(file.read()), 300_000)
                box.run("fusionfs", "umount", there, env=other)
            finally:
                box.run("zht", "stop", env=other)

    def test_the_errors_of_a_local_file_system(self):
        with Sandbox() as box:
            mount = box.mount()
            os.makedirs(os.path.join(mount, "d/e"))
            with open(os.path.join(mount, "f"), "w", encoding="ascii") as file:
                file.write("x")
            for error, attempt in [
                    (FileNotFoundError, lambda: os.stat(os.path.join(mount, "none"))),
                    (FileExistsError, lambda: os.mkdir(os.path.join(mount, "d"))),
                    (NotADirectoryError, lambda: os.stat(os.path.join(mount, "f/x"))),
                    (IsADirectoryError, lambda: os.unlink(os.path.join(mount, "d"))),
                    (OSError, lambda: os.rmdir(os.path.join(mount, "d"))),
                    (OSError, lambda: os.stat(os.path.join(mount, "n" * 256))),
                    (NotADirectoryError, lambda: os.rmdir(os.path.join(mount, "f"))),
                    (OSError, lambda: os.rename(os.path.join(mount, "d"), os.path.join(mount, "d/e/inside"))),
                    (FileExistsError, lambda: os.open(os.path.join(mount, "f"), os.O_CREAT | os.O_EXCL)),
                    (OSError, lambda: os.readlink(os.path.join(mount, "f")))]:
                with self.assertRaises(error):
                    attempt()
            box.umount(mount)


if __name__ == "__main__":
    harness.main("fusionfs", fuse=True)

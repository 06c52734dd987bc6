#!/usr/bin/env python3
"""A mount remembers what it is told to and no more, whatever the kernel goes on knowing: its resident memory is the judge. What it has
let go of is asked for again, and is as it is by then."""
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from harness import Sandbox  # noqa: E402

MIB = 1 << 20


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS:"))


class Memory(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.clean_up)

    def pid_of(self, mount):
        return next(pid for pid, command in self.box.processes().items() if command.endswith(" " + mount) and "fusionfs" in command)

    @staticmethod
    def bytes_of(number):
        return b"%d " % number * 400  # small enough to come with the file's record

    def test_a_mount_gives_back_what_it_has_remembered_of_a_large_tree(self):
        count = harness.rounds(8_000, 200_000)
        folders = count // 500
        one = self.box.mount("one")
        for folder in range(folders):
            os.mkdir(f"{one}/{folder}")
            for number in range(folder, count, folders):
                with open(f"{one}/{folder}/{number}", "wb", 0) as file:
                    file.write(self.bytes_of(number))
        self.box.umount(one)
        one, other = self.box.mount("one", "-o", "memory=4MiB"), self.box.mount("other")
        pid = self.pid_of(one)
        os.stat(f"{one}/0/0")
        before, most = resident(pid), 0
        for folder in range(folders):
            self.assertEqual(len(os.listdir(f"{one}/{folder}")), count // folders)
            for entry in os.scandir(f"{one}/{folder}"):
                self.assertEqual(entry.stat().st_size, len(self.bytes_of(int(entry.name))))
            most = max(most, resident(pid))
        found = f"{count} files: {before / MIB:.1f} MiB before, {most / MIB:.1f} while they were looked at"
        # What the kernel knows of them takes some 100 bytes each; buffers of threads that had nothing to do before, a few MiB.
        allowed = before + (4 + 6) * MIB + 110 * count
        self.assertLess(most, allowed + 600 * count, found)
        end = time.monotonic() + 30
        while resident(pid) > allowed and time.monotonic() < end:
            time.sleep(0.1)
        print(f"{found}, {resident(pid) / MIB:.1f} then", file=sys.stderr)
        self.assertLess(resident(pid), allowed, found)

        # What was let go of is as it is: names that went to other files elsewhere, bytes and modes that were changed.
        for folder in range(folders):
            os.unlink(f"{other}/{folder}/{folder}")
            os.rename(f"{other}/{folder}/{folder + folders}", f"{other}/{folder}/{folder}")
            with open(f"{other}/{folder}/{folder + 2 * folders}", "wb", 0) as file:
                file.write(b"new")
            os.chmod(f"{other}/{folder}/{folder + 3 * folders}", 0o600)
        for folder in range(folders):
            path = f"{one}/{folder}"
            with open(f"{path}/{folder}", "rb") as file:
                self.assertEqual(file.read(), self.bytes_of(folder + folders))
            self.assertRaises(FileNotFoundError, open, f"{path}/{folder + folders}", "rb")
            with open(f"{path}/{folder + 2 * folders}", "rb") as file:
                self.assertEqual(file.read(), b"new")
            with open(f"{path}/{folder + 3 * folders}", "rb") as file:
                self.assertEqual((file.read(), os.fstat(file.fileno()).st_mode & 0o777), (self.bytes_of(folder + 3 * folders), 0o600))
            for number in range(folder + 4 * folders, count, 7 * folders):
                with open(f"{path}/{number}", "r+b") as file:
                    self.assertEqual((os.fstat(file.fileno()).st_blocks, file.read()), (8, self.bytes_of(number)))
                os.rename(f"{path}/{number}", f"{path}/{number}-moved")
            with open(f"{path}/made", "xb", 0) as file:
                file.write(b"here")
            with open(f"{other}/{folder}/made", "rb") as file:
                self.assertEqual(file.read(), b"here")
        for mount in (one, other):
            self.box.umount(mount)


if __name__ == "__main__":
    harness.main("fusionfs", "zht", fuse=True)

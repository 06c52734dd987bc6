#!/usr/bin/env python3
"""What people get wrong: each answers with one line on stderr that names it, and with the right exit status.

Exit: 2 usage or an argument that can never work, 3 not found, 4 conflict, 5 unavailable or timeout, 6 no space,
7 damage or a failed system call, 8 a newer format.
"""
import json
import os
import re
import socket
import subprocess
import unittest

import harness
from harness import Sandbox


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


class BadInput(unittest.TestCase):
    def refused(self, box, status, argv, says="", input=None, **options):
        """Runs argv; wants `status` (or one of several) and one line on stderr that holds `says`."""
        stdout, stderr = box.run(*argv, expect=None, input=input, **options)
        name = " ".join(map(str, argv))[:120]
        with self.subTest(command=name):
            wanted = status if isinstance(status, tuple) else (status,)
            self.assertIn(box.status, wanted, f"{name}: stderr: {stderr[:500]}")
            # Beside the answer: that a node was started, and the log of one in the foreground.
            lines = [line for line in stderr.splitlines()
                     if not re.match(r"\w+: started a node|\d{4}-\d\d-\d\dT\S+Z (info|warn) ", line)]
            self.assertEqual(len(lines), 1, f"{name}: not one line: {stderr[:800]!r}")
            self.assertRegex(lines[0], r"^(zht|novoht|fusionfs|matrix|fabriq): ", name)
            self.assertIn(says.lower(), lines[0].lower(), name)
            self.assertLess(len(lines[0]), 600, name)
            self.assertEqual(stdout.strip(), "", f"{name}: something on stdout")

    def test_unknown_commands_options_and_values(self):
        with Sandbox() as box:
            for program in ("zht", "fusionfs", "matrix", "fabriq", "novoht"):
                if harness.lacking(program):
                    continue
                self.refused(box, 2, [program, "frobnicate"], "frobnicate")
                self.refused(box, 2, [program], "")
                self.refused(box, 2, [program, "--frobnicate"], "frobnicate")
                out, _ = box.run(program, "--help")
                self.assertIn(program + " ", out)
            for argv, says in [row for row in [
                    (["zht", "insert", "only-a-key"], ""),
                    (["zht", "insert", "k", "v", "--frobnicate"], "frobnicate"),
                    (["zht", "insert", "k", "v", "--ttl", "soon"], "soon"),
                    (["zht", "lookup", "k", "--timeout", "abc"], "abc"),
                    (["zht", "lookup"], ""),
                    (["zht", "serve", "--instances", "many"], "many"),
                    (["zht", "serve", "--instances", "5000"], "5000"),
                    (["zht", "serve", "--durability", "sometimes"], "sometimes"),
                    (["zht", "serve", "--listen", "nowhere"], "nowhere"),
                    (["zht", "serve", "--config", box.path("none.toml")], "none.toml"),
                    (["zht", "lookup", "k", "--cluster", "::::"], ""),
                    (["fusionfs", "mount"], ""),
                    (["matrix", "run"], ""),
                    (["fabriq", "push"], ""),
                    (["fabriq", "create", "bad name!"], "bad name!"),
                    (["fabriq", "create", "q", "--partitions", "-3"], "-3")] if not harness.lacking(row[0][0])]:
                self.refused(box, (2, 3) if "none.toml" in argv[-1] else 2, argv, says)
            self.assertEqual(box.processes(), {}, "no node was started for any of these")

    def test_configuration(self):
        with Sandbox() as box:
            path = box.path("zht.toml")
            for text, says in [("nonsense_key = 1\n", "nonsense_key"), ("\n\ninstances = \"two\"\n", "instances"), ("[[[", "1")]:
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
                self.refused(box, 2, ["zht", "serve", "--config", path], says)

    def test_keys_and_values(self):
        with Sandbox() as box:
            box.run("zht", "insert", "k", "v")
            self.refused(box, 3, ["zht", "lookup", "none"], "none")
            self.refused(box, 3, ["zht", "remove", "none"], "none")
            self.refused(box, 2, ["zht", "insert", "", "v"], "key")
            self.refused(box, 2, ["zht", "insert", "k" * 70_000, "v"], "65535")
            self.refused(box, 4, ["zht", "cswap", "k", "not-v", "w"], "")
            self.assertEqual(box.out("zht", "lookup", "k"), "v")

    def test_pipe_lines(self):
        with Sandbox() as box:
            lines = ["{", "[]", '{"op":"frobnicate","key":"k"}', '{"op":"insert"}', '{"op":"insert","key":17,"value":"v"}',
                     '{"op":"insert","key":"k","value_b64":"***"}', '{"op":"insert","key":"","value":"v"}',
                     json.dumps({"op": "insert", "key": "k" * 70_000, "value": "v"}),
                     json.dumps({"op": "insert", "key": "k", "value": "x" * (17 << 20)}),
                     '{"op":"insert","key":"good","value":"v"}', '{"op":"lookup","key":"none"}']
            out, _ = box.run("zht", "pipe", input="\n".join(lines) + "\n", expect=None)
            answers = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(answers), len(lines), "one answer for each line")
            self.assertEqual([a["status"] for a in answers], ["fail"] * 9 + ["ok", "notfound"])

    def test_nobody_there(self):
        with Sandbox() as box, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))  # bound, never listens: refused, and nobody else takes the port
            address = "127.0.0.1:%d" % probe.getsockname()[1]
            self.refused(box, 5, ["zht", "lookup", "k", "--cluster", address, "--timeout", "2s"], address)
            self.refused(box, 5, ["zht", "insert", "k", "v", "--cluster", address, "--timeout", "2s"], address)
            if not harness.lacking("fabriq"):
                self.refused(box, 5, ["fabriq", "info", "q", "--cluster", address, "--timeout", "2s"], address)

    def test_port_in_use(self):
        with Sandbox() as box, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            self.refused(box, (2, 4, 5, 7), ["zht", "serve", "--listen", address], address)

    def test_data_folders(self):
        with Sandbox() as box:
            box.run("zht", "insert", "k", "v")
            self.refused(box, 4, ["zht", "serve"], "pid")
            box.run("zht", "stop")
            with open(box.path("file"), "w", encoding="ascii") as file:
                file.write("x")
            self.refused(box, (2, 7), ["zht", "serve", "--data", box.path("file")], box.path("file"))
            foreign = box.path("foreign")
            os.mkdir(foreign)
            with open(os.path.join(foreign, "something"), "w", encoding="ascii") as file:
                file.write("x")
            if os.geteuid() == 0:
                other = box.path("other")
                os.mkdir(other, 0o700)
                os.chown(other, 65534, 65534)
                self.refused(box, (2, 7), ["zht", "serve", "--data", other], other)
            # A store of a newer format: every file that carries the version says a higher one.
            self.newer_format(box)

    def newer_format(self, box):
        path = os.path.join(box.data, "store", "0", "STORE")
        with open(path, "r+b") as file:
            header = bytearray(file.read(40))  # novoht/FORMAT.md: magic, format, ..., checksum of what is before it
            header[8:12] = (999).to_bytes(4, "little")
            header[36:40] = crc32c(header[:36]).to_bytes(4, "little")
            file.seek(0)
            file.write(header)
        self.refused(box, 8, ["zht", "serve"], "999")
        with open(path, "r+b") as file:
            file.write(b"garbage!")
        self.refused(box, (2, 7), ["zht", "serve"], path)

    def test_services_keys(self):
        harness.need("fabriq", "matrix")
        with Sandbox() as box:
            box.run("fabriq", "create", "q")
            self.refused(box, 4, ["fabriq", "create", "q"], "q")
            self.refused(box, 3, ["fabriq", "push", "none", "m"], "none")
            self.refused(box, 3, ["fabriq", "info", "none"], "none")
            self.refused(box, 3, ["fabriq", "pop", "q"], "q")
            box.run("fabriq", "push", "q", "m")
            receipt = box.json("fabriq", "pop", "q", "--json")["receipt"]
            box.run("fabriq", "ack", "q", receipt)
            box.run("fabriq", "push", "q", "again")
            again = box.json("fabriq", "pop", "q", "--json")["receipt"]
            box.run("fabriq", "nack", "q", again)
            self.refused(box, (3, 4), ["fabriq", "ack", "q", again], "receipt")
            self.refused(box, 2, ["fabriq", "ack", "q", "nonsense"], "nonsense")
            self.refused(box, 3, ["matrix", "status", "99999999"], "")
            self.refused(box, 3, ["matrix", "logs", "99999999"], "")

    def test_no_space(self):
        if os.geteuid() != 0:
            self.skipTest("not root: no small file system can be mounted")
        with Sandbox() as box:
            small = box.path("small")
            os.mkdir(small)
            if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", small], capture_output=True, check=False).returncode:
                self.skipTest("tmpfs cannot be mounted here")
            box.data = os.path.join(small, "data")
            box.environment["ZHT_DATA"] = box.data
            box.run("zht", "serve", "--background", "--instances", "1")
            value, kept = "x" * (100 << 10), 0  # an argument holds at most 128 KiB
            for kept in range(2000):
                _, stderr = box.run("zht", "insert", f"k{kept}", value, expect=None)
                if box.status != 0:
                    break
            self.assertEqual(box.status, 6, stderr)
            self.assertEqual(len(stderr.splitlines()), 1, stderr)
            self.assertGreater(kept, 50)
            for number in (0, kept // 2, kept - 1):
                self.assertEqual(box.out("zht", "lookup", f"k{number}"), value, "reads go on")
            box.kill_node()
            self.assertEqual(box.out("zht", "lookup", f"k{kept - 1}"), value, "nothing acknowledged is lost")
            # Room again: it writes again, without a restart.
            subprocess.run(["mount", "-o", "remount,size=96m", small], check=True)
            harness.wait_for(lambda: box.run("zht", "insert", "after", "v", expect=None) and box.status == 0, "writes to go on", 30)

    def test_mount_points(self):
        harness.need("fusionfs", fuse=True)
        with Sandbox() as box:
            os.mkdir(box.path("full"))
            with open(box.path("full", "something"), "w", encoding="ascii") as file:
                file.write("x")
            self.refused(box, (2, 4), ["fusionfs", "mount", box.path("full")], box.path("full"))
            self.refused(box, (2, 3), ["fusionfs", "mount", box.path("none")], box.path("none"))
            self.refused(box, (2, 4, 7), ["fusionfs", "mount", box.path("full", "something")], box.path("full"))
            self.refused(box, (2, 3), ["fusionfs", "umount", box.path("full")], box.path("full"))
            mount = box.mount()
            self.refused(box, (2, 4), ["fusionfs", "mount", mount], mount)
            keeps = os.open(mount, os.O_RDONLY)
            try:
                self.refused(box, (4, 5, 7), ["fusionfs", "umount", mount], "in use")
            finally:
                os.close(keeps)
            box.umount(mount)


if __name__ == "__main__":
    harness.main()

#!/usr/bin/env python3
"""Watching a node: /metrics and /healthz, also among hostile visitors; zht top on a terminal and for scripts."""
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
import unittest
import urllib.error
import urllib.request

import harness
from harness import Sandbox, free_port, wait_for

METRIC = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*",?)*)\})? (\S+)$')


def parse_metrics(test, text):
    """{(name, labels): value}; checks that it is the exposition format, each family declared once and before its lines."""
    found, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            test.assertNotIn(name, types)
            types[name] = kind
        if line.startswith("#"):
            continue
        match = METRIC.match(line)
        test.assertTrue(match, line)
        name, labels, value = match.groups()
        family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
        test.assertIn(family, types, line)
        test.assertNotIn((name, labels or ""), found)
        found[name, labels or ""] = float(value)
    return found


class Http(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.box.__enter__()
        self.addCleanup(self.box.clean_up)
        self.port = free_port()
        self.box.run("zht", "serve", "--background", "--instances", "2", "--http", f"127.0.0.1:{self.port}")
        self.assertEqual(self.box.json("zht", "status", "--json")["http"], f"127.0.0.1:{self.port}")
        self.assertIn(f"http://127.0.0.1:{self.port}/metrics", self.box.out("zht", "status"))

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=harness.DEADLINE) as reply:
            return reply.status, reply.headers, reply.read().decode()

    def test_metrics_count_what_was_done(self):
        self.box.run("zht", "bench", "--operation", "six", "--count", "3000", "--keys", "100", "--in-flight", "4")
        status, headers, text = self.get("/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"), headers["Content-Type"])
        found = parse_metrics(self, text)

        def total(name, having=""):
            return sum(value for (n, labels), value in found.items() if n == name and having in labels)
        self.assertGreaterEqual(total("zht_requests_total"), 3100)
        self.assertEqual(total("zht_partitions"), 1024)
        self.assertGreater(total("zht_keys"), 10)
        self.assertEqual(total("zht_read_only"), 0)
        self.assertGreater(total("process_resident_memory_bytes"), 1e6)
        for operation in ("insert", "lookup", "append", "cswap", "remove", "callback"):
            count = total("zht_operation_seconds_count", f'operation="{operation}"')
            self.assertGreater(count, 0, operation)
            self.assertEqual(total("zht_operation_seconds_bucket", f'operation="{operation}",le="+Inf"'), count)
            self.assertGreater(total("zht_operation_seconds_sum", f'operation="{operation}"'), 0)
            for instance in ("0", "1"):  # cumulative
                buckets = [v for (n, labels), v in found.items() if n == "zht_operation_seconds_bucket"
                           and f'instance="{instance}",operation="{operation}"' in labels]
                self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(self.get("/healthz")[2], "ok\n")
        self.assertIn("/metrics", self.get("/")[2])
        with self.assertRaises(urllib.error.HTTPError) as error:
            self.get("/nothing")
        self.assertEqual(error.exception.code, 404)
        error.exception.close()
        before = total("zht_requests_total")
        self.box.run("zht", "insert", "one", "more")
        later = parse_metrics(self, self.get("/metrics")[2])
        self.assertGreater(sum(v for (n, _), v in later.items() if n == "zht_requests_total"), before)

    def raw(self, data):
        with socket.create_connection(("127.0.0.1", self.port), timeout=harness.DEADLINE) as connection:
            connection.sendall(data)
            got = b""
            try:
                while more := connection.recv(65536):
                    got += more
            except ConnectionResetError:
                pass
            return got

    def test_hostile_visitors_are_harmless(self):
        for data, status in ((b"\0" * 20000, b"4"), (b"GET / HTTP/9.9\r\n\r\n", b"400"), (b"GET\r\n\r\n", b"400"), (b"\r\n\r\n", b"400"),
                             (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"), (b"BREW / HTTP/1.0\r\n\r\n", b"405"),
                             (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000, b"431"), (b"GET /" + b"a" * 20000, b"431"),
                             (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"), (os.urandom(3000) + b"\n\n", b"400"),
                             (b"*1\r\n$4\r\nPING\r\n", b"400"), (b"GET /metrics HTTP/1.0\r\n\r\n", b"200")):
            got = self.raw(data)
            self.assertTrue(got[9:12].startswith(status) or got == b"", (data[:40], got[:80]))
        # Several requests on a connection, also at once.
        got = self.raw(b"GET /healthz HTTP/1.1\r\n\r\nHEAD /metrics HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 3)
        self.assertEqual(got.count(b"ok\n"), 2)
        # Half-open and idle ones, more than there may be: those who ask are served.
        held = []
        for i in range(200):
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=harness.DEADLINE)
            if i % 2:
                connection.sendall(b"GET /metrics HT")
            held.append(connection)
        self.assertEqual(self.get("/healthz")[2], "ok\n")
        for connection in held:
            connection.close()
        # One that asks for much and reads nothing.
        deaf = socket.create_connection(("127.0.0.1", self.port), timeout=harness.DEADLINE)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        try:
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 2000)
        except OSError:
            pass  # closed: it said more than is kept
        self.assertEqual(self.get("/healthz")[2], "ok\n")
        deaf.close()
        self.box.run("zht", "insert", "k", "v")


class FullDisk(unittest.TestCase):
    def test_a_disk_that_is_nearly_full_is_seen_everywhere(self):
        with Sandbox() as box:
            os.mkdir(box.data, 0o700)
            mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", box.data]
            if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
                self.skipTest("no file system of its own can be mounted here")
            try:
                with open(box.path("zht.toml"), "w", encoding="ascii") as file:
                    file.write('segment_size = "1MiB"\npartitions = 16\n')
                box.run("zht", "serve", "--background", "--instances", "1", "--http", "127.0.0.1:0", "--config", box.path("zht.toml"))
                told = box.json("zht", "status", "--json")
                self.assertEqual(told["no_room"], "")

                def get(path):
                    try:
                        with urllib.request.urlopen(f"http://{told['http']}{path}", timeout=harness.DEADLINE) as answer:
                            return answer.status, answer.read().decode()
                    except urllib.error.HTTPError as error:
                        return error.code, error.read().decode()
                self.assertEqual(get("/healthz"), (200, "ok\n"))
                self.assertIn("\nzht_disk_full 0\n", get("/metrics")[1])
                free = os.statvfs(box.data)
                filler = os.path.join(box.data, "filler")
                with open(filler, "wb") as file:
                    file.write(bytes(free.f_bavail * free.f_frsize - (3 << 20)))
                harness.wait_for(lambda: box.json("zht", "status", "--json")["no_room"], "status to say so")
                self.assertRegex(box.out("zht", "status"), "TAKES NO NEW COPIES: the disk is nearly full")
                status, text = get("/healthz")
                self.assertEqual(status, 503)
                self.assertIn(f"the disk is nearly full: {box.data}", text)
                self.assertIn("\nzht_disk_full 1\n", get("/metrics")[1])
                os.unlink(filler)
                harness.wait_for(lambda: get("/healthz") == (200, "ok\n"), "room again")
                box.run("zht", "stop")
            finally:
                subprocess.run(["umount", "-l", box.data], check=True)


class Off(unittest.TestCase):
    def test_it_is_off_by_default_and_does_not_leave_loopback(self):
        with Sandbox() as box:
            _, err = box.run("zht", "serve", "--http", "0.0.0.0:0", "--secret-file", "none", expect=2)
            self.assertIn("--insecure", err)
            box.run("zht", "serve", "--background")
            with open(os.path.join(box.data, "node.log"), encoding="utf-8") as file:
                self.assertIn("http=off", file.read())


class Top(unittest.TestCase):
    """A terminal of our own around zht top."""

    def start(self, box, rows=30, columns=120):
        self.master, slave = pty.openpty()
        self.addCleanup(os.close, self.master)
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.addCleanup(os.close, slave)
        return subprocess.Popen([os.path.join(harness.BIN, "zht"), "top", "--interval", "100ms"], stdin=slave, stdout=slave, stderr=slave,
                                env=box.environment, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0))

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, wanted, what):
        got = b""
        end = time.monotonic() + harness.DEADLINE
        while not (wanted(got) if callable(wanted) else wanted in got):
            self.assertLess(time.monotonic(), end, f"{what}: {got[-800:]}")
            if select.select([self.master], [], [], 0.1)[0]:
                got += os.read(self.master, 65536)
        return got

    def test_a_live_screen_that_gives_the_terminal_back(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "2")
            load = box.start("zht", "bench", "--operation", "six", "--duration", "20s", "--keys", "500")
            for ending, expected in ((b"q", 0), (b"\x03", 130)):
                process = self.start(box)
                got = self.read_until(lambda g: b"in the last" in g and b"lookup" in g and b"cswap" in g, "the screen")
                self.assertTrue(got.startswith(b"\x1b[?1049h"), got[:40])
                self.assertNotIn(b"\x1b[2J", got[20:], "cleared only once: no flicker")
                self.assertIn(b"INSTANCE", got)
                self.resize(8, 40)
                os.killpg(process.pid, signal.SIGWINCH)
                os.read(self.master, 65536)
                self.read_until(lambda g: len(g) > 2000, "more screens")
                got = self.read_until(lambda g: g.count(b"\x1b[H") >= 3, "whole screens")
                for screen in got.split(b"\x1b[H")[1:-1]:
                    lines = [line.rstrip(b"\r") for line in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", screen).split(b"\r\n")]
                    self.assertLessEqual(len(lines), 8)
                    self.assertTrue(all(len(line) <= 40 for line in lines), lines)
                os.write(self.master, ending)
                self.read_until(b"\x1b[?1049l", "the old screen")
                self.assertEqual(process.wait(harness.DEADLINE), expected)
                self.assertEqual(termios.tcgetattr(self.slave), self.before)
            load.terminate()
            load.wait(harness.DEADLINE)

    def test_it_survives_the_nodes_restart(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background")
            process = self.start(box)
            self.read_until(b"in the last", "the screen")
            box.kill_node()
            self.read_until(b"no answer", "its absence")
            box.run("zht", "serve", "--background")
            self.read_until(lambda g: b"in the last" in g.split(b"no answer")[-1], "the node again")
            os.write(self.master, b"q")
            self.read_until(b"\x1b[?1049l", "the old screen")
            self.assertEqual(process.wait(harness.DEADLINE), 0)

    def test_once_and_json(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "2")
            load = box.start("zht", "bench", "--operation", "mix", "--duration", "60s", "--keys", "500")

            def busy():
                top = box.json("zht", "top", "--json", "--interval", "300ms")
                return top if top["ops_per_s"] > 0 and len(top["by_operation"]) >= 2 else None
            top = wait_for(busy, "a busy node")
            self.assertEqual(len(top["instances"]), 2)
            self.assertEqual(sum(one["partitions"] for one in top["instances"]), top["partitions"])
            self.assertTrue(0 < top["p50_us"] <= top["p99_us"] <= top["p999_us"], top)
            self.assertAlmostEqual(sum(one["ops_per_s"] for one in top["instances"]), top["ops_per_s"], delta=1)
            out = box.out("zht", "top", "--once", "--interval", "50ms")
            self.assertIn("INSTANCE", out)
            self.assertNotIn("\x1b", out)
            load.terminate()
            load.wait(harness.DEADLINE)
            box.run("zht", "top", "--once", "--interval", "1ms", expect=2)
        with Sandbox() as box:
            _, err = box.run("zht", "top", "--once", expect=5)
            self.assertIn("no node runs", err)


class Words(unittest.TestCase):
    def test_status_and_members_say_the_same_in_words_and_json(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "3", "--partitions", "64", "--listen", "127.0.0.1:0")
            status, members = box.json("zht", "status", "--json"), box.json("zht", "members", "--json")
            self.assertEqual(status["partitions"], 64)
            self.assertEqual(sum(one["partitions"] for one in status["instances"]), 64)
            self.assertEqual([one["id"] for one in members["instances"]], [0, 1, 2])
            self.assertEqual([one["partitions"] for one in members["instances"]], [one["partitions"] for one in status["instances"]])
            for mine, theirs in zip(status["instances"], members["instances"]):
                self.assertIn(mine["tcp"], " ".join(theirs["addresses"]))
            text, table = box.out("zht", "status"), box.out("zht", "members")
            self.assertIn(f"node {status['pid']} serves {box.data}", text)
            nodes, instances = table.strip().split("\n\n")
            self.assertEqual([len(nodes.splitlines()), len(instances.splitlines())], [2, 4])
            for word in ("INSTANCE", "PARTITIONS", "OPERATIONS", "WATCHERS"):
                self.assertIn(word, text)


if __name__ == "__main__":
    harness.main()

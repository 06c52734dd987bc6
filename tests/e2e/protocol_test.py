#!/usr/bin/env python3
"""zht/wire/PROTOCOL.md's worked example, sent to a live node byte for byte: it answers as the document says."""
import json
import os
import re
import socket
import unittest

import harness
from harness import TREE, Sandbox


def exchanges(path):
    """[(bytes to send, bytes to come back)] of the document's ```hex blocks."""
    with open(path, encoding="utf-8") as file:
        blocks = re.findall(r"^```hex\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
    side = lambda block, mark: bytes.fromhex(" ".join(l[1:] for l in block.splitlines() if l.startswith(mark)))  # noqa: E731, E741
    return [(side(block, ">"), side(block, "<")) for block in blocks]


class Protocol(unittest.TestCase):
    def exchange(self, connection, sent, expected):
        connection.sendall(sent)
        got = b""
        while len(got) < len(expected):
            more = connection.recv(len(expected) - len(got))
            self.assertTrue(more, f"closed after {len(got)} of {len(expected)} bytes: {got.hex(' ')}")
            got += more
        self.assertEqual(got.hex(" "), expected.hex(" "))

    def test_the_worked_example(self):
        examples = exchanges(os.path.join(TREE, "zht", "wire", "PROTOCOL.md"))
        self.assertGreaterEqual(len(examples), 3)
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "1")
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(harness.DEADLINE)
                connection.connect(os.path.join(box.data, "instance-0.sock"))
                for sent, expected in examples:
                    self.exchange(connection, sent, expected)
                self.exchange(connection, *examples[-1])  # a retry
            self.assertEqual(box.out("zht", "lookup", "greeting"), "hi")

    def test_the_datagrams_of_the_document(self):
        with open(os.path.join(TREE, "zht", "wire", "PROTOCOL.md"), encoding="utf-8") as file:
            lines = re.search(r"^```hex datagrams\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)[1].splitlines()
        runs = []  # [mark, bytes], a datagram each
        for line in lines:
            if not runs or runs[-1][0] != line[0]:
                runs.append([line[0], b""])
            runs[-1][1] += bytes.fromhex(line[1:])
        self.assertEqual([mark for mark, _ in runs], [">", "<", ">", "<"])
        stands_for = b"\xcc" * 8
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "1", "--listen", "127.0.0.1:0", "--insecure")
            instance = json.loads(box.out("zht", "status", "--json"))["instances"][0]
            host, port = instance["tcp"].rsplit(":", 1)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
                connection.settimeout(harness.DEADLINE)
                connection.connect((host, int(port)))
                cookie = b""
                for (_, sent), (_, expected) in zip(runs[::2], runs[1::2]):
                    connection.send(sent.replace(stands_for, cookie) if sent.startswith(stands_for) else sent)
                    got = connection.recv(65536)
                    cookie = cookie or got[:8]
                    self.assertNotEqual(cookie, bytes(8))
                    self.assertEqual(got.hex(" "), (cookie + expected[8:]).hex(" "))
                    self.assertTrue(expected.startswith(stands_for))
            self.assertEqual(box.out("zht", "lookup", "greeting"), "hello")

    def test_garbage_closes_only_its_own_connection(self):
        sent, expected = exchanges(os.path.join(TREE, "zht", "wire", "PROTOCOL.md"))[0]
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "1")
            path = os.path.join(box.data, "instance-0.sock")
            with socket.socket(socket.AF_UNIX) as good:
                good.settimeout(harness.DEADLINE)
                good.connect(path)
                for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 20, os.urandom(4096), b"\0" * 4096, sent[:4] + b"\x63" + sent[5:],
                                sent[:12] + b"\xff\xff\xff\xff" + sent[16:], sent[:60] + b"\xff" * 12 + sent[72:]):
                    with socket.socket(socket.AF_UNIX) as bad:
                        bad.settimeout(harness.DEADLINE)
                        bad.connect(path)
                        bad.sendall(garbage)
                        bad.shutdown(socket.SHUT_WR)
                        while bad.recv(65536):
                            pass  # an answer that says so, perhaps; then it is closed
                self.exchange(good, sent, expected)


if __name__ == "__main__":
    harness.main()

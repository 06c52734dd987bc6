#!/usr/bin/env python3
"""Who gets in where munge vouches instead of a secret: a munged of the test's own, another with another key, none at all; a client
written from PROTOCOL.md and the munge program alone. Nothing of this machine's munged is touched."""
import os
import shutil
import subprocess
import unittest
import urllib.error
import urllib.request

import frames
import harness
from frames import control
from harness import Pipe, Sandbox, need, wait_for


class Daemon:
    """A munged with a key of its own, in the box's folder."""

    def __init__(self, box, name):
        self.folder = box.path(name)
        os.makedirs(self.folder, mode=0o755)
        os.chmod(self.folder, 0o755)
        self.socket = os.path.join(self.folder, "socket")
        with open(os.path.join(self.folder, "key"), "wb", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(os.urandom(128))
        self.process = None
        self.start()

    def start(self):
        def place(name):
            return os.path.join(self.folder, name)
        with open(place("log"), "ab") as log:
            self.process = subprocess.Popen(
                ["munged", "--foreground", "--force", "--socket", self.socket, "--key-file", place("key"),
                 "--pid-file", place("pid"), "--seed-file", place("seed")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self.answers, "munged")

    def answers(self):
        return subprocess.run(["munge", "-S", self.socket, "-n"], stdin=subprocess.DEVNULL, capture_output=True,
                              check=False).returncode == 0

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def credential(self, payload):
        """What the munge program makes of `payload`."""
        made = subprocess.run(["munge", "-S", self.socket, "--input", "-"], input=payload, capture_output=True, check=True)
        return made.stdout.strip()

    def payload(self, credential):
        """What the unmunge program finds in it."""
        return subprocess.run(["unmunge", "-S", self.socket, "--metadata", os.devnull], input=credential, capture_output=True,
                              check=True).stdout


class Peer(frames.Peer):
    """Proves by munge; written from PROTOCOL.md alone."""

    def __init__(self, address):
        super().__init__(address)
        self.mine = os.urandom(32)

    def hello(self, method=2):
        self.socket.sendall(control(32, bytes([method]) + self.mine))
        _, _, status, message, value = self.reply()
        self.theirs, self.proof = value[:32], value[32:]
        return status, message

    def prove(self, credential):
        """The status of its reply."""
        self.socket.sendall(control(33, credential, 2))
        return self.reply()[2]

    def statement(self, side):
        return b"\nzht handshake 2 " + side + b"\n" + self.mine + self.theirs


class Munge(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.box.__enter__()
        self.addCleanup(self.box.__exit__, None, None, None)
        self.daemons = []
        self.ours = self.daemon("ours")
        self.box.environment["ZHT_SECRET_FILE"] = "munge:" + self.ours.socket

    def daemon(self, name):
        one = Daemon(self.box, name)
        self.addCleanup(one.stop)
        return one

    def serve(self, *more):
        self.box.run("zht", "serve", "--background", "--instances", "1", "--listen", "127.0.0.1:0", "--secret-file",
                     "munge:" + self.ours.socket, *more)
        return self.box.json("zht", "status", "--json")

    def test_tools_that_munge_vouches_for_and_others(self):
        box, address = self.box, self.serve()["tcp"]
        remote = ("zht", "--cluster", address)
        box.run(*remote, "insert", "k", "v")
        lines = '{"op":"insert","key":"a","value":"1"}\n{"op":"lookup","key":"a"}\n'
        self.assertEqual(box.out(*remote, "pipe", input=lines).count('"ok"'), 2)
        self.assertIn("munge", box.out("zht", "secret", "path"))
        self.assertIn("munge -s zht", box.run("zht", "secret", "token", expect=2)[1])
        # Without a word, with a secret, and with what another cluster's munged says.
        for file, said in (("none", "ZHT_SECRET_FILE=munge"), (box.out("zht", "secret", "new", "--file", box.path("file")),
                                                               "ZHT_SECRET_FILE=munge"),
                           ("munge:" + self.daemon("theirs").socket, "redential")):
            for argv in (("lookup", "k"), ("status",)):
                err = box.run(*remote, *argv, expect=2, env={"ZHT_SECRET_FILE": file})[1]
                self.assertIn(said, err)
        # On this machine the kernel says who comes through the unix socket.
        self.assertEqual(box.out("zht", "lookup", "k", env={"ZHT_SECRET_FILE": "none"}), "v")

    def test_nobody_else_is_vouched_for(self):
        if os.geteuid() != 0:
            self.skipTest("another user's process needs root")
        box, address = self.box, self.serve()["tcp"]
        home = box.path("nobody")
        os.makedirs(home)
        os.chown(home, 65534, 65534)
        os.chmod(box.folder, 0o755)
        zht = shutil.copy(shutil.which("zht", path=box.environment["PATH"]), box.path("zht"))
        ran = subprocess.run([zht, "--cluster", address, "lookup", "k"], user=65534, group=65534, extra_groups=[], cwd="/",
                             env={**box.environment, "ZHT_DATA": home, "HOME": home}, capture_output=True, text=True,
                             timeout=harness.DEADLINE, check=False)
        self.assertNotEqual(ran.returncode, 0)
        # Root is let in by everybody, so it is the node that says no.
        self.assertIn("user 65534", ran.stderr)

    def test_bytes_of_the_protocol(self):
        address = self.serve()["tcp"]
        peer = Peer(address)
        self.assertEqual(peer.hello(), (0, ""))
        self.assertEqual(self.ours.payload(peer.proof), peer.statement(b"answerer"))
        overheard = self.ours.credential(peer.statement(b"asker"))
        self.assertEqual(peer.prove(overheard), 0)
        peer.close()
        for made in (lambda one: overheard,                                                # said on another connection
                     lambda one: one.proof,                                                # the node's own, sent back
                     lambda one: self.ours.credential(one.statement(b"answerer")),         # of the other side
                     lambda one: self.ours.credential(b"zht"),                             # a password of the Redis port
                     lambda one: self.daemon("other").credential(one.statement(b"asker")),  # of another key
                     lambda one: b"MUNGE:AwQDAAB:", lambda one: b"MUNGE:\0", lambda one: b"", lambda one: b"x" * 900):
            peer = Peer(address)
            self.assertEqual(peer.hello()[0], 0)
            self.assertNotEqual(peer.prove(made(peer)), 0)
            with self.assertRaises(EOFError):
                peer.read(1)
            peer.close()
        peer = Peer(address)
        status, message = peer.hello(method=1)
        self.assertNotEqual(status, 0)
        self.assertIn("ZHT_SECRET_FILE=munge", message)
        peer.close()

    def test_redis_clients(self):
        need("redis-cli")
        port = self.serve("--resp", "127.0.0.1:0")["resp"].rsplit(":", 1)[1]

        def redis(*argv):
            return self.box.out("redis-cli", "-p", port, "--no-auth-warning", *argv)
        word = self.ours.credential(b"zht").decode()
        self.assertIn("NOAUTH", redis("set", "k", "v"))
        self.assertEqual(redis("-a", word, "set", "k", "v"), "OK")
        self.assertIn("NOAUTH", redis("-a", word, "get", "k"))  # munged lets it be read once
        self.assertIn("NOAUTH", redis("-a", self.ours.credential(b"slurm").decode(), "get", "k"))
        self.assertEqual(redis("-a", self.ours.credential(b"zht").decode(), "get", "k"), "v")

    def test_metrics_beyond_loopback(self):
        at = self.serve("--http", "0.0.0.0:0")["http"].replace("0.0.0.0", "127.0.0.1")

        def get(word):
            request = urllib.request.Request(f"http://{at}/metrics", headers={"Authorization": "Bearer " + word})
            try:
                with urllib.request.urlopen(request, timeout=harness.DEADLINE) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code
        self.assertEqual(get("guess"), 401)
        self.assertEqual(get(self.ours.credential(b"zht").decode()), 200)

    def test_munged_that_is_gone_and_comes_back(self):
        box, address = self.box, self.serve()["tcp"]
        remote = ("zht", "--cluster", address)
        pipe = Pipe(box, "--cluster", address)
        self.assertEqual(pipe.ask(op="insert", key="k", value="v")["status"], "ok")
        self.ours.stop()
        self.assertIn("is munged running", box.run(*remote, "lookup", "k", expect=None)[1])
        self.assertEqual(pipe.ask(op="lookup", key="k")["value"], "v")  # a connection that is open stays so
        self.assertIn("is munged running", box.run("zht", "serve", "--data", box.path("second"), "--secret-file",
                                                   "munge:" + self.ours.socket, expect=None)[1])
        self.ours.start()

        def served():
            return box.run(*remote, "lookup", "k", expect=None)[0] == "v\n"
        wait_for(served, "the node to hear munged again")
        pipe.close()

    def test_nodes_of_one_cluster_and_their_files(self):
        box, first = self.box, self.serve("--replicas", "2")["tcp"]
        other = {"ZHT_DATA": box.path("second")}
        box.run("zht", "serve", "--background", "--instances", "1", "--join", first, "--listen", "127.0.0.1:0", env=other)
        self.addCleanup(lambda: box.run("zht", "stop", env=other))
        wait_for(lambda: len(box.json("zht", "members", "--json", env=other)["nodes"]) == 2, "two members")
        box.run("zht", "insert", "k", "v")
        self.assertEqual(box.out("zht", "lookup", "k", env=other), "v")
        if harness.lacking("fusionfs", fuse=True):
            return
        here, there = box.mount(), box.path("there")
        os.mkdir(there)
        box.run("fusionfs", "mount", there, env=other)
        self.addCleanup(lambda: box.run("fusionfs", "umount", there, env=other))
        content = os.urandom(300_000)  # a chunk, which lies with the node that wrote it
        with open(os.path.join(here, "file"), "wb") as file:
            file.write(content)
        with open(os.path.join(there, "file"), "rb") as file:
            self.assertEqual(file.read(), content)


if __name__ == "__main__":
    harness.main("zht", "munged", "munge", "unmunge")

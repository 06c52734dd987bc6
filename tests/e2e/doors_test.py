#!/usr/bin/env python3
"""Doors that nobody locks by hand: what another user of the machine, a browser and a crowd of silent callers can do to nodes that
were started as the README says, without a word about secrets."""
import hashlib
import hmac
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import time
import unittest

import frames
import harness
from frames import HEADER, control
from harness import Sandbox, need

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def bare(kind, first=0, value=b""):
    return HEADER.pack(0x3154485A, 1, kind, 0, 0, 0, len(value), 1, first, 0, 0, 0, 0, 0, len(value), 0) + value


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Keyed(frames.Peer):
    """Proves a key that was made of the secret; from PROTOCOL.md alone."""

    def prove(self, text):
        _, _, name, digits = text.split()
        key, mine = bytes.fromhex(digits), os.urandom(32)
        self.socket.sendall(control(32, b"\3" + mine + name.encode()))
        _, _, status, message, value = self.reply()
        assert status == 0, message
        both = mine + value[:32]
        assert hmac.compare_digest(value[32:], hmac.digest(key, b"zht handshake 3 answerer\n" + both, hashlib.sha256))
        self.socket.sendall(control(33, hmac.digest(key, b"zht handshake 3 asker\n" + both, hashlib.sha256), 2))
        assert self.reply()[2] == 0
        return self


class OtherUsers(unittest.TestCase):
    """Another user of the same machine; ours go on without a word."""

    def as_nobody(self, box, *argv, **environment):
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            self.skipTest("needs root and setpriv to be somebody else")
        home = box.path("nobody")
        os.makedirs(home, exist_ok=True)
        os.chown(home, 65534, 65534)
        os.chmod(box.folder, 0o755)
        program = box.path("zht")  # where another user can read it
        if not os.path.exists(program):
            shutil.copy(os.path.join(harness.BIN, "zht"), program)
        done = subprocess.run(NOBODY + [program if argv[0] == "zht" else argv[0], *argv[1:]], capture_output=True, text=True, check=False,
                              cwd="/", timeout=60, stdin=subprocess.DEVNULL,
                              env={"PATH": os.environ["PATH"], "HOME": home, "LC_ALL": "C.UTF-8", **environment})
        return done.returncode, done.stdout + done.stderr

    def refused(self, box, address):
        for argv in (("lookup", "k"), ("insert", "k", "theirs"), ("status",), ("stop",), ("scan",)):
            status, said = self.as_nobody(box, "zht", "--cluster", address, "--timeout", "5s", *argv)
            self.assertNotEqual(status, 0, (argv, said))
            self.assertNotIn("ours", said)
        self.assertEqual(box.out("zht", "lookup", "k", "--cluster", address), "ours")

    def test_a_node_on_loopback(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--listen", "127.0.0.1:0", "--instances", "1")
            address = box.json("zht", "status", "--json")["tcp"]
            box.run("zht", "insert", "k", "ours", "--cluster", address)
            self.refused(box, address)
            self.assertEqual(os.stat(os.path.join(box.data, "secret")).st_mode & 0o7777, 0o600)
            # This user's tools find the secret by the address, wherever their own data folder is; a copied key does as well.
            away = {"ZHT_DATA": box.path("elsewhere")}
            self.assertEqual(box.out("zht", "lookup", "k", "--cluster", address, env=away), "ours")
            self.assertEqual(box.out("zht", "lookup", "k", "--cluster", address.replace("127.0.0.1", "localhost"), env=away), "ours")
            key = box.path("key")
            with open(key, "w", encoding="ascii") as file:
                file.write(box.out("zht", "secret", "client", "friend"))
            os.chmod(key, 0o600)
            os.chown(key, 65534, 65534)
            self.assertEqual(self.as_nobody(box, "zht", "--cluster", address, "lookup", "k", ZHT_SECRET_FILE=key), (0, "ours\n"))
            status, said = self.as_nobody(box, "zht", "stop", "--cluster", address, ZHT_SECRET_FILE=key)
            self.assertNotEqual(status, 0, said)
            status, said = self.as_nobody(box, "zht", "migrate", "0", "--to", "0", "--cluster", address, ZHT_SECRET_FILE=key)
            box.run("zht", "stop")
            box.run("zht", "serve", "--background", "--listen", address)
            self.assertEqual(box.out("zht", "lookup", "k", "--cluster", address, env=away), "ours", "the same secret again")

    def test_a_cluster_that_was_brought_up_with_one_word(self):
        with Sandbox() as box:
            addresses = box.out("zht", "cluster", "up", 3, "--partitions", "32").split("=", 1)[1]
            try:
                box.run("zht", "insert", "k", "ours", "--cluster", addresses)
                for address in addresses.split(","):
                    self.refused(box, address)
            finally:
                box.run("zht", "cluster", "down", "--remove")

    def test_redis_clients_on_loopback_say_a_word_and_those_of_the_unix_socket_none(self):
        need("redis-cli")
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--resp", "127.0.0.1:0")
            port = box.json("zht", "status", "--json")["resp"].rsplit(":", 1)[1]
            self.assertIn("NOAUTH", box.out("redis-cli", "-p", port, "set", "k", "v"))
            word = box.out("zht", "secret", "show")
            self.assertEqual(box.out("redis-cli", "-p", port, "set", "k", "ours", env={"REDISCLI_AUTH": word}), "OK")
            alice = box.out("zht", "secret", "show", "alice")
            self.assertNotEqual(alice, word)
            self.assertEqual(box.out("redis-cli", "-p", port, "--no-auth-warning", "--user", "alice", "-a", alice, "get", "k"), "ours")
            self.assertIn("WRONGPASS", box.out("redis-cli", "-p", port, "auth", "bob", alice))
            unix = os.path.join(box.data, "resp.sock")
            self.assertEqual(box.out("redis-cli", "-s", unix, "get", "k"), "ours")
            os.chmod(box.data, 0o755)
            os.chmod(unix, 0o666)  # opened up by mistake
            status, said = self.as_nobody(box, shutil.which("redis-cli"), "-s", unix, "get", "k")
            self.assertNotIn("ours", said, status)

    def test_what_insecure_gives_away_is_said(self):
        with Sandbox() as box:
            err = box.run("zht", "serve", "--listen", "127.0.0.1:0", "--secret-file", "none", expect=2)[1]
            self.assertIn("every user of this machine", err)
            self.assertIn("--insecure", err)
            box.run("zht", "serve", "--background", "--listen", "127.0.0.1:0", "--insecure")
            with open(os.path.join(box.data, "node.log"), encoding="utf-8") as file:
                self.assertIn("can read and change every key", file.read())
            self.assertFalse(os.path.exists(os.path.join(box.data, "secret")))
            address = box.json("zht", "status", "--json")["tcp"]
            box.run("zht", "insert", "k", "v", "--cluster", address, env={"ZHT_DATA": box.path("elsewhere")})


class Keys(unittest.TestCase):
    def test_a_client_is_no_node(self):
        """Frames that nodes send to each other, and what only nodes or administrators ask, from one that has a client's key."""
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--listen", "127.0.0.1:0", "--instances", "1")
            box.run("zht", "insert", "k", "v")
            address = box.json("zht", "status", "--json")["tcp"]
            cluster = box.json("zht", "status", "--json")["cluster"]["cluster"]
            instance = next(a for i in box.json("zht", "members", "--json")["instances"] for a in i["addresses"] if not a.startswith("unix:"))
            key = box.out("zht", "secret", "client", "mallory")
            for kind, where in ((7, address), (6, instance), (7, instance), (6, address)):
                peer = Keyed(where).prove(key)
                peer.socket.sendall(control(1, b"", 9))
                self.assertEqual(peer.reply()[2], 0, "a client may ask for the table")
                peer.socket.sendall(bare(kind, int(cluster) if str(cluster).isdigit() else 0, b"\x08\x01\x10\x01"))
                _, _, status, message, _ = peer.reply()
                self.assertEqual((status, "nodes say to each other" in message), (3, True), message)
                self.assertRaises((EOFError, ConnectionResetError), peer.reply)
                peer.close()
            for operation in (3, 4, 6, 8, 9, 10, 11, 12):  # stop, services, join, leave, migrate, recover, exited, claim
                peer = Keyed(address).prove(key)
                peer.socket.sendall(control(operation, b"\x08\x01", 9))
                _, _, status, message, _ = peer.reply()
                self.assertEqual((operation, status), (operation, 3), message)
                self.assertIn("secret", message)
                peer.close()
            with self.assertRaises(AssertionError):  # another name does not make the key another one's
                Keyed(address).prove(key.replace("client:mallory", "admin"))
            self.assertEqual(box.out("zht", "lookup", "k"), "v")


class OtherProtocols(unittest.TestCase):
    def test_a_browser_sets_nothing(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--resp", "127.0.0.1:0", "--insecure")
            port = int(box.json("zht", "status", "--json")["resp"].rsplit(":", 1)[1])
            for request in (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\nSET k forged\r\n",
                            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\nSET k forged\r\n",
                            b"PUT /SET HTTP/1.1\r\nhOST: localhost\r\n\r\nSET k forged\r\n"):
                with socket.create_connection(("127.0.0.1", port), 10) as browser:
                    browser.settimeout(harness.DEADLINE)
                    browser.sendall(request)
                    got = b""
                    try:
                        while more := browser.recv(1000):
                            got += more
                    except ConnectionResetError:
                        pass
                    self.assertNotIn(b"+OK", got)
            box.run("zht", "lookup", "k", expect=3)

    def test_the_web_port_takes_no_commands(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--http", "127.0.0.1:0")
            port = int(box.json("zht", "status", "--json")["http"].rsplit(":", 1)[1])
            for request in (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", b"SET k v\r\nGET k\r\n", b"PING\r\n"):
                with socket.create_connection(("127.0.0.1", port), 10) as client:
                    client.settimeout(harness.DEADLINE)
                    client.sendall(request)
                    self.assertTrue(client.recv(1000).startswith(b"HTTP/1.1 400"), request)


class Crowds(unittest.TestCase):
    """Callers that open connections and say nothing, more than there may be."""

    def crowd(self, ports, seconds, rate, words=b""):
        """A process that keeps opening connections which say `words` and no more; the last 2,000 of them stay open."""
        script = ("import collections, socket, sys, time\n"
                  "ports, seconds, rate, words = eval(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), bytes.fromhex(sys.argv[4])\n"
                  "held, began, n = collections.deque(), time.monotonic(), 0\n"
                  "while (now := time.monotonic() - began) < seconds:\n"
                  "    if n >= now * rate:\n"
                  "        time.sleep(0.002); continue\n"
                  "    s = socket.socket(); s.setblocking(False)\n"
                  "    s.connect_ex(('127.0.0.1', ports[n % len(ports)])); held.append(s); n += 1\n"
                  "    try:\n"
                  "        if words and n > 20: held[-20].send(words)\n"
                  "    except OSError: pass\n"
                  "    if len(held) > 2000: held.popleft().close()\n"
                  "print(n)\n")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return subprocess.Popen([sys.executable, "-c", script, repr(ports), str(seconds), str(rate), words.hex()], stdout=subprocess.PIPE, text=True,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard)))

    def test_silent_ones_by_the_thousand_keep_nobody_out(self):
        need("redis-cli")
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "1", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0",
                    "--http", "127.0.0.1:0")
            told = box.json("zht", "status", "--json")
            box.run("zht", "insert", "k", "v")
            instance = next(a for i in box.json("zht", "members", "--json")["instances"] for a in i["addresses"] if not a.startswith("unix:"))
            ports = [int(one.rsplit(":", 1)[1]) for one in (told["tcp"], instance, told["resp"], told["http"])]
            away = {"ZHT_DATA": box.path("elsewhere")}
            word = box.out("zht", "secret", "show")
            before = box.json("zht", "status", "--json")["resident_bytes"]
            crowd = self.crowd(ports, 12, 2500)
            try:
                time.sleep(2)
                tried, slowest = 0, 0.0
                while crowd.poll() is None and tried < 20:
                    began = time.monotonic()
                    self.assertEqual(box.out("zht", "lookup", "k", "--cluster", told["tcp"], env=away), "v")
                    self.assertEqual(box.out("redis-cli", "-p", ports[2], "get", "k", env={"REDISCLI_AUTH": word}), "v")
                    slowest = max(slowest, time.monotonic() - began)
                    tried += 1
                self.assertGreater(tried, 0)
                grown = box.json("zht", "status", "--json")["resident_bytes"] - before
                print(f"{tried} callers of {tried} served beside the crowd, the slowest after {slowest:.2f} s; {grown >> 20} MiB more", flush=True)
                self.assertLess(grown, 64 << 20)
            finally:
                crowd.kill()
                crowd.wait()

    def test_replayed_hellos_keep_nobody_out(self):
        """The first words of a TLS client, overheard or made up, hundreds of times a second: each takes as much work as hundreds of requests."""
        need("openssl")
        with Sandbox() as box:
            box.make_certificates()
            box.run("zht", "serve", "--background", "--instances", "1", "--listen", "127.0.0.1:0")
            told = box.json("zht", "status", "--json")
            box.run("zht", "insert", "k", "v")
            to, out = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            session = context.wrap_bio(to, out)
            self.assertRaises(ssl.SSLWantReadError, session.do_handshake)
            crowd = self.crowd([int(told["tcp"].rsplit(":", 1)[1])], 12, 300, out.read())
            away = {"ZHT_DATA": box.path("elsewhere")}
            try:
                time.sleep(1.5)
                slowest = 0.0
                for _ in range(8):
                    began = time.monotonic()
                    self.assertEqual(box.out("zht", "lookup", "k", "--cluster", told["tcp"], env=away), "v")
                    slowest = max(slowest, time.monotonic() - began)
                self.assertIsNone(crowd.poll(), "the crowd is there all the while")
                print(f"the slowest of 8 callers over TLS was served after {slowest:.2f} s", flush=True)
            finally:
                crowd.kill()
                crowd.wait()

    def test_without_descriptors_the_loops_do_not_spin(self):
        with Sandbox() as box:
            box.run("zht", "serve", "--background", "--instances", "1", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0",
                    "--http", "127.0.0.1:0")
            told = box.json("zht", "status", "--json")
            pid = told["pid"]
            ports = [int(told[one].rsplit(":", 1)[1]) for one in ("tcp", "resp", "http")]
            used = max(int(one) for one in os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
            held = [socket.create_connection(("127.0.0.1", port), 10) for port in ports for _ in range(8)]
            time.sleep(0.3)
            began = cpu_seconds(pid)
            time.sleep(2)
            spent = cpu_seconds(pid) - began
            for one in held:
                one.close()
            self.assertLess(spent, 0.6, "seconds of processor time in 2 s")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (4096, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
            box.run("zht", "insert", "k", "v", "--cluster", told["tcp"])


if __name__ == "__main__":
    harness.main()

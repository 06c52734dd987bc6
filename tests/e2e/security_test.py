#!/usr/bin/env python3
"""Who gets in: a node with a cluster secret against tools, Redis clients, HTTP and bare sockets that know it, know another,
know none, or repeat what they overheard. PROTOCOL.md, "Who may connect"."""
import hashlib
import hmac
import os
import re
import shutil
import socket
import ssl
import subprocess
import unittest
import urllib.error
import urllib.request

import frames
import harness
from frames import control
from harness import Sandbox, need


class Peer(frames.Peer):
    """Proves a secret; written from PROTOCOL.md alone."""

    def hello(self, nonce):
        self.socket.sendall(control(32, b"\1" + nonce))
        return self.reply()

    def prove(self, secret):
        """The whole handshake; the status of its last reply."""
        key = hmac.digest(b"zht cluster secret 1", secret.rstrip(), hashlib.sha256)
        mine = os.urandom(32)
        _, _, status, message, value = self.hello(mine)
        assert status == 0, message
        theirs, proof = value[:32], value[32:]
        both = mine + theirs
        assert hmac.compare_digest(proof, hmac.digest(key, b"zht handshake 1 answerer\n" + both, hashlib.sha256)), "not our secret"
        self.said = control(33, hmac.digest(key, b"zht handshake 1 asker\n" + both, hashlib.sha256), 2)
        self.socket.sendall(self.said)
        return self.reply()[2]


class Security(unittest.TestCase):
    def serve(self, box, *more):
        """A node that listens for everything, with a secret."""
        self.file = box.out("zht", "secret", "new")
        box.run("zht", "serve", "--background", "--instances", "1", "--listen", "127.0.0.1:0", *more)
        status = box.json("zht", "status", "--json")
        with open(self.file, "rb") as file:
            self.secret = file.read()
        return status

    def test_a_listening_node_needs_a_secret_or_a_word(self):
        with Sandbox() as box:
            for port in ("--listen", "--resp", "--http"):
                err = box.run("zht", "serve", port, "0.0.0.0:0", "--secret-file", "none", expect=2)[1]
                self.assertIn("zht secret", err)
                self.assertIn("--insecure", err)
            box.run("zht", "serve", "--background", "--listen", "0.0.0.0:0")  # without a word it makes one
            box.run("zht", "stop")
            path = box.out("zht", "secret", "path")
            self.assertEqual(os.stat(path).st_mode & 0o7777, 0o600)
            box.run("zht", "secret", "new", expect=4)  # never replaced
            os.chmod(path, 0o640)
            self.assertIn("chmod 600", box.run("zht", "serve", "--listen", "0.0.0.0:0", expect=2)[1])
            os.chmod(path, 0o600)
            box.run("zht", "serve", "--background", "--listen", "0.0.0.0:0", "--resp", "0.0.0.0:0", "--http", "0.0.0.0:0")
            box.run("zht", "stop")
            box.run("zht", "serve", "--listen", "127.0.0.1:0", "--secret-file", box.path("nowhere"), expect=3)
            # A client's key makes no node.
            key = box.path("key")
            with open(key, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as file:
                file.write(box.out("zht", "secret", "client", "alice"))
            self.assertIn("client's key", box.run("zht", "serve", "--listen", "127.0.0.1:0", "--secret-file", key, expect=2)[1])

    def test_tools_with_the_right_one_the_wrong_one_and_none(self):
        with Sandbox() as box:
            address = self.serve(box)["tcp"]
            box.run("zht", "--cluster", address, "insert", "k", "v")  # finds the secret beside the data
            with open(box.path("wrong"), "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as file:
                file.write("another secret, also long enough\n")
            for file, said in ((box.path("wrong"), "not ours"), ("none", "ZHT_SECRET_FILE")):
                for argv in (("lookup", "k"), ("status",), ("members",)):
                    err = box.run("zht", "--cluster", address, *argv, expect=2, env={"ZHT_SECRET_FILE": file})[1]
                    self.assertIn(said, err)
            # From a machine that has no node: the copied file, named in the environment.
            away = {"ZHT_DATA": box.path("away"), "ZHT_SECRET_FILE": shutil.copy(self.file, box.path("copied"))}
            self.assertEqual(box.out("zht", "--cluster", address, "lookup", "k", env=away), "v")
            lines = '{"op":"insert","key":"a","value":"1"}\n{"op":"lookup","key":"a"}\n'
            self.assertEqual(box.out("zht", "--cluster", address, "pipe", input=lines, env=away).count('"ok"'), 2)
            # The unix socket asks for nothing: the kernel says who it is.
            self.assertEqual(box.out("zht", "lookup", "k", env={"ZHT_SECRET_FILE": "none"}), "v")

    def test_no_downgrade_to_a_node_without_a_secret(self):
        with Sandbox() as box, Sandbox() as other:
            other.run("zht", "serve", "--background", "--listen", "127.0.0.1:0", "--insecure")
            address = other.json("zht", "status", "--json")["tcp"]
            box.run("zht", "secret", "new")
            err = box.run("zht", "--cluster", address, "insert", "k", "v", expect=2)[1]
            self.assertIn("secret", err)
            self.assertEqual(other.run("zht", "lookup", "k", expect=3)[0], "")

    def test_every_endpoint_against_bare_sockets(self):
        with Sandbox() as box:
            status = self.serve(box)
            box.run("zht", "insert", "k", "v")
            table = box.json("zht", "members", "--json")
            ports = [status["tcp"]] + [a for i in table["instances"] for a in i["addresses"] if not a.startswith("unix:")]
            self.assertEqual(len(ports), 2)
            for address in ports:
                known = Peer(address)
                self.assertEqual(known.prove(self.secret), 0)
                known.socket.sendall(control(1, b"", 9))
                self.assertEqual(known.reply()[2], 0)
                repeated = Peer(address)  # what was overheard of the first
                repeated.hello(os.urandom(32))
                repeated.socket.sendall(known.said)
                self.assertNotEqual(repeated.reply()[2], 0)
                self.assertRaises(EOFError, repeated.reply)
                silent = Peer(address)
                for bytes_ in (control(1, b""), control(3, b""), b"GET / HTTP/1.1\r\n\r\n" * 9, os.urandom(2000)):
                    stranger = Peer(address)
                    stranger.socket.sendall(bytes_)
                    try:
                        self.assertNotEqual(stranger.reply()[2], 0)
                        self.assertRaises(EOFError, stranger.reply)
                    except (EOFError, ConnectionResetError):
                        pass
                    stranger.close()
                self.assertEqual(silent.socket.recv(1), b"")  # its time was over
                known.socket.sendall(control(1, b"", 10))
                self.assertEqual(known.reply()[2], 0)
                for peer in (known, repeated, silent):
                    peer.close()
            self.assertTrue(box.json("zht", "status", "--json")["pid"])

    def test_no_datagrams_where_there_is_a_secret(self):
        with Sandbox() as box:
            self.serve(box)
            table = box.json("zht", "members", "--json")
            port = int([a for a in table["instances"][0]["addresses"] if not a.startswith("unix:")][0].rsplit(":", 1)[1])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:  # nobody has it
                udp.bind(("127.0.0.1", port))

    def test_redis_clients(self):
        need("redis-cli")
        with Sandbox() as box:
            address = self.serve(box, "--resp", "127.0.0.1:0")["resp"]
            port = address.rsplit(":", 1)[1]
            secret = self.secret.decode().strip()
            self.assertIn("NOAUTH", box.out("redis-cli", "-p", port, "set", "k", "v"))
            self.assertIn("NOAUTH", box.out("redis-cli", "-p", port, input="MULTI\nSET k v\nEXEC\nINFO\nnonsense\n"))
            self.assertIn("WRONGPASS", box.out("redis-cli", "-p", port, "auth", secret[:-1] + "!"))
            self.assertEqual(box.out("redis-cli", "-p", port, "--no-auth-warning", "-a", secret, "set", "k", "v"), "OK")
            self.assertEqual(box.out("redis-cli", "-p", port, "--no-auth-warning", "-3", "-a", secret, "get", "k"), "v")
            answers = box.out("redis-cli", "-p", port, input=f"AUTH {secret}\nGET k\nRESET\nGET k\n")
            self.assertRegex(answers, r"OK\s+v\s+RESET\s+NOAUTH")
            with socket.create_connection(("127.0.0.1", int(port)), 10) as greedy:  # a long word before AUTH
                greedy.settimeout(harness.DEADLINE)
                greedy.sendall(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n")
                try:
                    for _ in range(100):
                        greedy.sendall(b"x" * 10000)
                    self.assertEqual(greedy.recv(100), b"")
                except (BrokenPipeError, ConnectionResetError):
                    pass
            with socket.create_connection(("127.0.0.1", int(port)), 10) as silent:
                silent.settimeout(harness.DEADLINE)
                self.assertEqual(silent.recv(1), b"")

    def test_redis_clients_over_tls(self):
        need("redis-cli")
        need("openssl")
        with Sandbox() as box:
            box.make_certificates()
            shown = ("--cert", box.path("node.pem"), "--key", box.path("node.key"))
            trusted = ("--tls", "--cacert", box.path("ca.pem"))
            value = "v" * 3_000_000  # many records of TLS
            # Certificates of both sides are enough to listen anywhere.
            box.run("zht", "serve", "--background", "--instances", "1", "--resp", "0.0.0.0:0")
            port = box.json("zht", "status", "--json")["resp"].rsplit(":", 1)[1]
            self.assertEqual(box.out("redis-cli", "-p", port, *trusted, *shown, "-x", "set", "k", input=value), "OK")
            self.assertEqual(box.out("redis-cli", "-p", port, *trusted, *shown, "get", "k"), value)
            self.assertEqual(box.out("zht", "lookup", "k"), value)
            many = "".join(f"SET k{i} {i}\n" for i in range(2000)) + "GET k1999\n"
            self.assertTrue(box.out("redis-cli", "-p", port, *trusted, *shown, input=many).endswith("1999"))
            self.assertIn("speaks TLS", box.run("redis-cli", "-p", port, "get", "k", expect=None)[0])  # without it
            said = "".join(box.run("redis-cli", "-p", port, *trusted, "get", "k", expect=None))  # without a certificate
            self.assertNotIn("vvv", said)
            box.run("zht", "stop")
            # Without them it is a secret that lets in, and beyond loopback there must be one.
            for kind in ("server", "off"):
                err = box.run("zht", "serve", "--resp", "0.0.0.0:0", "--resp-tls", kind, expect=2)[1]
                self.assertIn("unauthenticated", err)
            with open(box.out("zht", "secret", "new"), encoding="ascii") as file:
                secret = file.read().strip()
            box.run("zht", "serve", "--background", "--resp", "0.0.0.0:0", "--resp-tls", "server")
            port = box.json("zht", "status", "--json")["resp"].rsplit(":", 1)[1]
            self.assertIn("NOAUTH", box.out("redis-cli", "-p", port, *trusted, "get", "k"))
            self.assertEqual(box.out("redis-cli", "-p", port, *trusted, "--no-auth-warning", "-a", secret, "strlen", "k"), "3000000")
            box.run("zht", "stop")
            box.run("zht", "serve", "--background", "--resp", "127.0.0.1:0", "--resp-tls", "off")
            port = box.json("zht", "status", "--json")["resp"].rsplit(":", 1)[1]
            box.run("redis-cli", "-p", port, *trusted, "get", "k", expect=1)  # told at once; nobody waits
            with socket.create_connection(("127.0.0.1", int(port)), 10) as hello:
                hello.settimeout(harness.DEADLINE)
                hello.sendall(b"\x16\x03\x01\x00\xc8\x01\x00\x00")
                self.assertIn(b"no TLS", hello.recv(100))
            self.assertEqual(box.out("redis-cli", "-p", port, "--no-auth-warning", "-a", secret, "strlen", "k"), "3000000")

    def test_metrics_over_tls(self):
        need("openssl")
        with Sandbox() as box:
            box.make_certificates()

            def get(address, path, certificate, scheme="https"):
                context = ssl.create_default_context(cafile=box.path("ca.pem"))
                if certificate:
                    context.load_cert_chain(box.path("node.pem"), box.path("node.key"))
                with urllib.request.urlopen(f"{scheme}://{address}{path}", timeout=harness.DEADLINE, context=context) as answer:
                    return answer.read().decode()

            box.run("zht", "serve", "--background", "--instances", "1", "--http", "127.0.0.1:0")
            address = box.json("zht", "status", "--json")["http"]
            self.assertIn("zht_", get(address, "/metrics", True))
            self.assertRaises(OSError, get, address, "/metrics", False)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                get(address, "/healthz", False, "http")
            self.assertIn("https", refused.exception.read().decode())
            box.run("zht", "stop")
            box.run("zht", "serve", "--background", "--http", "127.0.0.1:0", "--http-tls", "server")
            self.assertEqual(get(box.json("zht", "status", "--json")["http"], "/healthz", False), "ok\n")
            box.run("zht", "stop")
            self.assertIn("tls_certificate", box.run("zht", "serve", "--http-tls", "server", expect=2, env={
                "ZHT_TLS_CERTIFICATE": "", "ZHT_TLS_KEY": "", "ZHT_TLS_CA": ""})[1])

    def test_metrics_beyond_loopback_want_the_token(self):
        with Sandbox() as box:
            port = self.serve(box, "--http", "0.0.0.0:0")["http"].rsplit(":", 1)[1]
            token = box.out("zht", "secret", "token")
            self.assertNotIn(self.secret.decode().strip(), token)

            def get(path, bearer=None):
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
                if bearer is not None:
                    request.add_header("Authorization", "Bearer " + bearer)
                try:
                    with urllib.request.urlopen(request, timeout=harness.DEADLINE) as answer:
                        return answer.status, answer.read().decode()
                except urllib.error.HTTPError as error:
                    return error.code, error.read().decode()

            self.assertEqual(get("/metrics")[0], 401)
            self.assertEqual(get("/metrics", token[:-1])[0], 401)
            self.assertEqual(get("/metrics", self.secret.decode().strip())[0], 401)
            status, text = get("/metrics", token)
            self.assertEqual(status, 200)
            self.assertIn("zht_", text)
            self.assertEqual(get("/healthz"), (200, "ok\n"))

    def test_another_user_is_not_served_over_the_unix_socket(self):
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            self.skipTest("needs root and setpriv to be somebody else")
        with Sandbox() as box:
            self.serve(box)
            for path in (box.folder, box.data):
                os.chmod(path, 0o755)
            sock = os.path.join(box.data, "node.sock")
            os.chmod(sock, 0o666)  # opened up by mistake
            script = ("import socket,sys; s=socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]);\n"
                      "try: s.sendall(bytes.fromhex(sys.argv[2])); print(len(s.recv(100)))\n"
                      "except (BrokenPipeError, ConnectionResetError): print(0)")
            said = [shutil.which("python3"), "-c", script, sock, control(1, b"").hex()]
            other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            mine = subprocess.run(said, capture_output=True, text=True, timeout=60, check=False, cwd="/")
            theirs = subprocess.run(other + said, capture_output=True, text=True, timeout=60, check=False, cwd="/")
            self.assertTrue(int(re.findall(r"\d+", mine.stdout)[0]) > 0, mine)
            self.assertEqual(theirs.stdout.strip(), "0", theirs)


if __name__ == "__main__":
    harness.main()

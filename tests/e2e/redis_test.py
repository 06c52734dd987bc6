#!/usr/bin/env python3
"""The RESP port: redis-cli, redis-benchmark, redis-py and go-redis as they come, on the keys every other client sees; and
clients that are broken, slow or hostile, which harm nobody else."""
import os
import socket
import sys
import threading
import time
import unittest

import harness
from harness import Sandbox, free_port, go_program, python_package, rounds, wait_for

# Runs with redis-py on its path and the port as its argument.
PYTHON_CLIENT = r'''
import sys, redis, threading
port = int(sys.argv[1])

def same(what, got, expected):
    assert got == expected, f"{what}: {got!r}, not {expected!r}"

for protocol in (2, 3):
    r = redis.Redis(port=port, decode_responses=True, protocol=protocol, client_name="test")
    p = f"py{protocol}:"
    assert r.ping()
    same("SET GET", r.set(p + "k", "1", ex=10, get=True), None)
    same("SET KEEPTTL", r.set(p + "k", "2", keepttl=True, get=True), "1")
    same("TTL", r.ttl(p + "k"), 10)
    same("SET NX", r.set(p + "k", "3", nx=True), None)
    same("SET XX", r.set(p + "k", "3", xx=True), True)
    same("TTL after SET", r.ttl(p + "k"), -1)
    same("EXPIRE", r.expire(p + "k", 100), True)
    same("PERSIST", r.persist(p + "k"), True)
    same("GETEX", r.getex(p + "k", px=50000), "3")
    same("GETSET", r.getset(p + "k", "4"), "3")
    same("GETDEL", r.getdel(p + "k"), "4")
    same("GET", r.get(p + "k"), None)
    same("SETNX", r.setnx(p + "k", "v"), True)
    same("SETEX", r.setex(p + "k", 5, "v"), True)
    same("INCR", r.incr(p + "n", 41), 41)
    same("DECR", r.decr(p + "n"), 40)
    same("INCRBYFLOAT", r.incrbyfloat(p + "n", 0.5), 40.5)
    same("APPEND", r.append(p + "log", "abc"), 3)
    same("GETRANGE", r.getrange(p + "log", -2, -1), "bc")
    same("STRLEN", r.strlen(p + "log"), 3)
    same("MSET", r.mset({p + "a": 1, p + "b": 2}), True)
    same("MGET", r.mget(p + "a", p + "none", p + "b"), ["1", None, "2"])
    same("MSETNX", r.msetnx({"{%s}a" % p: 1, "{%s}b" % p: 2}), True)
    same("EXISTS", r.exists(p + "a", p + "a", p + "none"), 2)
    same("DEL and UNLINK", (r.delete(p + "a", p + "none"), r.unlink(p + "b")), (1, 1))
    pipe = r.pipeline()  # MULTI ... EXEC
    pipe.set(p + "x", 5).get(p + "x").incr(p + "y").get(p + "none")
    same("a transaction", pipe.execute(), [True, "5", 1, None])
    pipe = r.pipeline(transaction=False)
    for i in range(1000):
        pipe.set(f"{p}pipe:{i}", i)
    same("a pipeline", pipe.execute(), [True] * 1000)
    same("SCAN", len(set(r.scan_iter(p + "pipe:*", count=50))), 1000)
    same("KEYS", sorted(r.keys(p + "pipe:99?")), sorted(f"{p}pipe:99{i}" for i in range(10)))
    assert r.dbsize() >= 1000
    assert r.info()["redis_version"] and r.config_get("save") == {"save": ""}
    assert r.client_id() > 0 and r.client_getname() == "test"
    same("COMMAND", r.command()["get"]["arity"], 2)
    def add(pipe):
        value = int(pipe.get(p + "total") or 0)
        pipe.multi()
        pipe.set(p + "total", value + 1)
    def adder():
        mine = redis.Redis(port=port, decode_responses=True, protocol=protocol)
        for _ in range(25):
            mine.transaction(add, p + "total")
    threads = [threading.Thread(target=adder) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    same("four adders with WATCH", r.get(p + "total"), "100")
    same("ZHT.CSWAP", r.execute_command("ZHT.CSWAP", p + "total", "99", "1"), None)
    for command, says in ((("INCR", p + "log"), "not an integer"), (("LPUSH", "l", "v"), "unknown command"), (("GET",), "wrong number")):
        try:
            r.execute_command(*command)
            raise AssertionError(f"{command} was taken")
        except redis.ResponseError as error:
            assert says in str(error), error
r = redis.Redis(port=port)
same("bytes", (r.set("py:bytes", bytes(range(256))), r.get("py:bytes")), (True, bytes(range(256))))
same("a big value", (r.set("py:big", b"x" * 10_000_000), len(r.get("py:big"))), (True, 10_000_000))
print("ok")
'''


class Redis(unittest.TestCase):
    def setUp(self):
        self.box = self.enterContext(Sandbox()) if hasattr(self, "enterContext") else None
        if self.box is None:  # Python before 3.11
            self.box = Sandbox()
            self.box.__enter__()
            self.addCleanup(self.box.clean_up)
        self.port = free_port()
        self.box.run("zht", "serve", "--background", "--resp", f"127.0.0.1:{self.port}", "--insecure")

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=harness.DEADLINE)
        self.addCleanup(connection.close)
        return connection

    def ask(self, connection, *words):
        """One command; its reply as bytes, read until a bulk string or line is whole (enough for the tests here)."""
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        return self.reply(connection)

    def reply(self, connection):
        got = b""
        while not got.endswith(b"\r\n"):
            got += self.more(connection)
        if got[:1] == b"$" and got[1:2] != b"-":
            size = len(got.split(b"\r\n", 1)[0]) + 2 + int(got[1:].split(b"\r\n", 1)[0]) + 2
            while len(got) < size:
                got += self.more(connection)
        return got

    def more(self, connection):
        got = connection.recv(1 << 20)
        self.assertTrue(got, "closed")
        return got

    def memory(self):
        with open(f"/proc/{self.box.node_pid()}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024  # MiB

    def test_a_key_is_gone_when_its_time_is_over(self):
        connection = self.connect()
        began = time.monotonic()
        self.assertEqual(self.ask(connection, "SET", "brief", "1", "PX", 1500), b"+OK\r\n")
        self.assertEqual(self.ask(connection, "SET", "lasting", "1", "EX", 1000), b"+OK\r\n")
        if time.monotonic() - began < 1:
            self.assertEqual(self.ask(connection, "SET", "brief", "2", "NX"), b"$-1\r\n")
        self.box.run("zht", "insert", "--ttl", "1500ms", "native", "1")
        waiting = self.connect()
        waiting.sendall(b"ZHT.CALLBACK brief 60000 ABSENT\r\n")
        for ask in (lambda: self.ask(connection, "GET", "brief") == b"$-1\r\n",
                    lambda: self.box.run("zht", "lookup", "native", expect=None) and self.box.status == 3):
            wait_for(ask, "the end of its time", 30)
        self.assertGreater(time.monotonic() - began, 1.4)
        self.assertEqual(self.ask(connection, "SET", "brief", "2", "NX"), b"+OK\r\n")
        self.assertEqual(self.ask(connection, "GET", "lasting"), b"$1\r\n1\r\n")
        self.assertTrue(self.reply(waiting), "who waits is told")

    # Redis's own tools and clients --------------------------------------------------------------------------------------

    def test_redis_cli_and_the_native_client_see_the_same_keys(self):
        harness.need("redis-cli")
        cli = lambda *words, **more: self.box.out("redis-cli", "-p", self.port, *words, **more)  # noqa: E731
        self.assertEqual(cli("SET", "greeting", "hello"), "OK")
        self.assertEqual(self.box.out("zht", "lookup", "greeting"), "hello")
        self.box.run("zht", "append", "greeting", ", world")
        self.assertEqual(cli("GET", "greeting"), "hello, world")
        self.assertEqual(cli("-3", "GET", "greeting"), "hello, world")
        self.assertEqual(cli("INCRBY", "n", "5"), "5")
        self.box.run("zht", "cswap", "n", "5", "6")
        self.assertEqual(cli("GET", "n"), "6")
        self.assertEqual(cli(input="SET a 1\nINCR a\nGET a\n"), "OK\n2\n2")
        self.assertEqual(cli("--scan", "--pattern", "g*"), "greeting")
        self.assertIn("redis_version:7", cli("INFO", "server"))
        waiting = self.box.start("redis-cli", "-p", str(self.port), "ZHT.CALLBACK", "greeting", "60000", "VALUE", "bye")
        wait_for(lambda: self.box.json("zht", "status", "--json")["instances"] and
                 sum(i["watchers"] for i in self.box.json("zht", "status", "--json")["instances"]) == 1, "a watcher")
        self.box.run("zht", "insert", "greeting", "bye")
        self.assertIn(b"bye", waiting.communicate(timeout=harness.DEADLINE)[0])
        # A kill: what was acknowledged is there, at the same port.
        self.box.kill_node()
        self.box.run("zht", "serve", "--background", "--resp", f"127.0.0.1:{self.port}", "--insecure")
        self.assertEqual(cli("MGET", "greeting", "n", "a"), "bye\n6\n2")

    def test_redis_benchmark(self):
        harness.need("redis-benchmark")
        for more in ([], ["-P", "16"], ["-t", "set,get,incr,mset", "-d", "1000"], ["-3"], ["-r", "10000", "-c", "200"]):
            out, err = self.box.run("redis-benchmark", "-p", self.port, "-t", "set,get", "-n", rounds(5000, 200000), "-q", *more)
            self.assertIn("SET: ", out)
            self.assertIn("GET: ", out)
            self.assertNotIn("rror", out + err)
        self.assertTrue(self.box.out("zht", "lookup", "key:__rand_int__"))

    def test_a_python_client(self):
        packages = python_package(self.box, "redis==8.1.0")
        out, _ = self.box.run(sys.executable, "-c", PYTHON_CLIENT, self.port, env={"PYTHONPATH": packages})
        self.assertEqual(out.strip(), "ok")
        self.assertEqual(self.box.out("zht", "lookup", "py3:total"), "100")

    def test_a_go_client(self):
        program = go_program(self.box, "redis_go")
        out, _ = self.box.run(program, f"127.0.0.1:{self.port}", expect=None)
        self.assertEqual((out.strip(), self.box.status), ("ok", 0))
        self.assertEqual(self.box.out("zht", "lookup", "go3:total"), "200")

    # The broken and the hostile ------------------------------------------------------------------------------------------

    def test_what_is_no_command_gets_an_error_and_is_closed(self):
        good = self.connect()
        self.assertEqual(self.ask(good, "SET", "k", "v"), b"+OK\r\n")
        for bad in (b"*1\r\n$-5\r\nx\r\n", b"*abc\r\n", b"*2000000000\r\n", b"*1\r\n$999999999999\r\n", b"*1\r\nGET\r\n", b"\x00" * 70000,
                    b"x" * 70000, b"*1\r\n$4\r\nPINGxx", b"GET \"unbalanced\r\n", os.urandom(5000) + b"\r\n", b"*-1\r\n*1\r\n$3\r\nabcde"):
            connection = self.connect()
            connection.sendall(bad)
            connection.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while more := connection.recv(65536):
                    got += more
            except ConnectionResetError:
                pass
            self.assertIn(got[:1], (b"-", b""), bad[:40])
        # An argument too big is refused when it is announced, not when it has arrived.
        connection = self.connect()
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$17000000\r\n")
        self.assertIn(b"invalid bulk length: 17000000 bytes, the limit is 16777216", self.reply(connection))
        self.assertEqual(connection.recv(10), b"")
        self.assertEqual(self.ask(good, "GET", "k"), b"$1\r\nv\r\n")
        for words, says in ((("GET", "k" * 70000), b"-ERR"), (("GET", ""), b"-ERR"), (("SELECT", "1"), b"-ERR"), (("FLUSHALL",), b"-ERR"),
                            (("SET", "k", "v", "EX", "0"), b"-ERR invalid expire"), (("EVAL", "x", "0"), b"-ERR unknown command")):
            self.assertTrue(self.ask(good, *words).startswith(says), words)

    def test_the_slow_the_half_open_and_those_who_never_read(self):
        good = self.connect()
        self.assertEqual(self.ask(good, "SET", "big", b"x" * 4_000_000), b"+OK\r\n")
        before = self.memory()
        deaf = []
        for _ in range(10):  # ask for 40 GB in all and read nothing
            connection = self.connect()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            try:
                connection.sendall(b"GET big\r\n" * 1000)
            except BlockingIOError:
                pass
            deaf.append(connection)
        halves = []
        for _ in range(100):  # say half a command and nothing more
            connection = self.connect()
            connection.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1000000\r\nx")
            halves.append(connection)
        slow = self.connect()
        for byte in b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n":
            slow.sendall(bytes([byte]))
            self.assertEqual(self.ask(good, "PING"), b"+PONG\r\n")
        self.assertEqual(self.reply(slow), b"$2\r\nhi\r\n")
        self.assertLess(self.memory() - before, 2500, "MiB more, for 40 GB that were asked for")
        for connection in deaf + halves:
            connection.close()
        self.assertEqual(self.ask(good, "STRLEN", "big"), b":4000000\r\n")

    def test_ten_thousand_commands_in_one_write_are_answered_in_order(self):
        connection = self.connect()
        count = 10_000
        sender = threading.Thread(target=lambda: connection.sendall(
            b"".join(b"SET key:%d %d\r\nGET key:%d\r\nECHO %d\r\n" % (i % 97, i, i % 97, i) for i in range(count))))
        sender.start()
        expected = b"".join(b"+OK\r\n$%d\r\n%d\r\n$%d\r\n%d\r\n" % (len(str(i)), i, len(str(i)), i) for i in range(count))
        got = b""
        while len(got) < len(expected):
            got += self.more(connection)
        sender.join()
        self.assertEqual(got, expected)

    def test_a_waiting_command_delays_only_its_own_replies(self):
        waiting, other = self.connect(), self.connect()
        waiting.sendall(b"ZHT.CALLBACK later 60000\r\nPING\r\n")
        self.assertEqual(self.ask(other, "PING"), b"+PONG\r\n")
        self.assertEqual(self.ask(other, "SET", "later", "v"), b"+OK\r\n")
        got = b""
        while not got.endswith(b"+PONG\r\n"):
            got += self.more(waiting)
        self.assertTrue(got.startswith(b"*2\r\n:1\r\n$1\r\nv\r\n"), got)


class Limits(unittest.TestCase):
    def test_one_connection_too_many_is_told_so(self):
        with Sandbox() as box:
            port = free_port()
            with open(box.path("zht.toml"), "w", encoding="ascii") as file:
                file.write("max_connections = 20\n")
            box.run("zht", "serve", "--background", "--config", box.path("zht.toml"), "--resp", f"127.0.0.1:{port}", "--insecure")
            held = [socket.create_connection(("127.0.0.1", port), timeout=harness.DEADLINE) for _ in range(20)]
            for connection in held:
                connection.sendall(b"PING\r\n")
                self.assertEqual(connection.recv(100), b"+PONG\r\n")
            with socket.create_connection(("127.0.0.1", port), timeout=harness.DEADLINE) as surplus:
                self.assertEqual(surplus.recv(100), b"-ERR max number of clients reached\r\n")
                self.assertEqual(surplus.recv(100), b"")
            held.pop().close()

            def room():
                with socket.create_connection(("127.0.0.1", port), timeout=harness.DEADLINE) as again:
                    again.sendall(b"PING\r\n")
                    return again.recv(100) == b"+PONG\r\n"
            wait_for(room, "room for one more")
            for connection in held:
                connection.close()


if __name__ == "__main__":
    harness.main()

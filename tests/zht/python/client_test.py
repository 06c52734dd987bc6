#!/usr/bin/env python3
"""The Python package, installed by pip into a venv of its own as a user would (offline), against real nodes.

    ZHT_BUILD=build/release tests/zht/python/client_test.py

Without venv or pip it runs from the tree, and says so.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "e2e"))
import harness  # noqa: E402

TREE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
PACKAGE = os.path.join(TREE, "zht", "python")
BUILD = os.path.realpath(os.environ.get("ZHT_BUILD", os.path.join(TREE, "build", "release")))
ZHT = os.path.join(BUILD, "bin", "zht")
WAIT = 60  # seconds, for whatever is sure to come


class Installed:
    """The interpreter that has the package, and the environment to run it in."""
    folder = tempfile.mkdtemp(prefix="zht-python-")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ZHT_", "PYTHON"))}
    python = sys.executable
    reason = None

    @classmethod
    def make(cls):
        venv = os.path.join(cls.folder, "venv")
        made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True, check=False)
        pip = os.path.join(venv, "bin", "pip")
        if made.returncode != 0 or not os.path.exists(pip):
            cls.reason = "no venv with pip here (Debian: python3-venv)"
            print(f"{cls.reason}; running from the tree", file=sys.stderr)
            cls.environment.update(PYTHONPATH=PACKAGE, ZHT_BUILD=BUILD)
            return
        done = subprocess.run([pip, "install", "--no-index", "--quiet", "--disable-pip-version-check", PACKAGE],
                              env={**cls.environment, "ZHT_BUILD": BUILD}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"pip install failed: {done.stdout}{done.stderr}")
        cls.python = os.path.join(venv, "bin", "python")


class Box(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=Installed.folder)
        self.data = os.path.join(self.folder, "data")
        self.environment = {**Installed.environment, "ZHT_DATA": self.data, "PYTHONPATH": Installed.environment.get("PYTHONPATH", "")}

    def tearDown(self):
        subprocess.run([ZHT, "stop", "--data", self.data, "--quiet"], capture_output=True, check=False, env=self.environment)

    def start(self, code, **more):
        return subprocess.Popen([Installed.python, "-c", textwrap.dedent(code)], env={**self.environment, **more}, cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_code(self, code, **more):
        with self.start(code, **more) as process:
            out, err = process.communicate(timeout=WAIT)
        self.assertEqual(process.returncode, 0, f"{out}{err}")
        return out

    def node_pid(self):
        with open(os.path.join(self.data, "node.lock"), encoding="ascii") as file:
            return int(file.read())


SYNC = """
    import zht
    with zht.Client(quiet=True) as c:
        v = c.insert("k", "one")
        assert isinstance(v, int) and v > 0
        try: c.insert_new("k", "two")
        except zht.Conflict as error: assert error.outcome.value == b"one" and error.code == zht.Code.CONFLICT, error.outcome
        else: assert False
        assert c.append("k", b"+two") == zht.Appended(7, 1, v + 1) or c.lookup("k").version > v
        found = c.lookup("k")
        assert found.value == b"one+two" and found.fragments == (3, 4) and found.size == 7 and found.text() == "one+two"
        tail = c.lookup("k", range=zht.Range.tail(1))
        assert (tail.value, tail.version, tail.size, tail.offset) == (b"+two", found.version, 7, 3)
        assert c.lookup("k", range=zht.Range.bytes(2, 3)).value == b"e+t"
        assert c.lookup_eventual("k", at_least=found.version, range=zht.Range.bytes(2, 3)).value == b"e+t"
        assert c.lookup("k", range=zht.Range.nothing()).size == 7
        swap = c.cswap("k", "no", "x")
        assert not swap and swap.current == b"one+two"
        assert c.cswap("k", zht.Condition.at_version(found.version), "three")
        assert c.cswap("new", None, "made") and not c.cswap("new", None, "again") and c.cswap_remove("new", "made")
        assert c.get("new") is None and c.get("k") == b"three"
        assert c.callback("k", "three", 10).value == b"three"
        assert c.callback("none", None, 10).version == 0
        try: c.callback("k", zht.Condition.absent(), 0.02)
        except zht.Timeout as error: assert isinstance(error, TimeoutError)
        else: assert False
        try: c.append("k", "x" * 100, limit=20)
        except zht.NoSpace: pass
        else: assert False
        assert c.update("n", "add", "41") == b"41" and c.update("n", "add", "1") == b"42"
        Op = zht.Operation
        outcomes = c.batch([Op.insert("{t}a", "1"), Op.append("{t}b", "2"), Op.lookup("{t}a")])
        assert len(outcomes) == 3 and outcomes[2].value == b"1" and outcomes[1].size == 1
        try: c.batch([Op.remove("{t}a"), Op.check("{t}b", None)])
        except zht.Conflict as error: assert error.outcome.failed_index == 1 and len(error.outcome.outcomes) == 2
        else: assert False
        assert c.get("{t}a") == b"1"
        try: c.batch([Op.insert("a", ""), Op.insert("b", "")])
        except zht.Invalid as error: assert isinstance(error, ValueError) and "partition" in str(error)
        else: assert False
        keys = [f"many{i}" for i in range(300)]
        c.insert_many({key: key * 2 for key in keys})
        c.insert_many([(b"\\x00\\xff", b"\\xff\\x00"), ("leer", "")])
        assert c.get(b"\\x00\\xff") == b"\\xff\\x00" and c.get("leer") == b""
        assert [v.value.decode() for v in c.lookup_many(keys)] == [key * 2 for key in keys]
        assert c.lookup_many(["many7", "absent"])[1] is None
        assert sorted(entry.key.decode() for entry in c.scan("many", page=7)) == sorted(keys)
        assert {entry.key for entry in c.scan("{t}")} == {b"{t}a", b"{t}b"}
        outcomes = c.call_all([Op.lookup("many1"), Op.lookup(""), Op.callback("many1", zht.Condition.present())])
        assert [o.code for o in outcomes] == [0, zht.Code.INVALID, 0] and outcomes[2].value == b"many1many1", outcomes
        big = b"b" * (3 << 20)
        c.insert("big", big)
        assert c.get("big") == big and c.lookup_many(["big", "big"])[1].value == big
        c.insert("short", "v", ttl=0.05)
        assert c.callback("short", None, 20).value == b""
        assert c.remove("k") > 0 and c.remove("k", missing_ok=True) == 0
        for wrong in (lambda: c.remove("k"), lambda: c.lookup("k")):
            try: wrong()
            except zht.NotFound as error: assert isinstance(error, LookupError) and '"k"' in str(error)
            else: assert False
        try: c.insert(5, "v")
        except TypeError: pass
        else: assert False
        other = c
    try: other.get("k")
    except zht.Unavailable: pass
    else: assert False
    other.close()
    print("done")
"""

ASYNC = """
    import asyncio, zht
    async def main():
        async with await zht.aio.connect(quiet=True) as c:
            await asyncio.gather(*(c.insert(f"k{i}", str(i)) for i in range(2000)))
            values = await asyncio.gather(*(c.lookup(f"k{i}") for i in range(2000)))
            assert (await c.lookup_eventual("k7")).value == values[7].value
            assert [v.text() for v in values] == [str(i) for i in range(2000)]
            waiting = [asyncio.create_task(c.callback("door", zht.Condition.present(), 60)) for _ in range(50)]
            never = asyncio.create_task(c.callback("never", zht.Condition.present(), 600))
            await asyncio.sleep(0.05)
            never.cancel()
            await c.insert("door", "open")
            assert all(v.value == b"open" for v in await asyncio.gather(*waiting))
            try: await never
            except asyncio.CancelledError: pass
            else: assert False
            try: await asyncio.wait_for(c.callback("never", zht.Condition.present(), 600), 0.05)
            except asyncio.TimeoutError: pass
            else: assert False
            try: await c.lookup("absent")
            except zht.NotFound: pass
            else: assert False
            assert await c.cswap("door", "open", "shut") and not await c.cswap("door", "open", "x")
            assert (await c.batch([zht.Operation.append("{t}a", "1"), zht.Operation.lookup("{t}a")]))[1].value == b"1"
            assert sorted([e.key async for e in c.scan("k1", page=50)]) == sorted(b"k%d" % i for i in range(2000) if str(i)[0] == "1")
            assert [v and v.value for v in await c.lookup_many(["k1", "none"])] == [b"1", None]
            assert await c.update("n", "add", "7") == b"7" and (await c.append("n", "0")).size == 2
            assert await c.get("none") is None and await c.remove("n") > 0
            big = "b" * (2 << 20)
            await c.insert("big", big)
            assert {v.size for v in await asyncio.gather(*(c.lookup("big") for _ in range(5)))} == {2 << 20}
            last = asyncio.create_task(c.callback("never", zht.Condition.present(), 600))
            await asyncio.sleep(0)
        try: await last
        except zht.Unavailable: pass
        else: assert False
        try: await c.get("k1")
        except zht.Unavailable: pass
        else: assert False
    asyncio.run(main())
    print("done")
"""


class Package(Box):
    def test_the_blocking_client_does_every_operation(self):
        self.assertEqual(self.run_code(SYNC), "done\n")

    def test_the_asyncio_client_does_every_operation(self):
        self.assertEqual(self.run_code(ASYNC), "done\n")

    def test_a_node_inside_the_process(self):
        self.assertEqual(self.run_code(f"""
            import threading, zht
            with zht.Node({self.folder + "/inside"!r}, instances=2, durability="always") as node, node.client() as c:
                threads = [threading.Thread(target=lambda: [c.update("n", "add", "1") for _ in range(200)]) for _ in range(4)]
                [t.start() for t in threads]; [t.join() for t in threads]
                assert c.get("n") == b"800"
            try: zht.Node(durability="sometimes")
            except zht.Invalid: pass
            else: assert False
            with zht.Node({self.folder + "/inside"!r}, listen="127.0.0.1:0") as node:
                with zht.Client(node.listen) as c: print(c.get("n").decode())
            """), "800\n")

    def test_threads_share_a_client_and_it_may_be_closed_under_them(self):
        self.assertEqual(self.run_code("""
            import threading, time, zht
            c = zht.Client(quiet=True)
            ended = []
            def work(i):
                try:
                    while True: c.append(f"log{i}", "x")
                except zht.Unavailable: ended.append(i)
            def wait():
                try: c.callback("never", zht.Condition.present(), 1)
                except (zht.Timeout, zht.Unavailable): ended.append("waiter")
            threads = [threading.Thread(target=work, args=(i,)) for i in range(6)] + [threading.Thread(target=wait)]
            for t in threads: t.start()
            while c.get("log5") is None: time.sleep(0.01)
            c.close()
            for t in threads: t.join()
            print(len(ended))
            """), "7\n")

    def test_every_acknowledged_append_is_there_once_through_kill_9(self):
        process = self.start("""
            import asyncio, sys, zht
            async def main():
                async with await zht.aio.connect(quiet=True, timeout=50) as c:
                    count = 0
                    async def one(i):
                        nonlocal count
                        for j in range(400):
                            await c.append(f"log{i}", f"{j},")
                            count += 1
                            if count % 500 == 0: print(count, flush=True)
                    await asyncio.gather(*(one(i) for i in range(10)))
                    for i in range(10):
                        assert (await c.get(f"log{i}")).decode() == "".join(f"{j}," for j in range(400)), i
            asyncio.run(main())
            c = zht.Client(quiet=True)
            assert c.update("sum", "add", "0") == b"0"
            print("sync", flush=True)
            for i in range(300): c.update("sum", "add", "1")
            print(c.get("sum").decode(), flush=True)
            """)
        with process:
            for line in ("500", "1500", "2500", "sync"):
                for said in process.stdout:
                    if said.strip() == line:
                        break
                os.kill(self.node_pid(), signal.SIGKILL)
            out, err = process.communicate(timeout=WAIT)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(out.split()[-1], "300", err)

    def stop_still(self):
        """SIGSTOP to the node, whose threads it reaches each in its own time: returns when all have stopped."""
        pid = self.node_pid()
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            states = []
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii", errors="replace") as file:
                    states.append(file.read().rsplit(")", 1)[1].split()[0])
            if set(states) == {"T"}:
                return
            time.sleep(0.01)
        self.fail(f"process {pid} does not stop: {states}")

    def interrupt(self, call, before=lambda: None):
        """Ctrl-C until `call` ends with it; what was printed then, and how long it took."""
        process = subprocess.Popen([Installed.python, "-c", textwrap.dedent("""
            import os, signal, sys, zht
            signal.signal(signal.SIGINT, signal.default_int_handler)
            c = zht.Client(quiet=True, timeout=300)
            c.insert("k", "v")
            print("ready", flush=True)
            try:
                sys.stdin.readline()
                %s
            except KeyboardInterrupt: print("interrupted", flush=True)
            sys.stdin.readline()
            print(c.get("k"))
            """) % call], env=self.environment, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            before()
            process.stdin.write("\n")
            process.stdin.flush()
            time.sleep(0.5)  # so that it waits in the call; earlier it is interrupted elsewhere, which is as well
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stdout.readline(), "interrupted\n")
            took = time.monotonic() - began
            os.kill(self.node_pid(), signal.SIGCONT)
            self.assertRegex(process.communicate("\n", timeout=WAIT)[0], "b'[vw]'")
        return took

    def test_control_c_interrupts_a_callback(self):
        self.assertLess(self.interrupt('c.callback("k", "never", 300)'), 30)

    def test_control_c_interrupts_a_call_to_a_silent_node(self):
        self.assertLess(self.interrupt('c.insert("k", "w")', self.stop_still), 30)

    def test_a_forked_child_is_told_and_makes_its_own(self):
        self.assertEqual(self.run_code("""
            import os, zht
            c = zht.Client(quiet=True)
            c.insert("k", "v")
            child = os.fork()
            if child == 0:
                try: c.get("k")
                except zht.Unavailable as error:
                    assert "fork" in str(error)
                    c.close()
                    del c
                    with zht.Client(start=False) as mine: os._exit(0 if mine.get("k") == b"v" else 2)
                os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(status, c.get("k").decode())
            """), "0 v\n")

    def test_what_cannot_be_reached_is_said(self):
        self.assertIn("127.0.0.1:1", self.run_code("""
            import zht
            for wrong in (lambda: zht.Client("127.0.0.1:1"), lambda: zht.Client(start=False)):
                try: wrong()
                except zht.Unavailable as error: print(error)
                else: raise SystemExit("connected?")
            """))

    def test_the_examples_in_the_readme_run(self):
        with open(os.path.join(PACKAGE, "README.md"), encoding="utf-8") as file:
            examples = re.findall(r"```python\n(.*?)```(?:\n+prints\n+```text\n(.*?)```)?", file.read(), re.DOTALL)
        self.assertGreaterEqual(len(examples), 3)
        for code, printed in examples:
            out = self.run_code(code)
            if printed:
                self.assertEqual(out, printed)

    def test_types_hold(self):
        if shutil.which("mypy") is None:
            self.skipTest("no mypy here")
        done = subprocess.run(["mypy", "--strict", "--cache-dir", self.folder, os.path.join(PACKAGE, "zht")], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_installed_package_is_whole(self):
        if Installed.reason:
            self.skipTest(Installed.reason)
        self.run_code("""
            import os, zht
            folder = os.path.dirname(zht.__file__)
            assert "site-packages" in folder and os.path.exists(folder + "/py.typed") and os.path.exists(folder + "/libzht.so")
            assert os.access(folder + "/bin/zht", os.X_OK)
            """)


if __name__ == "__main__":
    if not os.path.exists(os.path.join(BUILD, "lib", "libzht.so")) or not os.path.exists(ZHT):
        sys.exit(f"{BUILD} has no lib/libzht.so or bin/zht; build zht_c and zht_program")
    try:
        Installed.make()
        harness.run_tests(verbosity=1)
    finally:
        shutil.rmtree(Installed.folder, ignore_errors=True)

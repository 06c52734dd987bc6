#!/usr/bin/env python3
"""Clients on few keys while the node is killed -9 again and again: the recorded history is linearizable.

Each client notes when it sent an operation and when the answer came. The history is right when every operation can be
given one moment between the two at which it took effect, alone, so that all answers are what a single copy would have
given. An operation answered `unknown` may take effect at any later moment, or never. Keys are independent, so each key's
history is checked by itself (Wing and Gong's search, with the states already tried remembered, as Lowe has it). Where Go and
its modules can be had, porcupine checks the same histories, versions included (porcupine_go/).
"""
import json
import random
import subprocess
import threading
import time
import unittest

import harness
from harness import Pipe, Sandbox, go_program, rounds, value_of

CLIENTS, KEYS = 16, 4
ROUNDS = rounds(5, 60)
SEED = 4711
FOREVER = float("inf")


def effect(state, operation):
    """What the key holds afterwards, or NO when the answer could not have been given in `state` (None: absent)."""
    kind, argument, expected, status, value = operation
    if kind == "insert":
        return argument
    if kind == "append":
        return (state or "") + argument
    if kind == "lookup":
        return state if value == state else NO
    if kind == "callback":  # answered: at that moment the key was as it had waited for
        return state if value == state and (state == expected if expected is not None else state is not None) else NO
    if kind == "remove":
        if status == "unknown":
            return None
        return None if (status == "ok") == (state is not None) else NO
    if kind == "cswap":
        if status == "unknown":
            return argument if state == expected else state
        return (argument if state == expected else NO) if status == "ok" else (state if state != expected else NO)
    raise AssertionError(kind)


NO = object()


def linearizable(history):
    """history: [(start, end, operation)]; `unknown` ones end at FOREVER. True, or False when no order explains it."""
    history = sorted(history, key=lambda entry: entry[0])
    count = len(history)
    certain = sum(1 << i for i, entry in enumerate(history) if entry[1] != FOREVER)
    seen = set()
    stack = [(0, 0, None)]  # first operation not done, set of those done, state
    while stack:
        first, done, state = stack.pop()
        while first < count and done >> first & 1:
            first += 1
        if done & certain == certain:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        # Any operation that began before the earliest end of those left may be next.
        limit, nexts = FOREVER, []
        for i in range(first, count):
            start, end, operation = history[i]
            if start > limit:
                break
            if done >> i & 1:
                continue
            limit = min(limit, end)
            nexts.append((start, i, operation))
        for start, i, operation in reversed(nexts):
            if start <= limit:
                after = effect(state, operation)
                if after is not NO:
                    stack.append((first, done | 1 << i, after))
    return False


class Client(threading.Thread):
    def __init__(self, box, number):
        super().__init__(daemon=True)
        self.pipe, self.number = Pipe(box), number
        self.random = random.Random(SEED * 100 + number)
        self.stopping, self.failure = False, None
        self.history = {f"key-{k}": [] for k in range(KEYS)}
        self.last = {key: None for key in self.history}
        self.record = []  # the same, for porcupine

    def run(self):
        try:
            while not self.stopping:
                self.step()
        except BaseException as error:  # told by the test, in its own thread
            self.failure = error

    def step(self):
        key = self.random.choice(list(self.history))
        kind = self.random.choices(["insert", "append", "lookup", "remove", "cswap", "callback"], [2, 3, 4, 1, 4, 1])[0]
        argument = f"{self.number}.{sum(map(len, self.history.values()))};"
        expected = self.last[key]
        request = {"op": kind, "key": key}
        if kind in ("insert", "append", "cswap"):
            request["value"] = argument
        if kind == "cswap":
            request["expect"] = expected
        if kind == "callback":  # what was seen last, or anything
            expected = expected if self.random.random() < 0.5 else None
            request["timeout_ms"] = self.random.choice([1, 20, 200])
            if expected is not None:
                request["expect"] = expected
        elif self.random.random() < 0.3:  # impatient: some end as unknown, some as fail, and that must be true
            request["timeout_ms"] = self.random.choice([1, 5, 30, 100])
        start = time.monotonic_ns()
        answer = self.pipe.ask(**request)
        end = time.monotonic_ns()
        status, value = answer["status"], value_of(answer)
        value = None if value is None else value.decode()
        if kind in ("lookup", "cswap") and status != "unknown":
            self.last[key] = argument if status == "ok" and kind == "cswap" else value
        assert status in ("ok", "notfound", "mismatch", "fail", "unknown"), answer
        if status == "fail" or (kind in ("lookup", "callback") and status == "unknown"):
            return  # certainly nothing happened
        self.record.append({"client": self.number, "key": key, "op": kind, "value": argument, "expect": expected, "status": status,
                            "found": value, "version": answer.get("version", 0) if status != "unknown" else 0, "start": start,
                            "end": 0 if status == "unknown" else end})
        self.history[key].append((start, FOREVER if status == "unknown" else end, (kind, argument, expected, status, value)))


def porcupine(program, records):
    """(exit status, output): 0 linearizable, 1 not, 2 not decided in five minutes a key."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    done = subprocess.run([program], input=text.encode(), capture_output=True, timeout=3000, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


class History(unittest.TestCase):
    def test_porcupines_model_itself(self):
        def one(op, start, end, status="ok", value="", found=None, expect=None, version=0):
            return {"client": 0, "key": "k", "op": op, "value": value, "expect": expect, "status": status, "found": found,
                    "version": version, "start": start, "end": end}
        put, get = one("insert", 1, 2, value="a", version=1), one("lookup", 3, 4, found="a", version=1)
        good = [[put, get], [put, one("lookup", 1, 2, "notfound")],
                [one("insert", 1, 0, "unknown", "a"), one("lookup", 2, 3, "notfound"), one("lookup", 8, 9, found="a", version=5)],
                [put, one("cswap", 3, 4, value="b", expect="a", version=2), one("callback", 5, 6, found="b", expect="b", version=2)],
                [put, one("remove", 3, 0, "unknown"), one("cswap", 5, 6, value="c", version=9)]]
        bad = [[put, one("lookup", 3, 4, "notfound")], [put, one("lookup", 3, 4, found="a", version=2)],
               [put, one("append", 3, 4, value="x", version=1)], [put, one("append", 3, 4, value="x", version=2), one("lookup", 5, 6, found="axx", version=2)],
               [put, one("cswap", 3, 4, "mismatch", "b", "a", "a", 1)], [put, one("callback", 3, 4, found="b", expect="b", version=1)],
               [put, one("remove", 3, 4, "notfound")], [one("remove", 1, 2, version=3)]]
        with Sandbox() as box:
            program = go_program(box, "porcupine_go")
            for records in good:
                self.assertEqual(porcupine(program, records)[0], 0, records)
            for records in bad:
                self.assertEqual(porcupine(program, records)[0], 1, records)

    def test_the_checker_itself(self):
        put, get = lambda v: ("insert", v, None, "ok", None), lambda v: ("lookup", None, None, "ok", v)  # noqa: E731
        self.assertTrue(linearizable([(0, 1, put("a")), (2, 3, get("a"))]))
        self.assertFalse(linearizable([(0, 1, put("a")), (2, 3, get(None))]), "a lost write")
        self.assertTrue(linearizable([(0, 5, put("a")), (1, 2, get(None)), (3, 4, get("a"))]))
        self.assertFalse(linearizable([(0, 5, put("a")), (1, 2, get("a")), (3, 4, get(None))]), "a value that goes back")
        self.assertTrue(linearizable([(0, FOREVER, put("a")), (1, 2, get(None)), (8, 9, get("a"))]), "an unknown one, later")
        add = ("append", "x", None, "ok", None)
        self.assertFalse(linearizable([(0, 1, add), (2, 3, get("xx"))]), "an append applied twice")
        swap = lambda e, v, s: ("cswap", v, e, s, None)  # noqa: E731
        self.assertFalse(linearizable([(0, 1, put("a")), (2, 3, swap("a", "b", "ok")), (4, 5, swap("a", "c", "ok"))]))
        self.assertTrue(linearizable([(0, 1, put("a")), (2, 5, swap("a", "b", "ok")), (2, 5, swap("a", "c", "mismatch"))]))

    def test_histories_through_kill_9_are_linearizable(self):
        with Sandbox() as box:
            box.run("zht", "insert", "other", "1")
            clients = [Client(box, n) for n in range(CLIENTS)]
            for client in clients:
                client.start()
            count = lambda: sum(len(h) for c in clients for h in c.history.values())  # noqa: E731
            for number in range(ROUNDS):
                mark = count()
                harness.wait_for(lambda: count() > mark + 400 or any(c.failure for c in clients), "progress")  # noqa: B023
                self.assertEqual([c.failure for c in clients if c.failure], [])
                box.kill_node()
            mark = count()
            harness.wait_for(lambda: count() > mark + 400 or any(c.failure for c in clients), "progress")
            for client in clients:
                client.stopping = True
            for client in clients:
                client.join(harness.DEADLINE)
                client.pipe.close()
            self.assertEqual([c.failure for c in clients if c.failure], [])
            records = [record for client in clients for record in client.record]
            for kind in ("insert", "append", "lookup", "remove", "cswap", "callback"):
                self.assertTrue(any(r["op"] == kind and r["status"] == "ok" for r in records), f"no {kind} that was ok")
            try:
                status, said = porcupine(go_program(box, "porcupine_go"), records)
                print(said, flush=True)
                self.assertIn(status, (0, 2), "porcupine")  # 2: none is wrong, and it gave up on one; the check below does not
            except unittest.SkipTest as reason:
                print(f"not checked with porcupine: {reason}", flush=True)
            for key in clients[0].history:
                whole = [entry for client in clients for entry in client.history[key]]
                began = time.monotonic()
                self.assertTrue(linearizable(whole), f"{key}: {len(whole)} operations have no order that explains them")
                print(f"{key}: {len(whole)} operations, {sum(e[1] == FOREVER for e in whole)} unknown, linearizable "
                      f"(checked in {time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    harness.main()

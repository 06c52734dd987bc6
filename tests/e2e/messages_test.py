#!/usr/bin/env python3
"""10,000 messages through Fabriq: kill -9 of the node twice, and of a producer; each is settled exactly once."""
import json
import random
import signal
import subprocess
import threading
import unittest

import harness
from harness import Sandbox

PER_PRODUCER, PRODUCERS, CONSUMERS = 2_500, 4, 3
MESSAGES = PER_PRODUCER * PRODUCERS


class Consumer(threading.Thread):
    """Pops batches until nothing comes any more; acknowledges most, gives some back; remembers what was settled."""

    def __init__(self, box, number, ended):
        super().__init__(daemon=True)
        self.box, self.ended = box, ended
        self.random = random.Random(number)
        self.settled, self.returned = [], 0
        self.failure = None

    def command(self, *argv):
        """(exit status, stdout, stderr); its own, since Sandbox.run is for one thread."""
        done = subprocess.run(argv, env=self.box.environment, cwd=self.box.folder, stdin=subprocess.DEVNULL, check=False,
                              capture_output=True, timeout=harness.DEADLINE)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def run(self):
        try:
            while True:
                over = self.ended.is_set()
                status, out, error = self.command("fabriq", "pop", "q", "-n", "40", "--wait", "2s", "--lease", "2m", "--json")
                if status == 3 and over:
                    return
                if status == 3:
                    continue
                if status != 0:
                    raise AssertionError(f"pop ended with {status}: {error}")
                batch = json.loads(out)
                # Some go back one by one; the others are settled together.
                back = [m for m in batch if self.random.random() < 0.02]
                keep = [m for m in batch if m not in back]
                for message in back:
                    status, _, error = self.command("fabriq", "nack", "q", message["receipt"])
                    if status != 0:
                        raise AssertionError(f"nack ended with {status}: {error}")
                    self.returned += 1
                if keep:
                    status, _, error = self.command("fabriq", "ack", "q", *[m["receipt"] for m in keep])
                    if status != 0:
                        raise AssertionError(f"ack ended with {status}: {error}")
                    self.settled += [m["body"] for m in keep]
        except BaseException as error:  # told by the test, in its own thread
            self.failure = error


class Messages(unittest.TestCase):
    def test_every_message_is_settled_once_through_kill_9(self):
        with Sandbox() as box:
            box.run("fabriq", "create", "q")
            expected = [f"message {p}.{i}" for p in range(PRODUCERS) for i in range(PER_PRODUCER)]
            for p in range(PRODUCERS):
                with open(box.path(f"lines-{p}"), "w", encoding="ascii") as file:
                    file.writelines(f"message {p}.{i}\n" for i in range(PER_PRODUCER))
            ended = threading.Event()
            consumers = [Consumer(box, n, ended) for n in range(CONSUMERS)]
            for consumer in consumers:
                consumer.start()
            settled = lambda: sum(len(c.settled) for c in consumers)  # noqa: E731

            def settle(count):
                harness.wait_for(lambda: settled() >= count or any(c.failure for c in consumers), f"{count} settled messages")
                self.assertEqual([c.failure for c in consumers if c.failure], [])

            self.push(box, 0)
            # A producer is killed in the middle and run again from its first line: what it pushed is not pushed again.
            process = box.start(*self.command(1), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            with open(box.path("lines-1"), "rb") as file:
                process.stdin.write(b"".join(file.readlines()[:PER_PRODUCER // 2]))
                process.stdin.flush()
            settle(PER_PRODUCER + 20)
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.push(box, 1)
            # The node is killed while a producer pushes and consumers settle, and again while they settle the rest.
            pushing = threading.Thread(target=self.push, args=(box, 2))
            pushing.start()
            settle(PER_PRODUCER + 200)
            box.kill_node()
            print(f"killed the node after {settled()} of {MESSAGES} messages", flush=True)
            pushing.join(harness.DEADLINE)
            self.push(box, 3)
            settle(MESSAGES * 6 // 10)
            box.kill_node()
            print(f"killed the node after {settled()} of {MESSAGES} messages", flush=True)
            ended.set()
            for consumer in consumers:
                consumer.join(3 * harness.DEADLINE)
                self.assertFalse(consumer.is_alive(), "a consumer hangs")
            self.assertEqual([c.failure for c in consumers if c.failure], [])

            bodies = [body for consumer in consumers for body in consumer.settled]
            self.assertEqual(len(bodies), len(set(bodies)), "a message was settled twice")
            self.assertEqual(sorted(set(expected) - set(bodies)), [], "messages are lost")
            self.assertEqual(len(bodies), MESSAGES)
            print(f"{MESSAGES} messages settled once; {sum(c.returned for c in consumers)} had been given back", flush=True)

    def command(self, producer):
        return ["fabriq", "push", "q", "--lines", "--quiet", "--producer", f"producer-{producer}", "--sequence", "1"]

    def push(self, box, producer):
        with open(box.path(f"lines-{producer}"), "rb") as lines:
            process = box.start(*self.command(producer), stdin=lines, stdout=subprocess.DEVNULL,
                                stderr=open(box.path(f"push-{producer}.err"), "wb"))
            status = process.wait(2 * harness.DEADLINE)
        with open(box.path(f"push-{producer}.err"), encoding="utf-8") as file:
            self.assertEqual(status, 0, file.read())


if __name__ == "__main__":
    harness.main("fabriq")

#!/usr/bin/env python3
"""10,000 tasks through MATRIX; the node and the agent are killed -9 in the middle: each is recorded once, with its output."""
import json
import os
import signal
import subprocess
import unittest

import harness
from harness import Sandbox

TASKS = 10_000


class Tasks(unittest.TestCase):
    def test_every_task_is_recorded_once_through_kill_9(self):
        with Sandbox() as box:
            ran = box.path("ran")
            script = box.path("task.sh")
            with open(script, "w", encoding="ascii") as file:
                file.write(f'echo "$1" >>{ran}\necho "result $1"\n')
            with open(box.path("inputs"), "w", encoding="ascii") as file:
                file.writelines(f"{i}\n" for i in range(TASKS))
            with open(box.path("inputs"), "rb") as inputs, open(box.path("out"), "wb") as out:
                mapping = box.start("matrix", "map", "--wait", "--json", "--", "sh", script, "{}", stdin=inputs, stdout=out,
                                    stderr=open(box.path("err"), "wb"))

            def done():
                return os.path.getsize(ran) if os.path.exists(ran) else 0

            for share, victim in ((0.15, "node"), (0.4, "agent"), (0.6, "node")):
                harness.wait_for(lambda: done() > TASKS * 5 * share or mapping.poll() is not None, "tasks to run", 300)  # noqa: B023
                self.assertIsNone(mapping.poll(), f"matrix map ended early: {self.read(box.path('err'))}")
                if victim == "node":
                    box.kill_node()
                else:
                    agent = box.service_pid("matrix")
                    os.kill(agent, signal.SIGKILL)
                    harness.wait_for(lambda: box.service_pid("matrix") not in (None, agent), "another agent")  # noqa: B023
                print(f"killed the {victim} after about {done() // 5} of {TASKS} tasks", flush=True)
            self.assertEqual(mapping.wait(500), 0, self.read(box.path("err")))
            self.check(json.loads(self.read(box.path("out"))), ran)

    def test_run_hands_its_standard_input_on(self):
        with Sandbox() as box:
            def run(data, *argv):
                done = subprocess.run(["matrix", "run", *argv], input=data, capture_output=True, env=box.environment, timeout=harness.DEADLINE,
                                      check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout

            box.run("matrix", "run", "--", "true")
            self.assertEqual(run(b"x\n", "--", "cat"), b"x\n")
            self.assertEqual(run(b"", "--", "cat"), b"")
            big = os.urandom(3_000_000)
            self.assertEqual(run(big, "--", "cat"), big)
            self.assertEqual(run(big, "--", "head", "-c", "5"), big[:5], "what is not read is in nobody's way")
            self.assertEqual(run(b"x\n", "--stdin", "/dev/null", "--", "cat"), b"")
            # A pipe that stays open and silent holds up nobody who does not read it.
            silent, held = os.pipe()
            try:
                done = subprocess.run(["matrix", "run", "--", "echo", "a"], stdin=silent, capture_output=True, env=box.environment,
                                      timeout=harness.DEADLINE, check=False)
                self.assertEqual((done.returncode, done.stdout), (0, b"a\n"))
            finally:
                os.close(silent)
                os.close(held)
            self.assertEqual([name for name in os.listdir(os.path.join(box.data, "matrix")) if name.startswith("stdin-")], [])

    def test_map_makes_every_combination(self):
        with Sandbox() as box:
            out, _ = box.run("matrix", "map", "--", "echo", "{2}-{1}", "{#}", ":::", "a", "b", ":::", "1", "2")
            self.assertEqual(out, "1-a 1\n2-a 2\n1-b 3\n2-b 4\n")
            out, _ = box.run("matrix", "map", ":::", "a", ":::", "1 2", "--", "printf", "%s\\n")
            self.assertEqual(out, "a\n1 2\n", "each part is a word of its own")
            out, _ = box.run("matrix", "map", "--shell", "--", "echo {} | rev", ":::", "a b", ":::", "$HOME")
            self.assertEqual(out, "EMOH$ b a\n")
            _, err = box.run("matrix", "map", "--", "echo", ":::+", "a", expect=2)
            self.assertIn(":::+", err)

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def check(self, job, ran):
        self.assertEqual(job["tasks"]["done"], TASKS)
        self.assertEqual(sorted(r["task"] for r in job["results"]), list(range(TASKS)), "each is recorded once")
        wrong = [r for r in job["results"] if r["state"] != "done" or r["stdout"] != f"result {r['item']}\n"]
        self.assertEqual(wrong[:3], [])
        self.assertEqual({r["item"] for r in job["results"]}, {str(i) for i in range(TASKS)})
        executed = self.read(ran).split()
        self.assertEqual(set(executed), {str(i) for i in range(TASKS)}, "each was executed at least once")
        print(f"{TASKS} tasks recorded once; {len(executed)} executions", flush=True)


if __name__ == "__main__":
    harness.main("matrix")

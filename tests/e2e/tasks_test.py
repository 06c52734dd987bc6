#!/usr/bin/env python3
"""10,000 tasks through MATRIX with kill -9 of the node in the middle: each is recorded exactly once, with its output."""
import os
import unittest

import harness
from harness import Sandbox, rounds

TASKS = rounds(10_000, 10_000)


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
            for share in (0.15, 0.5):
                harness.wait_for(lambda: done() > TASKS * 5 * share or mapping.poll() is not None, "tasks to run", 300)
                self.assertIsNone(mapping.poll(), f"matrix map ended early: {open(box.path('err')).read()}")
                box.kill_node()
                print(f"killed after about {done() // 5} of {TASKS} tasks", flush=True)
            self.assertEqual(mapping.wait(500), 0, open(box.path("err")).read())
            self.check(box, ran)

    def check(self, box, ran):
        with open(ran, encoding="ascii") as file:
            lines = file.read().split()
        # Executed at least once; recorded exactly once.
        self.assertEqual(set(lines), {str(i) for i in range(TASKS)})
        print(f"{TASKS} tasks, {len(lines)} executions", flush=True)


if __name__ == "__main__":
    harness.main("matrix")

#!/usr/bin/env python3
"""./quickstart twice, interrupted in the middle, and stopped: nothing of it is left."""
import os
import signal
import subprocess
import unittest

import harness
from harness import BUILD, TREE, Sandbox, Failed


class Quickstart(unittest.TestCase):
    def setUp(self):
        if os.path.realpath(BUILD) != os.path.join(TREE, "build", "release"):
            self.skipTest("quickstart uses build/release, the tests run from elsewhere")

    def sandbox(self):
        return Sandbox(QUICKSTART_FILES="60", QUICKSTART_SKIP_INSTALL="1", QUICKSTART_SKIP_BUILD="1")

    def prepare(self, box):
        os.makedirs(box.path("run"), mode=0o700, exist_ok=True)
        box.environment["XDG_RUNTIME_DIR"] = box.path("run")
        box.environment["QUICKSTART_STATE"] = box.path("state")

    def assert_nothing_left(self, box):
        harness.wait_for(lambda: not box.processes(), f"the end of all processes: {box.processes()}")
        self.assertEqual(box.all_mounts(), [])
        self.assertFalse(os.path.exists(box.data), "the data folder was made by quickstart, and is gone")

    def test_twice_and_stop(self):
        with self.sandbox() as box:
            self.prepare(box)
            for _ in range(2):
                out, _ = box.run(f"{TREE}/quickstart", timeout=600)
                self.assertIn("60 files equal byte for byte; 60 counts equal", out)
                self.assertIsNotNone(box.node_pid(), "a live node is left")
                self.assertIn("shell 2$ zht cswap quickstart/door 'closed and locked' open", out)
                self.assertIn("shell 1  woken: open", out)
                self.assertIn("nothing was changed", out)
                self.assertEqual(len(box.all_mounts()), 1, "and a mount")
            box.run(f"{TREE}/quickstart", "stop", timeout=120)
            self.assert_nothing_left(box)
            box.run(f"{TREE}/quickstart", "stop", timeout=120)  # again: nothing to do

    def test_an_interrupt_leaves_nothing(self):
        for seconds in (1.0, 3.0):
            with self.sandbox() as box:
                self.prepare(box)
                process = box.start(f"{TREE}/quickstart", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                    start_new_session=True)
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
                    if process.wait(120) not in (130, 0):
                        raise Failed(f"interrupted, it ended with {process.returncode}")
                if process.returncode != 0:
                    self.assert_nothing_left(box)
                box.run(f"{TREE}/quickstart", "stop", timeout=120)
                self.assert_nothing_left(box)


if __name__ == "__main__":
    harness.main("fusionfs", "fabriq", "matrix", fuse=True)

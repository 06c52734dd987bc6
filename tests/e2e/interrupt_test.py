#!/usr/bin/env python3
"""Ctrl-C, or a plain kill, at any command: it ends soon with 130 (143), and leaves no mount and no process behind."""
import os
import signal
import subprocess
import time
import unittest

import harness
from harness import Sandbox


class Interrupt(unittest.TestCase):
    def interrupted(self, box, argv, ready, number=signal.SIGINT, wanted=(130, -signal.SIGINT), **options):
        """Starts argv in the foreground, waits for `ready`, interrupts its group as a terminal would."""
        process = box.start(*argv, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
        harness.wait_for(lambda: ready() or process.poll() is not None, f"{argv} to be ready")
        self.assertIsNone(process.poll(), f"{argv} ended by itself with {process.returncode}")
        os.killpg(process.pid, number)
        self.assertIn(process.wait(harness.DEADLINE), wanted, argv)

    def test_a_node_in_the_foreground(self):
        for number, wanted in ((signal.SIGINT, (0, 130)), (signal.SIGTERM, (0, 143))):
            with Sandbox() as box:
                self.interrupted(box, ["zht", "serve"], lambda: os.path.exists(os.path.join(box.data, "node.sock")),
                                 number, wanted)
                harness.wait_for(lambda: not box.processes(), "the end of all processes")

    def test_a_node_that_asks_to_join_where_nobody_is(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with Sandbox() as box:
                port, began = harness.free_port(), time.monotonic()
                argv = ["zht", "serve", "--listen", "127.0.0.1:0", "--join", f"127.0.0.1:{port}", "--insecure"]
                self.interrupted(box, argv, lambda: time.monotonic() > began + 0.5, number, (0, 128 + number))  # noqa: B023
                harness.wait_for(lambda: not box.processes(), "the end of all processes")

    def test_clients_that_wait(self):
        harness.need("fabriq")
        with Sandbox() as box:
            box.run("zht", "insert", "k", "v")
            box.run("fabriq", "create", "q")
            for argv in (["zht", "callback", "k", "--changed", "--timeout", "100s"], ["fabriq", "pop", "q", "--wait", "100s"]):
                began = time.monotonic()
                self.interrupted(box, argv, lambda: time.monotonic() > began + 0.5)  # noqa: B023: used within the loop
            self.assertEqual(box.out("zht", "lookup", "k"), "v", "the node in the background goes on")
            box.run("zht", "stop")
            harness.wait_for(lambda: not box.processes(), f"the end of all processes: {box.processes()}")

    def test_a_mount_in_the_foreground(self):
        harness.need("fusionfs", fuse=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            with Sandbox() as box:
                point = box.path("mnt")
                os.mkdir(point)
                self.interrupted(box, ["fusionfs", "mount", "-f", point], lambda: box.mounted(point), number,
                                 (0, 130, 143))
                self.assertFalse(box.mounted(point), "the mount is gone")
                box.run("zht", "stop")
                harness.wait_for(lambda: not box.processes(), "the end of all processes")

    def test_tasks_that_are_waited_for(self):
        harness.need("matrix")
        with Sandbox() as box:
            marker = box.path("running")
            self.interrupted(box, ["matrix", "run", "--wait", "--", "sh", "-c", f"touch {marker}; sleep 1000"],
                             lambda: os.path.exists(marker))
            box.run("zht", "stop")
            harness.wait_for(lambda: not box.processes(), f"the end of all processes: {box.processes()}")

    def test_stop_takes_mounts_and_agents_with_it(self):
        harness.need("fusionfs", "matrix", fuse=True)
        with Sandbox() as box:
            box.mount()
            box.run("matrix", "run", "--wait", "--", "true")
            box.run("zht", "stop")
            self.assertEqual(box.all_mounts(), [])
            harness.wait_for(lambda: not box.processes(), f"the end of all processes: {box.processes()}")


if __name__ == "__main__":
    harness.main()

#!/usr/bin/env python3
"""The README's commands, run as they stand there, with the output that stands there.

Blocks that begin with ```console are one session: `$ ` begins a command, what follows is what it prints on stdout
(`...` in it: anything). Each command must end with 0.
"""
import fnmatch
import os
import re
import sys
import unittest

import harness
from harness import TREE, Sandbox


def commands(path):
    """[(line number, command, expected output)]"""
    found, inside = [], False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line.startswith("```"):
                inside = line == "```console"
            elif inside and line.startswith("$ "):
                found.append([number, line[2:], ""])
            elif inside and found:
                found[-1][2] += line + "\n"
    return found


class Readme(unittest.TestCase):
    def test_its_commands_print_what_it_says(self):
        with Sandbox() as box:
            session = commands(os.path.join(TREE, "README.md"))
            self.assertGreater(len(session), 8)
            if not os.path.isdir("/usr/include/linux"):
                self.skipTest("no /usr/include/linux to copy")
            for number, command, expected in session:
                # The README's own mount point would meet another run's.
                command = command.replace("/tmp/zht-mount", box.path("mount"))
                out, _ = box.run("bash", "-c", command)
                pattern = re.sub(r"([\[*?])", r"[\1]", expected).replace("...", "*")
                self.assertTrue(fnmatch.fnmatchcase(out, pattern),
                                f"README.md:{number}: {command}: printed {out!r}, not {expected!r}")
            harness.wait_for(lambda: not box.processes(), "the end of all processes")


if __name__ == "__main__":
    harness.main("fusionfs", "fabriq", "matrix", fuse=True)

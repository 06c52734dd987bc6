#!/usr/bin/env python3
"""The README's commands, run as they stand there, with the output that stands there.

Blocks that begin with ```console are one session: `$ ` begins a command, what follows is what it prints on stdout
(`...` in it: anything). Each command must end with 0. The ```cpp and ```c blocks define greet(), which is compiled against the
installed libraries and called; the ```python block is run.
"""
import fnmatch
import glob
import os
import re
import shutil
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


def example(language):
    with open(os.path.join(TREE, "README.md"), encoding="utf-8") as file:
        found = re.findall(rf"^```{language}\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"README.md has {len(found)} examples in {language}"
    return found[0]


class Readme(unittest.TestCase):
    def test_its_examples_compile_and_do_what_they_say(self):
        installed = os.path.exists(os.path.join(harness.BUILD, "lib", "libzht.so"))
        if not installed or not all(map(shutil.which, ("cmake", "c++", "cc"))):
            self.skipTest("libzht.so is not built, or there is no compiler")
        with Sandbox() as box:
            prefix = box.path("prefix")
            box.run("cmake", "--install", harness.BUILD, "--component", "zht", "--prefix", prefix)
            library = os.path.dirname(glob.glob(f"{prefix}/lib/**/libzht.so", recursive=True)[0])
            flags = ["-I", f"{prefix}/include", "-L", library, f"-Wl,-rpath,{library}", "-Wall", "-Wextra", "-Werror"]
            for language, compiler, standard, main, link, left in (
                    ("cpp", "c++", "c++20", "int main() { return greet() ? 0 : 1; }", "-lzht++", "hi\n"),
                    ("c", "cc", "c11", "int main(void) { return greet() == ZHT_OK ? 0 : 1; }", "-lzht", "hello, C\n")):
                source = box.path("example." + ("cc" if language == "cpp" else "c"))
                with open(source, "w", encoding="utf-8") as file:
                    file.write(example(language) + main + "\n")
                box.run(compiler, f"-std={standard}", source, *flags, link, "-o", box.path("example"))
                box.run(box.path("example"))
                self.assertEqual(box.run("zht", "lookup", "greeting")[0], left)
            out, _ = box.run("env", f"PYTHONPATH={TREE}/zht/python", f"ZHT_BUILD={harness.BUILD}", "PYTHONDONTWRITEBYTECODE=1",
                             sys.executable, "-c", example("python"))
            self.assertEqual(out, "True hi\n['hi', None]\n")

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

#!/usr/bin/env python3
"""The rules of the tree, checked: arrows between folders, the top level, words that must not be committed.

    tests/tidy/tidy_test.py [TREE]     prints each violation with its place; exit 1 when there is one
"""
import os
import re
import subprocess
import sys
import unittest

TREE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
TOP = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "quickstart",
       "zht", "novoht", "fusionfs", "matrix", "fabriq", "tests", "bench"}
SERVICES = ("fusionfs", "matrix", "fabriq")
PARTS = ("novoht", "zht") + SERVICES
CODE = (".h", ".cc", ".c", ".cpp")
# Lines of each part's longest file today: they may become fewer, never more. Past 800 a second idea has moved in.
LONGEST_FILE = {"novoht": 828, "zht": 1240, "fusionfs": 1460, "matrix": 670, "fabriq": 540, "tests": 870, "bench": 620}
LONGEST_ELSEWHERE = 800
# Cores are handed their time, disks and threads; these two hold what several threads meet at.
THREADS = re.compile(r"#include <(?:mutex|thread|shared_mutex|condition_variable|future|semaphore|latch|barrier|atomic)>")
CORES_WITH_THREADS = {"fusionfs/core/metadata.h", "fusionfs/core/task.h"}
LONGEST_LINE = 150    # columns; the formatter aims at 120

# What must not be committed: paths of one machine, unfinished work. Written in pieces so that this file passes.
FORBIDDEN = [
    (re.compile(r"(?<![\w.])/" + r"work/(?!\.\.\.)"), "a path of one machine"),
    (re.compile(r"(?<![\w.])/" + r"(root|home/[a-z]+)/"), "a path of one machine"),
    (re.compile(r"\.\./" + r"shared\b"), "a document outside the tree"),
    (re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"), "unfinished work"),
    (re.compile(r"<{7} |>{7} "), "a conflict marker"),
]


def tracked():
    """Paths below TREE that git tracks (or would: an unpacked archive has no git), relative to it."""
    if os.path.exists(os.path.join(TREE, ".git")):
        listing = subprocess.run(["git", "-c", "safe.directory=*", "-C", TREE, "ls-files", "-z"],
                                 capture_output=True, check=True).stdout
        paths = [p for p in listing.decode().split("\0") if p]
        return [p for p in paths if os.path.exists(os.path.join(TREE, p))]
    found = []
    for folder, folders, files in os.walk(TREE):
        folders[:] = [f for f in folders if f not in ("build", ".git", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, f), TREE) for f in files]
    return found


def read(path):
    with open(os.path.join(TREE, path), encoding="utf-8", errors="replace") as file:
        return file.read()


FILES = tracked()
SOURCES = [p for p in FILES if p.endswith(CODE)]


def may_include(source, target):
    """STYLE: the arrows. `source` and `target` are paths from the root."""
    if not source.startswith(tuple(p + "/" for p in PARTS)):
        return True  # tests and bench may look anywhere
    mine, other = source.split("/")[0], target.split("/")[0]
    if mine == other:
        return True
    base = target.startswith("novoht/base/")
    if mine == "novoht":
        return False
    if mine == "zht":
        if other == "novoht":
            return base or target.count("/") == 1
        # The program registers the services' procedures and what they add to backups; nothing else of zht knows them.
        return source.startswith("zht/tool/") and re.fullmatch(r"\w+/(core/procedures|backup/service)\.h", target) is not None
    return base or (other == "zht" and (target.count("/") == 1 or target.startswith("zht/support/")))


class Tidy(unittest.TestCase):
    longMessage = False

    def none_of(self, violations, rule):
        self.assertFalse(violations, f"{rule}:\n  " + "\n  ".join(violations))

    def test_every_promise_names_tests_that_exist(self):
        rows = re.findall(r"^\| ([^|]+) \| (-|`\w+`) \| ([^|]*) \|$", read("tests/README.md"), re.MULTILINE)
        self.assertGreater(len(rows), 20, "the table of promises cannot be read")
        suites = set()
        for source in SOURCES:
            if source.startswith("tests/"):
                suites.update(re.findall(r"^(?:TEST(?:_F|_P)?|INSTANTIATE_TEST_SUITE_P)\((\w+), *(\w+)", read(source), re.MULTILINE))
        known = {name for names in suites for name in names}
        mutants = set(re.findall(r"^  (\w+),", read("novoht/base/mutant.h"), re.MULTILINE))
        wrong = []
        for promise, broken_by, tests in rows:
            wrong += [f"{promise}: no mutant {broken_by}"] if broken_by != "-" and broken_by.strip("`") not in mutants else []
            named = re.findall(r"`([^`]+)`", tests)
            wrong += [f"{promise}: names no test"] if not named else []
            wrong += [f"{promise}: no test {one}" for one in named
                      if (f"tests/{one}_test.py" not in FILES if "/" in one else one not in known)]
        self.none_of(wrong, "tests/README.md, the table of promises")

    def test_a_source_includes_its_own_header_first(self):
        # So that compiling it shows that the header compiles alone (CMakeLists.txt, add_part, relies on it).
        wrong = []
        for source in SOURCES:
            header = os.path.splitext(source)[0] + ".h"
            if source.endswith(".cc") and header in FILES and source.startswith(tuple(p + "/" for p in PARTS)):
                first = re.search(r'^#include\s+["<]([^">]+)', read(source), re.MULTILINE)
                if first is None or first.group(1) != header:
                    wrong.append(f"{source}: does not include {header} first")
        self.none_of(wrong, "a source includes its own header first")

    def test_the_top_level_is_exactly_what_it_should_be(self):
        top = {p.split("/")[0] for p in FILES}
        surplus = sorted(t for t in top if t not in TOP and not t.startswith("."))
        self.none_of(surplus, "at the top, but not among the names it may have")
        self.none_of(sorted(TOP - top), "missing at the top")

    def test_arrows_between_folders_point_down(self):
        bad = []
        for path in SOURCES:
            if "/outside/" in path:
                continue  # a project of its own that uses the installed library
            for number, line in enumerate(read(path).splitlines(), 1):
                found = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
                if not found:
                    continue
                target = found.group(1)
                if target.split("/")[0] not in PARTS + ("tests", "bench"):
                    bad.append(f"{path}:{number}: {target} is not a path from the root")
                elif path.split("/")[0] in PARTS and target.split("/")[0] in ("tests", "bench"):
                    bad.append(f"{path}:{number}: {target}")
                elif not may_include(path, target):
                    bad.append(f"{path}:{number}: {target}")
        self.none_of(bad, "includes that no arrow allows")

    def test_cores_do_no_input_or_output(self):
        forbidden = re.compile(r'#\s*include\s*<(asio|thread|fstream|mutex|fuse3?|sys/socket\.h|sys/epoll\.h|fuse_lowlevel)')
        bad = []
        for path in SOURCES:
            if re.match(r"(zht|fusionfs|matrix|fabriq)/core/", path):
                bad += [f"{path}:{n}: {line.strip()}" for n, line in enumerate(read(path).splitlines(), 1)
                        if forbidden.search(line)]
        self.none_of(bad, "a core includes sockets, threads or files")

    def test_every_header_is_included_once(self):
        self.none_of([p for p in SOURCES if p.endswith(".h") and "#pragma once" not in read(p)], "no #pragma once")

    def test_every_header_opens_with_its_idea(self):
        self.none_of([p for p in SOURCES if p.endswith(".h") and not read(p).startswith(("//", "/*"))],
                     "a header that does not open with prose")

    def test_nothing_that_must_not_be_written_down(self):
        bad = []
        for path in FILES:
            if path == "LICENSE" or path.startswith("tests/") and "/golden" in path:
                continue
            for number, line in enumerate(read(path).splitlines(), 1):
                bad += [f"{path}:{number}: {why}: {line.strip()[:100]}"
                        for pattern, why in FORBIDDEN if pattern.search(line)]
        self.none_of(bad, "words that do not belong into the tree")

    def test_files_and_lines_have_a_sane_length(self):
        bad = []
        for path in FILES:
            if not path.endswith(CODE + (".py", ".txt", ".proto")):
                continue
            lines = read(path).splitlines()
            longest = LONGEST_FILE.get(path.split("/")[0], LONGEST_ELSEWHERE)
            if len(lines) > longest:
                bad.append(f"{path}: {len(lines)} lines, {longest} at most")
            if path.endswith(CODE):
                bad += [f"{path}:{n}: {len(line)} columns" for n, line in enumerate(lines, 1) if len(line) > LONGEST_LINE]
        self.none_of(bad, "too long")

    def test_cores_know_no_threads(self):
        self.none_of([p for p in SOURCES if re.match(r"(?:zht|fusionfs|matrix|fabriq)/core/", p) and p not in CORES_WITH_THREADS
                      and THREADS.search(read(p))], "threads in a core")

    def test_every_folder_says_what_it_is(self):
        folders = sorted({p.split("/")[0] for p in FILES if "/" in p and not p.startswith(".")})
        self.none_of([f for f in folders if f + "/README.md" not in FILES], "no README.md")

    def test_formats_and_protocols_are_documented_beside_the_code(self):
        documents = ("novoht/FORMAT.md", "zht/wire/PROTOCOL.md")
        self.none_of([p for p in documents if p not in FILES], "missing")
        self.none_of([p for p in documents if not re.search(r"(?im)^#+ .*example", read(p))], "has no worked example")

    def test_links_in_documents_lead_somewhere(self):
        bad = []
        for path in FILES:
            if not path.endswith(".md"):
                continue
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(path)):
                if not re.match(r"[a-z]+:", target) and not os.path.exists(
                        os.path.join(TREE, os.path.dirname(path), target)):
                    bad.append(f"{path}: {target}")
        self.none_of(bad, "links to nothing")


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        TREE = os.path.realpath(sys.argv.pop(1))
        FILES = tracked()
        SOURCES = [p for p in FILES if p.endswith(CODE)]
    unittest.main(verbosity=1)

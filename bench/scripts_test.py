#!/usr/bin/env python3
"""The scripts of bench/: tables say how their figures were had and where we are behind, README's table is of one commit and one machine,
and what is fetched works where a part of it is installed already."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import peers  # noqa: E402
import readme_table  # noqa: E402
import report  # noqa: E402
import resp_bench  # noqa: E402

PEERS_OF = {"store": ("redis", "limit"), "novoht": ("lmdb", "limit"), "resp": ("redis",), "cluster": ("redis",), "fs": ("fuse_limit", "fusionfs_embed"),
            "tasks": ("xargs", "spawn_limit"), "queue": ("redis", "limit")}
REDIS_BENCHMARK = """SET: rps=0.0 (overall: 2000.0)
====== SET ======
  3000 requests completed in 0.06 seconds

Latency by percentile distribution:
0.000% <= 0.023 milliseconds (cumulative count 3)
99.805% <= 1.383 milliseconds (cumulative count 2995)
99.902% <= 2.295 milliseconds (cumulative count 2998)
100.000% <= 2.327 milliseconds (cumulative count 3000)

Cumulative distribution of latencies:
98.100% <= 0.103 milliseconds (cumulative count 2943)
100.000% <= 3.103 milliseconds (cumulative count 3000)

Summary:
  throughput summary: 52631.58 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        0.064     0.016     0.063     0.087     0.151     2.327
"""


def line(bench, row, metric, system, value, **more):
    return {"bench": bench, "row": row, "metric": metric, "system": system, "value": value, "rounds": 3, "min": value, "max": value,
            "size": "full", "machine": "2 cores of a test", "build": "release", "commit": "0123456789", **more}


def whole_run(**more):
    """A line for each row of README's table and each system: ours has 2, peers have 1."""
    lines = []
    for _, bench, system, rows in readme_table.PARTS:
        for row, metric in rows:
            lines.append(line(bench, row, metric, system, 2.0, **more))
            lines += [line(bench, row, metric, peer, 1.0, **more) for peer in PEERS_OF[bench]]
    once = {(one["bench"], one["row"], one["metric"], one["system"]): one for one in lines}
    return list(once.values())


class Tables(unittest.TestCase):
    def test_a_row_says_how_it_was_measured_and_notes_tell_rounds_and_durability(self):
        ours = line("store", "insert 32 callers tcp", "ops_per_s", "zht", 2e6, client="C++ client", transport="tcp", connections=1, in_flight=32,
                    durability="interval")
        peer = line("store", "insert 32 callers tcp", "ops_per_s", "memcached", 1e6, client="raw loop", transport="tcp", connections=1, in_flight=32,
                    durability="none", rounds=2)
        text = report.table([peer, ours], "zht", "store")
        self.assertIn("C++ client, others: raw loop, tcp, 1 connection x 32", text)
        self.assertIn("2.00x", text)
        self.assertIn("memcached: 2", text)
        self.assertIn("durability: memcached: none; zht: interval", text)
        self.assertIn("busy_poll", text)
        self.assertIn("commit 0123456789", text)

    def test_the_instruments_floor_is_told_as_such(self):
        rounds = [{"value": 5, "at_most": True}, {"value": 5, "at_most": True}, {"value": 90}]
        floor = report.summary("cluster", "full", "failover kill -9", "gap_ms", "zht", rounds)
        self.assertEqual(report.shown(floor), "<=5")
        above = report.summary("cluster", "full", "failover kill -9", "gap_ms", "zht", rounds[1:] + [{"value": 80}])
        self.assertEqual(report.shown(above), "80")

    def test_less_is_better_for_what_is_waited_for(self):
        for metric in ("p999_us", "max_us", "gap_ms", "us_per_op", "ram_mb", "percent_of_core", "seconds", "p9999_us"):
            self.assertTrue(report.less_is_better(metric), metric)
        for metric in ("ops_per_s", "mb_per_s", "efficiency", "msgs_per_s"):
            self.assertFalse(report.less_is_better(metric), metric)

    def test_report_prints_tables_and_writes_plots_of_saved_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "store.json")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(one) + "\n" for one in whole_run() if one["bench"] == "store")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                self.assertEqual(report.main([path]), 0)
            self.assertIn("| lookup 32x64", out.getvalue())
            self.assertTrue(os.path.exists(os.path.join(folder, "store-store-ops_per_s.svg")))
            with contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(report.main([os.path.join(folder, "none.json")]), 2)
            self.assertIn("not a file of results", err.getvalue())


class Readme(unittest.TestCase):
    def test_every_row_names_peers_and_says_where_they_are_ahead(self):
        text = readme_table.render(whole_run())
        self.assertIn("Commit 0123456789, 2 cores of a test", text)
        self.assertIn("Rounds of each: zht, redis, limit, zht_in_process: 3.", text)
        rows = [one for one in text.splitlines() if one.startswith("| ") and " | " in one]
        insert = next(one for one in rows if one.startswith("| insert 32x64"))
        self.assertIn("| 2 | Redis 1, 2.00; limit 1, 2.00 |  |", insert)  # more is better: ahead
        pause = next(one for one in rows if one.startswith("| pause") and "longest" in one)
        self.assertIn("(less is better)", pause)
        self.assertIn("**behind Redis**", pause)
        self.assertNotIn("behind Redis, limit", text)  # a limit is no peer
        idle = [one for one in rows if one.startswith("| idle")]
        self.assertFalse(any("behind" in one and "embed" in one for one in idle), idle)  # nor are we behind ourselves

    def test_what_is_not_one_run_is_refused(self):
        lines = whole_run()
        cases = {"several commits": [{**lines[0], "commit": "fedcba"}] + lines[1:],
                 "several machines": [{**lines[0], "machine": "another"}] + lines[1:],
                 "several sizes": [{**lines[0], "size": "quick"}] + lines[1:],
                 "worthless": whole_run(size="tiny"),
                 "commit first": whole_run(commit="0123456789, changed"),
                 "two files have": lines + lines[:1],
                 "no figures of 1 rows": [one for one in lines if not (one["system"] == "zht" and one["row"] == "lookup 1x1")]}
        for reason, unfit in cases.items():
            with self.subTest(reason), self.assertRaisesRegex(readme_table.Unfit, reason):
                readme_table.render(unfit)

    def test_only_what_stands_between_the_markers_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            results, readme = os.path.join(folder, "all.json"), os.path.join(folder, "README.md")
            with open(results, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(one) + "\n" for one in whole_run())
            with open(readme, "w", encoding="utf-8") as file:
                file.write(f"before\n{readme_table.BEGIN}\nfigures of last year\n{readme_table.END}\nafter\n")
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(readme_table.main([results], readme), 0)
            with open(readme, encoding="utf-8") as file:
                text = file.read()
            self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
            self.assertNotIn("last year", text)
            self.assertIn("| **FusionFS** |", text)
            with open(readme, "w", encoding="utf-8") as file:
                file.write("no markers\n")
            with contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(readme_table.main([results], readme), 2)
            self.assertIn("are missing", err.getvalue())

    def test_the_trees_own_readme_has_the_markers(self):
        with open(os.path.join(report.TREE, "README.md"), encoding="utf-8") as file:
            self.assertIn("| what |", readme_table.put("| what |", file.read()))


class Peers(unittest.TestCase):
    def test_links_into_packages_that_are_installed_already_lead_there(self):
        with tempfile.TemporaryDirectory() as folder:
            system, root = os.path.join(folder, "system"), os.path.join(folder, "peers")
            for place in (system, root):
                os.makedirs(os.path.join(place, "usr/bin"))
                os.makedirs(os.path.join(place, "usr/lib"))
            for path, text in ((f"{system}/usr/bin/redis-check-rdb", "a program"), (f"{system}/usr/lib/liba.so.1.0.0", "a library"),
                               (f"{root}/usr/lib/libb.so.2", "another")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            os.symlink("liba.so.1.0.0", f"{system}/usr/lib/liba.so.1")
            os.symlink("redis-check-rdb", f"{root}/usr/bin/redis-server")  # the package of its target is not fetched: it is installed
            os.symlink("liba.so.1", f"{root}/usr/lib/liba.so")             # a library's -dev package likewise, over two links
            os.symlink("/usr/lib/libb.so.2", f"{root}/usr/lib/libb.so")    # a link as it is when the package lies at the root
            os.symlink("nowhere", f"{root}/usr/lib/libc.so")
            peers.mend_links(root, system)
            for path, text in (("usr/bin/redis-server", "a program"), ("usr/lib/liba.so", "a library"), ("usr/lib/liba.so.1.0.0", "a library"),
                               ("usr/lib/libb.so", "another")):
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    self.assertEqual(file.read(), text, path)
            self.assertFalse(os.path.exists(f"{root}/usr/lib/libc.so"))

    def test_what_an_idle_system_takes_is_that_of_its_processes(self):
        self.assertIsNone(peers.idle_percent(0.01, 0))
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        quiet = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            began = time.monotonic()
            while peers.processor_seconds([busy.pid]) < 0.05 and time.monotonic() - began < 60:
                time.sleep(0.02)  # it has begun
            with peers.running(lambda: [busy.pid]):
                self.assertGreater(peers.idle_percent(0.5, 0), 1)
            with peers.running(lambda: [quiet.pid]):
                self.assertLess(peers.idle_percent(0.2, 0.2), 50)
        finally:
            for one in (busy, quiet):
                one.kill()
                one.wait()

    def test_redis_benchmarks_words_are_understood(self):
        seen = resp_bench.figures(REDIS_BENCHMARK)
        self.assertEqual({name: round(value, 2) for name, value in seen.items()},
                         {"ops_per_s": 52631.58, "p50_us": 63, "p99_us": 151, "p999_us": 2295, "max_us": 2327})
        with self.assertRaises(RuntimeError):
            resp_bench.figures("ERR")


if __name__ == "__main__":
    unittest.main()

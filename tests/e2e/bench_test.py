#!/usr/bin/env python3
"""zht bench: what it prints is what was asked for; and those who wait for a key are woken, also over a kill -9 of the node."""
import unittest

import harness
from harness import Sandbox, rounds


class Bench(unittest.TestCase):
    def test_every_operation_and_mix(self):
        with Sandbox() as box:
            for more in (["--operation", "insert"], ["--operation", "lookup"], ["--operation", "remove"], ["--operation", "append"],
                         ["--operation", "cswap"], ["--operation", "six", "--in-flight", "8"], ["--mix", "insert=1,lookup=9", "--zipf", "0.99"],
                         ["--operation", "get", "--connections", "3", "--key-size", "100", "--value-size", "10000"]):
                result = box.json("zht", "bench", "--json", "--count", 1200, "--keys", 300, *more)
                self.assertEqual(result["operations"], 1200, more)
                self.assertGreater(result["ops_per_s"], 0)
                self.assertTrue(0 < result["p50_us"] <= result["p99_us"] <= result["p999_us"] <= result["max_us"], result)
            six = box.json("zht", "bench", "--operation", "six", "--count", 2000, "--keys", 100, "--json")
            self.assertEqual(len(six["by_operation"]), 6)
            self.assertEqual(sum(one["operations"] for one in six["by_operation"].values()), 2000)
            paper = box.json("zht", "bench", "--operation", "paper", "--keys", 500, "--connections", 2, "--in-flight", 4, "--histogram", "--json")
            self.assertEqual([(p["operation"], p["operations"]) for p in paper["phases"]],
                             [("insert", 500), ("lookup", 500), ("append", 500), ("remove", 500)])
            self.assertEqual(sum(count for _, count in paper["phases"][0]["histogram_us"]), 500)
            out, err = box.run("zht", "bench", "--operation", "mix", "--duration", "100ms", "--histogram")
            self.assertIn("every answer was as expected", out)
            self.assertIn("#", out)
            self.assertEqual(err, "", "no progress bar without a terminal")
            box.run("zht", "bench", "--mix", "insert=x", expect=2)
            box.run("zht", "bench", "--zipf", "1", expect=2)

    def test_a_wrong_answer_is_told(self):
        with Sandbox() as box:
            box.run("zht", "insert", "other", "1")
            process = box.start("zht", "bench", "--operation", "get", "--keys", 10, "--duration", "60s")
            key = "bench:3".ljust(15, ".")
            harness.wait_for(lambda: box.run("zht", "lookup", key, expect=None) and box.status == 0, "a filled key")
            box.run("zht", "insert", key, "something else")
            _, err = process.communicate(timeout=harness.DEADLINE)
            self.assertEqual(process.returncode, 7)
            self.assertIn(b"wrong answer: lookup of bench:3", err)

    def wake(self, box, *more):
        result = box.json("zht", "bench", "--operation", "callback", "--json", *more)
        print(f"{' '.join(map(str, more))}: {result['woken']} woken, {result['lost']} lost, p50 {result['p50_us'] / 1000:.2f} ms, "
              f"p99 {result['p99_us'] / 1000:.2f} ms, max {result['max_us'] / 1000:.2f} ms", flush=True)
        self.assertEqual(result["lost"], 0)
        return result

    def test_ten_thousand_waiters_and_a_thousand_on_one_key(self):
        with Sandbox() as box:
            box.run("zht", "insert", "other", "1")
            self.assertEqual(self.wake(box, "--waiters", 10_000)["woken"], 10_000)
            self.assertEqual(self.wake(box, "--waiters", 1000, "--one-key", "--rounds", 5)["woken"], 5000)

    def test_no_waiter_is_lost_over_a_restart(self):
        with Sandbox() as box:
            box.run("zht", "insert", "other", "1")
            for _ in range(rounds(1, 20)):
                first = box.node_pid()
                self.assertEqual(self.wake(box, "--waiters", 10_000, "--kill-node")["woken"], 10_000)
                self.assertNotEqual(box.node_pid(), first)
                self.assertEqual(self.wake(box, "--waiters", 1000, "--one-key", "--kill-node")["woken"], 1000)


if __name__ == "__main__":
    harness.main()

#!/usr/bin/env python3
"""A cluster that is made from a list: the first start, and founders whose data folders are lost."""
import shutil

import harness
from cluster_test import SLOW, Cluster, ClusterCase
from harness import wait_for


class Founding(ClusterCase):
    def wait_for_numbers(self, numbers):
        def there():
            cluster = self.cluster.status()
            return cluster.get("safe") and cluster["moving"] == 0 and all(
                sorted(one["node"] for one in cluster["nodes"] if one[what]) == numbers for what in ("lives", "keeper"))
        wait_for(there, f"everything safe on nodes {numbers}", SLOW)

    def status_of(self, node):
        out, err = self.box.run("zht", "status", "--data", node.data, expect=None)
        return self.box.status, out + err

    def test_a_founder_waits_for_the_others_and_is_never_taken_for_who_it_is_not(self):
        box = self.box
        # The first of three waits, says for whom, and can be ended.
        self.cluster = Cluster(box, 3, start=False)
        first, second, third = self.cluster.nodes
        first.start()
        wait_for(lambda: "waits until the others have said" in self.status_of(first)[1], "the news that it waits", SLOW)
        status, said = self.status_of(first)
        self.assertEqual(status, 5)
        self.assertIn(second.address, said)
        self.assertIn(third.address, said)
        first.stop()
        first.start()  # and is the same one again
        second.start()
        third.start()
        self.cluster.use()
        self.cluster.wait_until_safe()
        self.fill("old")

        # While the others live its place is not given to an empty folder.
        second.kill()
        shutil.rmtree(second.data)
        second.start()
        self.wait_for_numbers([1, 3, 4])
        self.read("old")
        self.fill("new")

        # Nor when it is the first to start, after all have ended.
        for node in self.cluster.nodes:
            node.kill()
        shutil.rmtree(first.data)
        first.start()
        wait_for(lambda: "waits until the others have said" in self.status_of(first)[1], "the news that it waits", SLOW)
        second.start()
        third.start()
        self.wait_for_numbers([3, 4, 5])
        self.read("new")
        with open(box.path("node-1.log"), encoding="utf-8") as log:
            self.assertIn("has served before, from another data folder", log.read())
        second.stop()
        second.start()
        self.wait_for_numbers([3, 4, 5])
        self.read("new")


if __name__ == "__main__":
    harness.main()

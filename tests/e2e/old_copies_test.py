#!/usr/bin/env python3
"""Older copies of data folders, put back: what a node acknowledged since is there all the same, or its absence is said."""
import os
import shutil
import subprocess
import unittest

from cluster_test import KEYS, SLOW, Cluster, ClusterCase
from harness import Pipe, wait_for


def sightings(folder):
    """{"life": {incarnation: mark}, "seen": {node: (incarnation, mark)}} as the folder has it."""
    found = {"life": {}, "seen": {}}
    try:
        with open(os.path.join(folder, "sightings"), encoding="ascii") as file:
            for word, *numbers in (line.split() for line in file.readlines()[1:-1]):
                values = [int(one) for one in numbers]
                if word == "life":
                    found["life"][values[0]] = values[1]
                elif word == "seen":
                    found["seen"][values[0]] = tuple(values[1:])
    except OSError:
        pass
    return found


class OldCopies(ClusterCase):
    def begin(self):
        self.cluster = Cluster(self.box, 3)
        self.copies = {}
        self.fill("first")

    def copy(self, number):
        """`cp -a` of the node's folder while it runs."""
        self.copies[number] = self.box.path(f"copy-{number}")
        shutil.rmtree(self.copies[number], ignore_errors=True)
        subprocess.run(["cp", "-a", self.cluster.nodes[number - 1].data, self.copies[number]], stderr=subprocess.DEVNULL, check=False)

    def is_noted(self, number):
        """Whether all others have noted that the node is further than its copy."""
        past = sightings(self.copies[number])["life"]
        for other, node in enumerate(self.cluster.nodes, 1):
            incarnation, mark = sightings(node.data)["seen"].get(number, (0, 0))
            if other != number and (incarnation == 0 or past.get(incarnation, -1) >= mark):
                return False
        return True

    def go_on(self, value):
        """More is acknowledged, and the others note how far the copied nodes are."""
        self.fill(value)
        pipe = Pipe(self.box)
        turn = [0]

        def noted():
            turn[0] += 1
            for n in range(KEYS):
                pipe.ask(op="insert", key=f"more{n}", value=str(turn[0]), timeout_ms=SLOW * 1000)
            return all(self.is_noted(number) for number in self.copies)

        wait_for(noted, "sightings of the copied nodes", SLOW)
        pipe.close()

    def put_back(self, number):
        data = self.cluster.nodes[number - 1].data
        shutil.rmtree(data)
        subprocess.run(["cp", "-a", self.copies[number], data], check=True)
        for name in os.listdir(data):
            if name.endswith(".sock"):
                os.unlink(os.path.join(data, name))

    def kill(self, *numbers):
        for number in numbers:
            self.cluster.nodes[number - 1].process.kill()
        for number in numbers:
            self.cluster.nodes[number - 1].process.wait(SLOW)

    def start(self, *numbers):
        for number in numbers:
            self.cluster.nodes[number - 1].start()

    def test_put_back_within_a_moment_of_a_kill(self):
        self.begin()
        for number in (1, 2, 3):
            self.copies = {}
            self.copy(number)
            self.go_on(f"moment{number}-")
            self.kill(number)
            self.put_back(number)
            self.start(number)
            self.read(f"moment{number}-")
            self.cluster.wait_until_safe()
            out, _ = self.box.run("zht", "status", "--cluster", self.cluster.nodes[number - 1].address)
            self.assertIn(f"node {number}: its data folder is an older copy of itself", out)
            self.read(f"moment{number}-")

    def test_put_back_while_all_are_off(self):
        self.begin()
        for number in (1, 3):
            self.copies = {}
            self.copy(number)
            self.go_on(f"off{number}-")
            self.kill(1, 2, 3)
            self.put_back(number)
            self.start(1, 2, 3)
            self.cluster.wait_until_safe()
            self.read(f"off{number}-")

    def test_all_are_put_back_each_to_a_time_of_its_own(self):
        self.begin()
        for number in (1, 2, 3):
            self.copy(number)
            self.go_on(f"all{number}-")
        self.kill(1, 2, 3)
        for number in (1, 2, 3):
            self.put_back(number)
        self.start(1, 2, 3)

        def found_out():
            told = [self.box.run("zht", "status", "--cluster", node.address, expect=None)[0] for node in self.cluster.nodes]
            for out in told:
                self.assertNotIn("data is safe", out)
            return sum(f"node {n}: its data folder is an older copy of itself" in told[0] for n in (1, 2, 3)) >= 2

        wait_for(found_out, "two nodes that say that they are older copies", SLOW)
        pipe = Pipe(self.box)
        for n in range(KEYS):  # nothing older is shown
            reply = pipe.ask(op="lookup", key=f"k{n}", timeout_ms=200)
            self.assertRegex(reply.get("error", ""), "^(unavailable|timeout)", reply)
        pipe.close()
        out, _ = self.box.run("zht", "recover", expect=5)
        self.assertIn("keep", out)

        # Who accepts the loss goes on with what is left.
        def recovered():
            self.box.run("zht", "recover", "--accept-data-loss", "--yes", expect=None)
            told = self.cluster.status()
            return told.get("safe")

        wait_for(recovered, "a cluster that goes on with what is left", SLOW)
        self.fill("after")
        self.read("after")


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""`zht recover`: what it says while nodes are gone, what it refuses, and the last resort when the data of two nodes are destroyed."""
import os
import shutil

import frames
import harness
from cluster_test import SLOW, Cluster, ClusterCase, Node
from harness import wait_for


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def number(tag, value):
    return varint(tag << 3) + varint(value)


def field(tag, value):
    return varint(tag << 3 | 2) + varint(len(value)) + value


def member(instance, incarnation):
    return number(1, instance) + number(2, incarnation)


def damage(node):
    """A bit of what the node has promised as a keeper is another."""
    log = sorted(name for name in os.listdir(os.path.join(node.data, "keeper")) if name.startswith("log-"))[0]
    with open(os.path.join(node.data, "keeper", log), "r+b") as file:
        file.seek(600)
        byte = file.read(1)
        file.seek(600)
        file.write(bytes([byte[0] ^ 4]))


class Recover(ClusterCase):
    def bring_back_what_was_kept(self):
        """A node that was given up, with the copy of its data, beside the three that are left."""
        node = Node(self.box, 9)
        node.data, node.options = self.box.path("kept"), ()
        self.addCleanup(lambda: node.process.poll() is None and node.kill())
        node.start()
        self.cluster.wait_until_safe(4)

    def caught_up(self):
        """Whether no copy lacks anything of what its leader has."""
        for node in self.cluster.nodes:
            told = self.box.json("zht", "status", "--json", "--cluster", node.address)
            if any(one["behind"] or one["learners_behind"] or one["waiting"] or one["sending"] for one in told["instances"]):
                return False
        return True

    def lost(self):
        """Partitions that only `zht recover --accept-data-loss` brings back, if these two are given up; None while others still change."""
        out, _ = self.box.run("zht", "recover", "--json", "--cluster", self.cluster.nodes[0].address, expect=None)
        told = harness.json.loads(out)
        outlooks = {one["outlook"] for one in told["partitions"]}
        return [one["partition"] for one in told["partitions"] if one["outlook"] == "waits"] if outlooks == {"waits"} else None

    def test_two_nodes_are_destroyed_and_what_is_left_is_gone_on_with(self):
        box, self.cluster = self.box, Cluster(self.box, 5)
        cluster, rest = self.cluster, self.cluster.nodes[:3]
        out, _ = box.run("zht", "recover")
        self.assertIn("every partition is served", out)
        self.fill("old")
        wait_for(self.caught_up, "copies with all there is", SLOW)
        for node in cluster.nodes[3:]:
            node.process.kill()
        for node in cluster.nodes[3:]:
            node.process.wait(SLOW)
        shutil.copytree(cluster.nodes[3].data, box.path("kept"), ignore=shutil.ignore_patterns("*.sock"))
        for node in cluster.nodes[3:]:
            shutil.rmtree(node.data)
        box.environment["ZHT_CLUSTER"] = ",".join(node.address for node in rest)
        lost = wait_for(self.lost, "partitions of which no synchronous copy is left", SLOW)

        # It says what is wrong and what would help; status does, too.
        out, _ = box.run("zht", "recover", expect=5)
        self.assertRegex(out, r"no synchronous copy answers: start node [45] \(127\.0\.0\.1:\d+\)")
        self.assertRegex(out, r"zht recover --accept-data-loss --gone (4|5|4,5)\n")
        out, _ = box.run("zht", "status")
        self.assertIn("DATA IS NOT SAFE", out)
        self.assertIn(f"{len(lost)} partition", out)
        self.assertIn("zht recover", out)

        # It is not done by mistake.
        gone = "4,5"
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", expect=4)
        self.assertRegex(err, r"may come back with node [45]")
        self.assertIn("--gone", err)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", "1," + gone, expect=4)
        self.assertIn(f"node 1 ({rest[0].address}) was declared gone, and answers", err)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--gone", "9", expect=2)
        self.assertIn("no such node", err)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--gone", gone, expect=2)
        self.assertIn("--yes", err)
        box.run("zht", "recover", "--gone", gone, expect=2)
        box.run("zht", "recover", "--accept-data-loss", "64", expect=2)
        served = next(p for p in range(64) if p not in lost)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", gone, str(served), expect=4)
        self.assertIn("nothing is lost", err)
        self.assertEqual(self.lost(), lost, "nothing has changed")

        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", gone)
        self.assertIn(f"{len(lost)} partition", err)
        self.assertIn("led again", err)
        self.read("old")  # the learners had it all
        cluster.nodes = rest
        cluster.wait_until_safe(3)
        self.fill("new")
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", gone, expect=2)
        self.assertIn("nothing to recover", err)

        # One that was given up comes back with all it had: it is given what there is now, and serves nothing older.
        self.bring_back_what_was_kept()
        self.read("new")

    def test_a_cluster_whose_views_were_forged_comes_back(self):
        """From --insecure nodes' ports anybody can say what a node says: here, that a node which was never there leads everything."""
        box, self.cluster = self.box, Cluster(self.box, 3, start=False)
        cluster = self.cluster
        for node in cluster.nodes:
            node.options += ("--insecure",)
            node.start()
        cluster.use()
        cluster.wait_until_safe()
        self.fill("old")
        wait_for(self.caught_up, "copies with all there is", SLOW)
        ghost = member(7 * 1024, 1)
        view = number(1, 1 << 40) + field(2, ghost) + field(3, ghost) + number(5, 1)
        news = b"".join(field(4, number(1, partition) + field(2, view)) for partition in range(64))
        which = int.from_bytes(bytes.fromhex(cluster.status()["cluster"]), "little")
        for to, node in enumerate(cluster.nodes, 1):
            value = number(1, to % 3 + 1) + number(2, to) + news
            peer = frames.Peer(node.address)
            peer.socket.sendall(frames.HEADER.pack(0x3154485A, 1, 7, 0, 0, 0, len(value), 1, which, 0, 0, 0, 0, 0, len(value), 0) + value)
            peer.close()
        wait_for(lambda: cluster.status().get("unavailable") == 64, "the forged views to be believed", SLOW)
        out, _ = box.run("zht", "recover", expect=5)
        self.assertIn("zht recover --accept-data-loss --gone 8", out)
        box.run("zht", "recover", "--accept-data-loss", "--gone", "9", "--yes", expect=2)
        box.run("zht", "recover", "--accept-data-loss", "--gone", "8", "--yes", "--timeout", "90s")
        cluster.wait_until_safe()
        self.read("old")

    def test_two_of_three_keepers_are_destroyed_and_another_keeps(self):
        box, self.cluster = self.box, Cluster(self.box, 5)
        cluster, lost, rest = self.cluster, self.cluster.nodes[:2], self.cluster.nodes[2:]
        self.fill("old")
        wait_for(self.caught_up, "copies with all there is", SLOW)
        for node in lost:
            node.process.kill()
        for node in lost:
            node.process.wait(SLOW)
        shutil.copytree(lost[0].data, box.path("kept"), ignore=shutil.ignore_patterns("*.sock"))
        for node in lost:
            shutil.rmtree(node.data)
        box.environment["ZHT_CLUSTER"] = ",".join(node.address for node in rest)

        def noticed():
            out, _ = box.run("zht", "recover", expect=None)
            return out if "1 of 3 keepers can vote" in out else None
        out = wait_for(noticed, "news that the keepers are gone", SLOW)
        self.assertIn(f"Start node 1 ({lost[0].address}), node 2 ({lost[1].address})", out)
        self.assertRegex(out, r"zht recover --accept-data-loss --gone 1,2\n")
        wait_for(lambda: sum(one["lives"] for one in cluster.status().get("nodes", [])) == 3, "news that two nodes are gone", SLOW)

        # It is not done by mistake.
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", expect=5)
        self.assertIn("--gone", err)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", "1", expect=5)
        self.assertIn(f"start node 2 ({lost[1].address})", err)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", "1,2,3", expect=4)
        self.assertIn(f"node 3 ({rest[0].address}) was declared gone, and answers", err)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--gone", "1,2", expect=2)
        self.assertIn("--yes", err)

        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", "1,2")
        self.assertIn(f"node 3 ({rest[0].address}) keeps", err)
        self.read("old")  # the learners had it all
        cluster.nodes = rest
        cluster.wait_until_safe(3)
        self.fill("new")

        def keepers():
            return [one["node"] for one in cluster.status().get("nodes", []) if one["keeper"]]
        wait_for(lambda: keepers() == [3, 4, 5], "three keepers", SLOW)
        _, err = box.run("zht", "recover", "--accept-data-loss", "--yes", "--gone", "1,2", expect=2)
        self.assertIn("nothing to recover", err)

        # One of the lost keepers comes back with all it had: it keeps no more, and serves nothing older.
        self.bring_back_what_was_kept()
        self.assertEqual(keepers(), [3, 4, 5])
        self.read("new")

    def test_a_keeper_whose_store_is_damaged_is_given_what_it_kept_by_the_others(self):
        box, self.cluster = self.box, Cluster(self.box, 3)
        cluster = self.cluster
        self.fill("old")
        node = cluster.nodes[0]
        cluster.nodes[2].kill()  # so that there is something to vote about
        cluster.nodes[2].start()
        self.fill("old")
        cluster.wait_until_safe()
        node.kill()
        self.fill("new")
        damage(node)
        node.start()

        def whole():
            told = cluster.status()
            return told.get("safe") and told["living_keepers"] == 3 and sum(one["lives"] for one in told["nodes"]) == 3
        wait_for(whole, "three keepers that can vote", SLOW)
        with open(box.path("node-1.log"), encoding="utf-8") as text:
            said = text.read()
        self.assertIn("what this node kept is damaged", said)
        self.assertIn(os.path.join(node.data, "keeper-damaged-1"), said)
        self.assertTrue(os.path.isdir(os.path.join(node.data, "keeper-damaged-1")))
        cluster.nodes[1].kill()  # it takes the vote of the first one now
        cluster.use()
        self.read("new")
        self.fill("newer")

    def test_a_lone_node_whose_keepers_store_is_damaged_goes_on(self):
        box = self.box
        node = Node(box, 1, "--partitions", "64")
        self.addCleanup(lambda: node.process.poll() is None and node.kill())
        box.environment["ZHT_CLUSTER"] = node.address
        for value in ("old", "new"):
            node.start()
            wait_for(lambda: box.run("zht", "status", expect=None) and box.status == 0, "its service", SLOW)
            self.fill(value)
            node.kill()
        damage(node)
        node.start()
        wait_for(lambda: box.run("zht", "status", expect=None) and box.status == 0, "its service", SLOW)
        self.read("new")
        self.fill("newer")
        node.kill()
        node.start()
        wait_for(lambda: box.run("zht", "status", expect=None) and box.status == 0, "its service", SLOW)
        self.read("newer")
        self.assertTrue(os.path.isdir(os.path.join(node.data, "keeper-damaged-1")))


if __name__ == "__main__":
    harness.main()

"""A small network of this machine's own: each place a network namespace with one address, a bridge between them, and cuts.

    with Network() as network:
        a, b = network.place("a"), network.place("b")     # 10.77.0.1, 10.77.0.2
        network.popen(a, ["zht", "serve", ...], env=...)
        network.cut(a, b)                                 # one way: what a sends to b is lost, without a word
        network.heal()

A cut is a neighbour entry of the sender's that names a card nobody has: the bridge carries the packet and nobody takes it, as if
the wire were broken in that direction. That needs neither iptables nor tc, which a kernel may lack. Only what is made here is
removed, also when the test fails or is ended: all of it lives in namespaces of a name of its own.
"""
import os
import shutil
import subprocess
import unittest

NOBODY = "02:00:00:00:ff:ff"


class Place:
    def __init__(self, name, namespace, address):
        self.name, self.namespace, self.address = name, namespace, address


class Network:
    def __init__(self):
        self.token = f"zht{os.getpid() % 100000}"
        self.places, self.made, self.cuts = [], [], set()

    @staticmethod
    def lacking():
        """Why there can be none here; empty when there can."""
        if os.geteuid() != 0:
            return "not root: network namespaces cannot be made"
        if shutil.which("ip") is None:
            return "no program ip (package iproute2)"
        probe = f"zht{os.getpid() % 100000}probe"
        try:
            done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return "no network namespaces here: " + done.stderr.strip()
            for command in (["ip", "-n", probe, "link", "add", "br0", "type", "bridge"],
                            ["ip", "-n", probe, "link", "add", "v0", "type", "veth", "peer", "name", "v1"]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    return f"no bridge or veth here: {done.stderr.strip()}"
        finally:
            subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
        return ""

    def __enter__(self):
        reason = self.lacking()
        if reason:
            raise unittest.SkipTest(reason)
        self.hub = self.namespace("hub")
        self.ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        self.ip("-n", self.hub, "link", "set", "br0", "up")
        return self

    def __exit__(self, *_):
        for namespace in reversed(self.made):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    @staticmethod
    def ip(*arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def namespace(self, name):
        namespace = f"{self.token}-{name}"
        self.made.append(namespace)  # first: half-made ones are removed too
        self.ip("netns", "add", namespace)
        self.ip("-n", namespace, "link", "set", "lo", "up")
        return namespace

    def place(self, name):
        number = len(self.places) + 1
        namespace, port = self.namespace(name), f"p{number}"
        self.ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self.ip("-n", self.hub, "link", "set", port, "master", "br0", "up")
        self.ip("-n", namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        self.ip("-n", namespace, "link", "set", "eth0", "up")
        self.places.append(Place(name, namespace, f"10.77.0.{number}"))
        return self.places[-1]

    def argv(self, place, argv):
        return ["ip", "netns", "exec", place.namespace, *argv]

    def cut(self, sender, receiver):
        """One way. What is sent is lost; the sender is not told."""
        self.ip("-n", sender.namespace, "neigh", "replace", receiver.address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
        self.cuts.add((sender, receiver))

    def part(self, some, others):
        """Both ways, between all of `some` and all of `others`."""
        for one in some:
            for other in others:
                if one is not other:
                    self.cut(one, other)
                    self.cut(other, one)

    def heal(self):
        for sender, receiver in self.cuts:
            self.ip("-n", sender.namespace, "neigh", "del", receiver.address, "dev", "eth0")
        self.cuts.clear()

"""A small network of this machine's own: each place a network namespace with one address, a bridge between them, and cuts.

    with Network() as network:
        a, b = network.place("a"), network.place("b")     # 10.77.0.1, 10.77.0.2
        network.popen(a, ["zht", "serve", ...], env=...)
        network.cut(a, b)                                 # one way: what a sends to b is lost, without a word
        network.heal()

A cut is a neighbour entry of the sender's that names a card nobody has: the bridge carries the packet and nobody takes it, as if
the wire were broken in that direction. That needs neither iptables nor tc, which a kernel may lack. Only what is made here is
removed, also when the test fails or is ended: all of it lives in namespaces of a name of its own.

Network(switch=True) has a process of ours in place of the bridge (switch.py), whose lines can be slow, lossy and worse:

        network.spoil(a, b, delay_ms=50, jitter_ms=100, loss=0.05)    # one way
        network.forget(a, b)                          # the connections that the two have: silent from now on
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

NOBODY = "02:00:00:00:ff:ff"


class Place:
    def __init__(self, name, namespace, address, number):
        self.name, self.namespace, self.address, self.number = name, namespace, address, number


class Network:
    def __init__(self, switch=False):
        self.token = f"zht{os.getpid() % 100000}"
        self.places, self.made, self.cuts, self.spoilt = [], [], set(), set()
        self.switch, self.wants_switch = None, switch

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
        if self.wants_switch and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise unittest.SkipTest("/dev/net/tun cannot be opened here, so there is no switch")
        self.hub = self.namespace("hub")
        if self.wants_switch:
            program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "switch.py")
            self.switch = subprocess.Popen(["nice", "-n", "-15", "ip", "netns", "exec", self.hub, sys.executable, program], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True)
            return self
        self.ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        self.ip("-n", self.hub, "link", "set", "br0", "up")
        return self

    def __exit__(self, *_):
        if self.switch:
            self.switch.stdin.close()
            self.switch.kill()
            self.switch.wait()
            self.switch.stdout.close()
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
        if self.switch:
            self.tell_switch(card=number)
            self.ip("-n", self.hub, "link", "set", port, "netns", namespace, "name", "eth0")
        else:
            self.ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            self.ip("-n", self.hub, "link", "set", port, "master", "br0", "up")
        self.ip("-n", namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        self.ip("-n", namespace, "link", "set", "eth0", "up")
        self.places.append(Place(name, namespace, f"10.77.0.{number}", number))
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

    def tell_switch(self, **wish):
        self.switch.stdin.write(json.dumps(wish) + "\n")
        self.switch.stdin.flush()
        if self.switch.stdout.readline() != "done\n":
            raise AssertionError(f"the switch ended with {self.switch.wait()} at {wish}")

    def spoil(self, sender, receiver, **how):
        """One way. `how`: as switch.py has it."""
        self.tell_switch(**{"from": sender.number, "to": receiver.number}, **how)
        self.spoilt.add((sender, receiver))

    def forget(self, *places):
        """Connections of two places with each other, or of one with any, carry nothing any more, and neither end is told."""
        self.tell_switch(forget=[place.number for place in places])

    def heal(self):
        for sender, receiver in self.cuts:
            self.ip("-n", sender.namespace, "neigh", "del", receiver.address, "dev", "eth0")
        self.cuts.clear()
        for sender, receiver in self.spoilt:
            self.tell_switch(**{"from": sender.number, "to": receiver.number})
        self.spoilt.clear()

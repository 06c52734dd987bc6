#!/usr/bin/env python3
"""A network switch of this process: a card (tap) for each place, and frames carried between them as badly as wished.

Runs in a network namespace and makes its cards there, p1, p2, ...; who started it moves each to its place (network.py). A line of
standard input is one wish in JSON, answered by a line:

    {"card": 1}                                       make p1
    {"from": 1, "to": 2, "delay_ms": 80, ...}         how frames go from one card to another from now on; no more keys: well
    {"forget": [1, 2]}                                what TCP connections these two cards have among each other, or with anybody
                                                      when it is one, carry nothing from now on; new ones do

delay_ms, jitter_ms: each frame waits so long, and up to so much longer (so they overtake each other). loss, corrupt, duplicate: 0 to 1,
of frames; a corrupt one has one byte changed behind its headers. rate: bytes a second; what is more than 100 ms behind that is lost.
longest: bytes of an Ethernet frame; longer ones are lost without a word.
"""
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
WORST = 0.1  # seconds of frames that wait for a slow line


class Line:
    """From one card to another."""

    def __init__(self, delay_ms=0, jitter_ms=0, loss=0.0, corrupt=0.0, duplicate=0.0, rate=0, longest=0):
        self.delay, self.jitter = delay_ms / 1000, jitter_ms / 1000
        self.loss, self.corrupt, self.duplicate, self.rate, self.longest = loss, corrupt, duplicate, rate, longest
        self.free_at = 0.0  # when the line has carried all that was given to it

    def times(self, size, now):
        """When copies of a frame of this size arrive; none: lost."""
        if self.longest and size > self.longest or random.random() < self.loss:
            return []
        at = now
        if self.rate:
            self.free_at = max(self.free_at, now) + size / self.rate
            if self.free_at > now + WORST:
                self.free_at -= size / self.rate
                return []
            at = self.free_at
        return [at + self.delay + random.random() * self.jitter for _ in range(2 if random.random() < self.duplicate else 1)]


class Switch:
    def __init__(self):
        self.cards, self.where, self.lines = {}, {}, {}  # by number; MAC to number; (from, to) to Line
        self.waiting, self.serial = [], 0  # (when, serial, card, frame)
        self.flows, self.dead = set(), set()  # (MACs, addresses and ports) of TCP, both ways the same

    def make(self, number):
        card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", b"p%d" % number, IFF_TAP | IFF_NO_PI))
        self.cards[number] = card

    def wish(self, said):
        if "card" in said:
            self.make(said["card"])
        elif "forget" in said:
            among = set(said["forget"])
            cards = {flow: {self.where.get(flow[0][0]), self.where.get(flow[1][0])} for flow in self.flows}
            self.dead |= {flow for flow, ends in cards.items() if (ends == among if len(among) == 2 else among & ends)}
        else:
            way = said.pop("from"), said.pop("to")
            self.lines.pop(way, None)
            if said:
                self.lines[way] = Line(**said)

    @staticmethod
    def flow(frame):
        """Which TCP connection; None: none of IPv4."""
        if len(frame) < 38 or frame[12:14] != b"\x08\x00" or frame[23] != 6:
            return None
        at = 14 + 4 * (frame[14] & 15)
        ends = (frame[6:12], frame[26:30], frame[at:at + 2]), (frame[0:6], frame[30:34], frame[at + 2:at + 4])
        return min(ends), max(ends)

    def carry(self, source, frame, now):
        self.where[frame[6:12]] = source
        flow = self.flow(frame)
        if flow is not None:
            if flow in self.dead:
                return
            self.flows.add(flow)
        known = self.where.get(frame[0:6])
        for number in [known] if known is not None else [one for one in self.cards if one != source]:
            line = self.lines.get((source, number))
            if line is None:
                self.put(number, frame)
                continue
            for at in line.times(len(frame), now):
                self.serial += 1
                spoilt = self.spoil(frame) if random.random() < line.corrupt else frame
                heapq.heappush(self.waiting, (at, self.serial, number, spoilt))

    @staticmethod
    def spoil(frame):
        if len(frame) <= 66:
            return frame
        at = random.randrange(66, len(frame))
        return frame[:at] + bytes([frame[at] ^ random.randrange(1, 256)]) + frame[at + 1:]

    def put(self, number, frame):
        try:
            os.write(self.cards[number], frame)
        except OSError:
            pass  # it is down, or has no room: lost

    def run(self):
        poll, said = select.poll(), b""
        poll.register(0, select.POLLIN)
        by_card = {}
        while True:
            pause = max(0.0, self.waiting[0][0] - time.monotonic()) * 1000 if self.waiting else None
            for ready, _ in poll.poll(pause):
                if ready == 0:
                    more = os.read(0, 65536)
                    if not more:
                        return
                    *lines, said = (said + more).split(b"\n")
                    for line in lines:
                        self.wish(json.loads(line))
                        for number, card in self.cards.items():
                            if card not in by_card:
                                by_card[card] = number
                                poll.register(card, select.POLLIN)
                        print("done", flush=True)
                    continue
                for _ in range(64):
                    try:
                        frame = os.read(ready, 65536)
                    except BlockingIOError:
                        break
                    except OSError:  # it is down
                        break
                    self.carry(by_card[ready], frame, time.monotonic())
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, number, frame = heapq.heappop(self.waiting)
                self.put(number, frame)


if __name__ == "__main__":
    sys.exit(Switch().run())

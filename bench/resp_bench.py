#!/usr/bin/env python3
"""How many requests of Redis's own load generator does one server core answer, through our RESP port and in Redis? Drives
redis-benchmark, unmodified, against --address; afterwards checks what is stored. Called by bench/run resp."""
import argparse
import json
import os
import re
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import peers  # noqa: E402

LOADS = [(1, 1), (50, 1), (50, 16)]  # connections, commands in flight on each
VALUE = 132
KEYS = 100_000  # at most; no more than there are commands, so that most of them are stored


def stored(address, words):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        return connection.makefile("rb").readline()


def figures(out):
    """What redis-benchmark tells of one test: its rate, its summary of latencies (milliseconds: avg min p50 p95 p99 max), and out of its
    first distribution the 99.9th percentile. A line of that: `99.902% <= 0.503 milliseconds (cumulative count 19981)`."""
    rate = re.search(r"throughput summary: ([0-9.]+) requests per second", out)
    summary = re.search(r"avg +min +p50 +p95 +p99 +max\s+([0-9. ]+)", out)
    steps = re.findall(r"^([0-9.]+)% <= ([0-9.]+) milliseconds", out.partition("Cumulative distribution")[0], re.MULTILINE)
    if not rate or float(rate[1]) <= 0 or not summary or not steps:
        raise RuntimeError(f"redis-benchmark said something else: {out[-300:]}")
    _, _, p50, _, p99, most = (1000 * float(ms) for ms in summary[1].split())
    p999 = next((1000 * float(ms) for percent, ms in steps if float(percent) >= 99.9), most)
    return {"ops_per_s": float(rate[1]), "p50_us": p50, "p99_us": p99, "p999_us": p999, "max_us": most}


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--systems", "--tiny", "--quick", "--no-fetch"):
        parser.add_argument(flag, action="store_true")
    for option in ("--system", "--address", "--durability"):
        parser.add_argument(option)
    arguments = parser.parse_args()
    if arguments.systems:
        print("zht redis limit")
        return 0
    try:
        load = peers.program("redis-benchmark", "redis-tools", not arguments.tiny and not arguments.no_fetch)
    except peers.Unavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 77
    host, port = arguments.address.rsplit(":", 1)
    for connections, depth in LOADS:
        count = 2000 if arguments.tiny else (20_000 if depth == 1 else 300_000) * (1 if arguments.quick else 5)
        count = count // 2 if connections == 1 else count * 4
        for test in ("set", "get"):
            out = subprocess.run([load, "-h", host, "-p", port, "-t", test, "-c", str(connections), "-P", str(depth),
                                  "-n", str(count), "-d", str(VALUE), "-r", str(min(KEYS, count)), "--precision", "3"],
                                 capture_output=True, text=True, check=True, env=peers.libraries()).stdout.replace("\r", "\n")
            for metric, value in figures(out).items():
                print(json.dumps({"row": f"{test} {connections}x{depth}", "metric": metric, "value": value, "client": "redis-benchmark",
                                  "transport": "tcp", "connections": connections, "in_flight": depth, "durability": arguments.durability}))
        if arguments.system == "limit":
            continue  # it keeps nothing
        lengths = {stored(arguments.address, ["STRLEN", f"key:{n:012d}"]) for n in range(200)}
        if not lengths <= {b":%d\r\n" % VALUE, b":0\r\n"} or b":%d\r\n" % VALUE not in lengths:
            raise RuntimeError(f"stored values have other lengths: {lengths}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

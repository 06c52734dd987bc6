#!/usr/bin/env python3
"""How many requests of Redis's own load generator does one server core answer, through our RESP port and in Redis? Drives
redis-benchmark, unmodified, against --address; afterwards checks what is stored. Called by bench/run resp."""
import argparse
import csv
import io
import json
import shutil
import socket
import subprocess
import sys

LOADS = [(1, 1), (50, 1), (50, 16)]  # connections, commands in flight on each
VALUE = 132
KEYS = 100_000  # at most; no more than there are commands, so that most of them are stored


def stored(address, words):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        return connection.makefile("rb").readline()


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--systems", "--tiny", "--quick"):
        parser.add_argument(flag, action="store_true")
    for option in ("--system", "--address", "--durability"):
        parser.add_argument(option)
    arguments = parser.parse_args()
    if arguments.systems:
        print("zht redis")
        return 0
    if shutil.which("redis-benchmark") is None:
        print("skipped: no redis-benchmark (Debian package redis-tools)", file=sys.stderr)
        return 77
    host, port = arguments.address.rsplit(":", 1)
    for connections, depth in LOADS:
        count = 2000 if arguments.tiny else (20_000 if depth == 1 else 300_000) * (1 if arguments.quick else 5)
        count = count // 2 if connections == 1 else count * 4
        for test in ("set", "get"):
            out = subprocess.run(["redis-benchmark", "-h", host, "-p", port, "-t", test, "-c", str(connections), "-P", str(depth),
                                  "-n", str(count), "-d", str(VALUE), "-r", str(min(KEYS, count)), "--csv"],
                                 capture_output=True, text=True, check=True).stdout
            row = next(r for r in csv.DictReader(io.StringIO(out)) if r["test"].lower() == test)
            if float(row["rps"]) <= 0:
                raise RuntimeError(f"redis-benchmark: {row}")
            for metric, value in (("ops_per_s", float(row["rps"])), ("p50_us", 1000 * float(row["p50_latency_ms"])),
                                  ("p99_us", 1000 * float(row["p99_latency_ms"]))):
                print(json.dumps({"row": f"{test} {connections}x{depth}", "metric": metric, "value": value}))
        lengths = {stored(arguments.address, ["STRLEN", f"key:{n:012d}"]) for n in range(200)}
        if not lengths <= {b":%d\r\n" % VALUE, b":0\r\n"} or b":%d\r\n" % VALUE not in lengths:
            raise RuntimeError(f"stored values have other lengths: {lengths}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""README.md's table "Measured", out of saved results (`bench/run report FILES... --readme`).

All files must be of one commit and one machine and hold every row below: a table put together from several is nobody's. Every peer
that was measured in a row is shown, beside it what we have of it; where a peer is ahead the row says so. What a row was measured
with comes from the results, not from here.
"""
import os
import re
import sys

import report

BEGIN, END = "<!-- measured: begin, written by `bench/run report FILES... --readme` -->", "<!-- measured: end -->"
LIMITS = ("limit", "fuse_limit", "spawn_limit", "local")  # what the machine allows, not products: nobody is behind those
NAMES = {"redis": "Redis", "redis_no_log": "Redis without a log", "memcached": "memcached", "kyoto": "Kyoto Cabinet", "tkrzw": "Tkrzw",
         "bdb": "Berkeley DB", "leveldb": "LevelDB", "rocksdb": "RocksDB", "lmdb": "LMDB", "unordered_map": "`unordered_map`",
         "unordered_map_tuned": "`unordered_map`, reserved, huge pages", "flat_hash_map": "`flat_hash_map`",
         "flat_hash_map_tuned": "`flat_hash_map`, reserved, huge pages", "juicefs": "JuiceFS", "glusterfs": "GlusterFS", "limit": "limit",
         "fuse_limit": "FUSE itself", "spawn_limit": "vfork alone", "local": "no FUSE", "beanstalkd": "beanstalkd", "xargs": "xargs",
         "fusionfs_embed": "ours with `-o embed`", "zht_sleeping": "ours with `busy_poll = 0s`", "zht_in_process": "ours in process"}
UNITS = {"us_per_op": "us", "ops_per_s": "/s", "msgs_per_s": "messages/s", "tasks_per_s": "tasks/s", "mb_per_s": "MB/s", "p50_us": "us, median",
         "p99_us": "us, 99%", "p999_us": "us, 99.9%", "p9999_us": "us, 99.99%", "max_us": "us, longest", "p50_ms": "ms, median", "gap_ms": "ms",
         "pause_ms": "ms, longest", "seconds": "s", "ram_mb": "MB of memory", "percent_of_core": "% of a core", "efficiency": "of the ideal time"}


def each(rows, *metrics):
    return [(row, metric) for row in rows for metric in metrics]


# (what, bench, our system, rows). A row of NoVoHT's sixteen keys a call stands beside the peers' one at a time: see "x16" in bench/README.md.
PARTS = [
    ("NoVoHT", "novoht", "novoht",
     each(["insert 1M", "get random 1M", "append 1M", "remove 1M", "insert x16 1M", "get random x16 1M"], "us_per_op") +
     [("insert 1M", "ram_mb"), ("insert with rounds p9999", "p9999_us"), ("insert with rounds p9999", "max_us"),
      ("insert always 1", "ops_per_s"), ("insert always 64", "ops_per_s"), ("recover 1M", "seconds"), ("get random limited", "us_per_op")]),
    ("ZHT", "store", "zht",
     each([f"{what} {shape}" for what in ("insert", "lookup") for shape in ("1x1", "32x1", "32x16", "32x64")], "ops_per_s") +
     [("lookup 32x1", "p999_us"), ("lookup 32x1", "max_us")] + each(["insert always 1x1", "insert always 32x1", "insert always 32x64"], "ops_per_s") +
     each([f"{what} {callers} {transport}" for what in ("insert", "lookup") for callers in ("1 caller", "32 callers", "512 callers")
           for transport in ("tcp", "unix")], "ops_per_s") +
     [("pause", "p9999_us"), ("pause", "max_us"), ("idle", "percent_of_core")]),
    ("ZHT in the caller's process", "store", "zht_in_process", each(["in-process insert", "in-process lookup", "in-process insert x16",
                                                                     "in-process lookup x16"], "ops_per_s")),
    ("ZHT's Redis port", "resp", "zht", each(["set 1x1", "get 1x1", "set 50x1", "get 50x1", "set 50x16", "get 50x16"], "ops_per_s")),
    ("A cluster of three", "cluster", "zht",
     [("failover kill -9", "gap_ms"), ("failover SIGSTOP", "gap_ms"), ("migration of one partition", "pause_ms"),
      ("insert 3 copies, 2 sync x16", "ops_per_s"), ("insert 3 copies, 2 sync x1", "p50_us")]),
    ("FusionFS", "fs", "fusionfs",
     each([f"{what} 2 threads" for what in ("create", "stat", "unlink", "mkdir", "rename", "write4k", "read4k")], "ops_per_s") +
     [("create 2 threads", "p999_us"), ("seq write 1M", "mb_per_s"), ("seq read 1M", "mb_per_s"), ("idle", "percent_of_core")]),
    ("MATRIX", "tasks", "matrix", [("noop process", "tasks_per_s"), ("sleep 1 x64", "efficiency"), ("sleep 0.1 x64", "efficiency"),
                                   ("sleep 0.01 x64", "efficiency"), ("submit to result", "p50_ms"), ("idle", "percent_of_core")]),
    ("Fabriq", "queue", "fabriq",
     each(["push 50B", "pop 50B", "push always 50B"], "p50_us", "p999_us") +
     each(["push 50B pipelined", "pop 50B pipelined", "push 1KB pipelined", "pop 1KB pipelined"], "msgs_per_s")),
]


class Unfit(Exception):
    """The results cannot be README's table; the text says why."""


def only(lines, key, what):
    values = sorted({str(line.get(key, "unknown")) for line in lines})
    if len(values) != 1:
        raise Unfit(f"the files are of several {what}: {'; '.join(values)}")
    return values[0]


def row_text(ours, mine, others, row, metric):
    label = report.how([mine])
    always = "" if "always" in row or mine.get("durability") in (None, "interval") else f", durability {mine['durability']}"
    what = f"{row}{f' ({label}{always})' if label else ''}, {UNITS.get(metric, metric)}"
    cells, ahead = [], []
    less = report.less_is_better(metric)
    for line in others:
        name, value = NAMES.get(line["system"], line["system"]), line["value"]
        peers_client = f" ({line['client']})" if line.get("client") and line["client"] != mine.get("client") else ""
        ratio = f", {mine['value'] / value:.2f}" if value else ""
        cells.append(f"{name}{peers_client} {report.shown(line)}{ratio}")
        is_peer = line["system"] not in LIMITS and not line["system"].startswith(ours)
        if is_peer and (line["value"] < mine["value"] if less else line["value"] > mine["value"]):
            ahead.append(name)
    behind = f"**behind {', '.join(ahead)}**" if ahead else ""
    return f"| {what}{' (less is better)' if less else ''} | {report.shown(mine)} | {'; '.join(cells) or '-'} | {behind} |"


def render(lines):
    """The text between the markers."""
    commit, machine, size = only(lines, "commit", "commits"), only(lines, "machine", "machines"), only(lines, "size", "sizes")
    if commit == "unknown" or commit.endswith("changed"):
        raise Unfit(f"the files name no commit ({commit}): commit first, then measure")
    if size == "tiny":
        raise Unfit("figures of --tiny are worthless")
    found = {}
    for line in lines:
        place = found.setdefault((line["bench"], line["row"], line["metric"]), {})
        if line["system"] in place:
            raise Unfit(f"two files have {line['bench']} \"{line['row']}\" of {line['system']}")
        place[line["system"]] = line
    missing, out, behind, rows = [], [], 0, 0
    for title, bench, system, wanted in PARTS:
        out.append(f"| **{title}** | | | |")
        for row, metric in wanted:
            systems = found.get((bench, row, metric), {})
            if system not in systems:
                missing.append(f"{bench} \"{row}\" {metric} of {system}")
                continue
            ours = system.split("_")[0]
            others = [line for name, line in systems.items() if name != system]
            others.sort(key=lambda line: (line["system"] in LIMITS, not line["system"].startswith(ours)))
            out.append(row_text(ours, systems[system], others, row, metric))
            rows += 1
            behind += "**behind" in out[-1]
    if missing:
        raise Unfit(f"no figures of {len(missing)} rows, among them {'; '.join(missing[:3])}")
    rounds = [line["rounds"] for line in lines]
    rounds_text = str(min(rounds)) if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    head = (f"Commit {commit}, {machine}, by `bench/run NAME{' --quick' if size == 'quick' else ''}`: medians of {rounds_text} round{'' if rounds_text == '1' else 's'} in which the systems\n"
            "take turns. Machines differ, so read the ratios: behind each peer stands ours divided by the peer's. A limit answers and does nothing\n"
            f"else. In {behind} of {rows} rows a peer is ahead; they say so. How each system ran is told below.\n")
    notes = []
    for _, bench, _, _ in PARTS:
        told = [f"`{system}`: {how}" for system, how in report.NOTES.get(bench, {}).items()]
        rounds_of = report.per_system([line for line in lines if line["bench"] == bench], lambda line: line["rounds"])
        text = f"- {bench}: " + ". ".join([*told, f"Rounds of each: {rounds_of}"]) + "."
        if text not in notes:
            notes.append(text)
    return "\n".join([head, "| what | here | others, ours / theirs | |", "|---|---|---|---|", *out, "", "How each system ran:", "", *notes])


def put(text, into):
    """`into`, with what stands between the markers replaced by `text`."""
    found = re.search(re.escape(BEGIN) + r"\n.*?" + re.escape(END), into, re.DOTALL)
    if not found:
        raise Unfit(f"the lines \"{BEGIN}\" and \"{END}\" are missing")
    return into[:found.start()] + BEGIN + "\n" + text + "\n" + END + into[found.end():]


def main(files, readme=os.path.join(report.TREE, "README.md")):
    try:
        text = render([line for path in report.saved(files) for line in report.load(path)])
        with open(readme, encoding="utf-8") as file:
            whole = put(text, file.read())
    except (Unfit, ValueError) as error:
        print(f"bench/run: {os.path.relpath(readme)}: {error}", file=sys.stderr)
        return 2
    with open(readme, "w", encoding="utf-8") as file:
        file.write(whole)
    print(f"written: {os.path.relpath(readme)}, \"Measured\"")
    return 0

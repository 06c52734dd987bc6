"""Tables and plots of benchmark results: a table on stdout, one SVG for each bench and metric beside the JSON file."""
import functools
import glob
import html
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys

TREE = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
OURS = {"novoht": "novoht", "store": "zht", "scale": "zht", "cluster": "zht", "fs": "fusionfs", "tasks": "matrix", "queue": "fabriq"}
OURS["resp"] = "zht"
LABELS = ("client", "transport", "connections", "in_flight", "durability")  # how a row was measured

# How each system ran, printed under the tables. What is not said here is its default.
NOTES = {
    "novoht": {
        "novoht": "log on, handed to the system every 256 operations, housekeeping inside the measured time",
        "unordered_map, flat_hash_map": "as they come, compiled with NDEBUG; no log",
        "unordered_map_tuned, flat_hash_map_tuned": "room for all pairs reserved before, memory from huge pages (NoVoHT asks for those, and reserves nothing)",
        "lmdb": "a transaction a round, not synced but in rows `always`; nothing to read back when it is opened again",
        "limit": "an index that knows every answer: copies, scattered memory and writes alone",
    },
    "store": {
        "zht": "one instance, defaults: log written each round and synced every second; looks for the next request for up to 50 us before it "
               "sleeps (busy_poll), which the peers do not",
        "zht_sleeping": "the same, busy_poll = 0s: it always sleeps, as the peers do",
        "zht_in_process": "a node in the caller's own process, no socket",
        "redis": "append-only file synced every second, as zht; rows `always`: before each answer",
        "redis_no_log": "nothing on disk", "memcached": "nothing on disk, one thread",
        "limit": "an epoll loop that answers and does nothing else; rows `always`: after a write and a sync of what one turn brought",
        "N callers": "callers of one process, one request in flight each: zht's C++ client; for the peers the raw loop with one connection and N "
                     "requests in flight stands for a client that merges requests (lettuce, hiredis' asynchronous calls), with less to do than these",
        "pause": "lookups of one connection while 100,000 inserts/s come; zht's log comes back by checkpoints all the time, redis rewrites its file once",
        "idle": "all processes of the system, from a second after their start",
    },
    "resp": {
        "zht": "busy_poll as it comes; RESP's own thread sleeps between turns", "redis": "append-only file synced every second, as zht",
        "limit": "an epoll loop that answers SET and GET and stores nothing",
    },
    "cluster": {"zht": "1 instance a node, defaults (failover = 400ms)", "redis": "append-only file synced every second, replicas and WAIT",
                "<=": "no key waited longer than the instrument tells: a key is written every 2 ms (8 in `migration of one partition`), and 3 more"},
    "fs": {
        "fusionfs": "fusionfs mount DIR, as it comes: beside the local node, over its unix socket",
        "fusionfs_embed": "fusionfs mount -o embed DIR: the node in the mount's process",
        "juicefs": "names in Redis (append-only file synced every second), bytes in a local folder", "glusterfs": "one brick, a client, over loopback",
        "fuse_limit": "a file system that answers from memory and does nothing else", "local": "the folder of temporary files, without FUSE",
        "idle": "all processes of the system that serve the mount (of juicefs without Redis)",
    },
    "tasks": {
        "matrix": "durable records, captured output, exit codes; an agent and a node on this machine", "xargs": "records nothing",
        "spawn_limit": "vfork, exec, wait", "idle": "the agent alone; its node's is in `store`",
    },
    "queue": {
        "all": "over TCP; the settlement of what was had rides on the next pop, in one write", "fabriq": "the C++ client; busy_poll as it comes",
        "redis": "streams; append-only file synced every second, rows `always`: before each answer",
        "beanstalkd": "binlog synced every second, rows `always`: before each answer",
        "limit": "an append to a file (rows `always`: and a sync) and an answer as long as the message",
    },
}


def less_is_better(metric):
    return metric.endswith(("_us", "_ms", "_mb")) or metric in ("us_per_op", "seconds", "max_over_mean", "percent_of_core", "failed")


COLOURS = ["#1b6ca8", "#d1495b", "#8f9779", "#edae49", "#6c5b7b", "#66a182", "#9a8c98", "#2e4057", "#c06c84"]


@functools.lru_cache
def machine():
    """What names the machine in a row: cores, processor, kernel."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return {"machine": f"{len(os.sched_getaffinity(0))} cores of {model}, {memory} GiB, Linux {platform.release()}", "build": "release",
            "commit": commit()}


def commit():
    """The commit that was measured; "..., changed" where files differ from it."""
    git = ["git", "-c", "safe.directory=*", "-C", TREE]
    quiet = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "check": False}
    try:
        name = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], **quiet).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], **quiet).stdout.strip()
    except OSError:
        name = changed = ""
    return (name + (", changed" if changed else "")) if name else "unknown"


def summary(bench, size, row, metric, system, rows):
    """The line of a figure, out of its rounds: their median."""
    values = [one["value"] for one in rows]
    line = {"bench": bench, "row": row, "system": system, "metric": metric, "value": statistics.median(values), "rounds": len(values),
            "min": min(values), "max": max(values), "size": size, **{k: rows[0][k] for k in LABELS if k in rows[0]}, **machine()}
    if any(one.get("at_most") and one["value"] >= line["value"] for one in rows):
        line["at_most"] = True  # nothing longer was seen, and nothing shorter can be
    return line


def number(value):
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.0f}k"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def shown(line):
    return ("<=" if line.get("at_most") else "") + number(line["value"])


def how(lines):
    """How a row was measured, in words, ours first; where the others have another client: that too."""
    clients = {}
    for line in lines:
        if line.get("client"):
            clients.setdefault(line["client"], []).append(line["system"])
    words = [client if at == 0 or len(clients) == 1 else f"others: {client}" for at, client in enumerate(clients)]
    first = next((line for line in lines if line.get("client")), {})
    if first.get("transport"):
        words.append(first["transport"])
    if first.get("connections"):
        words.append(f"{first['connections']} connection{'s' if first['connections'] > 1 else ''} x {first.get('in_flight', 1)}")
    return ", ".join(words)


def per_system(lines, of):
    """"a: x; b, c: y" out of of(line), of each system the first that is not None."""
    told = {}
    for line in lines:
        if of(line) is not None:
            told.setdefault(line["system"], of(line))
    systems = {}
    for system, value in told.items():
        systems.setdefault(value, []).append(system)
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in systems.items())


def table(lines, ours, bench=""):
    """Markdown: a line for each row and metric, a column for each system, ratios of ours to each peer; then how each system ran."""
    if not lines:
        return "no results"
    systems = list(dict.fromkeys(line["system"] for line in lines))
    mine = sorted((s for s in systems if s.startswith(ours)), key=len)
    others = [s for s in systems if s not in mine]
    figures = {}
    for line in lines:
        if line["metric"].startswith("share_"):
            continue  # what words are made of
        figures.setdefault((line["row"], line["metric"]), {})[line["system"]] = line
    labelled = any(line.get("client") for line in lines)
    head = ["row", "metric", *(["how"] if labelled else []), *mine, *others, *[f"{ours} / {s}" for s in others]]
    body = []
    for (row, metric), values in figures.items():
        cells = [row, metric] + ([how([values[s] for s in mine + others if s in values])] if labelled else [])
        cells += [shown(values[s]) if s in values else "-" for s in mine + others]
        own = values[mine[0]]["value"] if mine and mine[0] in values else None
        for system in others:
            peer = values[system]["value"] if system in values else None
            cells.append(f"{own / peer:.2f}x" if own is not None and peer else "-")
        body.append(cells)
    widths = [max(len(r[i]) for r in [head, *body]) for i in range(len(head))]
    render = lambda r: "| " + " | ".join(c.ljust(w) for c, w in zip(r, widths)) + " |"  # noqa: E731
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    less = [m for m in dict.fromkeys(line["metric"] for line in lines) if less_is_better(m)]
    first = lines[0]
    rounds = per_system(lines, lambda line: line["rounds"])
    durability = per_system([line for line in lines if "always" not in line["row"]], lambda line: line.get("durability"))
    notes = [f"{first.get('machine', '')}; commit {first.get('commit', 'unknown')}; size {first.get('size', 'full')}",
             f"medians; rounds: {rounds}", *([f"durability: {durability}"] if durability else []),
             f"less is better for {', '.join(less) or 'none'}", *[f"{system}: {text}" for system, text in NOTES.get(bench, {}).items()]]
    return "\n".join([render(head), rule, *map(render, body), "", *["- " + note for note in notes]])


def plot(lines, metric, title):
    """A bar chart as SVG: one group of bars for each row, one colour for each system, relative to the best of the row."""
    rows = list(dict.fromkeys(line["row"] for line in lines))
    systems = list(dict.fromkeys(line["system"] for line in lines))
    values = {(line["row"], line["system"]): line["value"] for line in lines}
    bar, gap, left, width = 14, 12, 190, 520
    group = bar * len(systems) + gap
    height = 70 + group * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(left + width, 110 * len(systems)) + 110}" height="{height}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="14">{html.escape(title)}</text>']
    for i, system in enumerate(systems):
        x = 10 + i * 110
        out.append(f'<rect x="{x}" y="32" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>'
                   f'<text x="{x + 14}" y="41">{html.escape(system)}</text>')
    for r, row in enumerate(rows):
        y = 58 + r * group
        most = max((values.get((row, s), 0) for s in systems), default=0) or 1
        out.append(f'<text x="{left - 8}" y="{y + group / 2 - 4}" text-anchor="end">{html.escape(row)}</text>')
        for i, system in enumerate(systems):
            value = values.get((row, system))
            if value is None:
                continue
            length = max(1, width * value / most)
            out.append(f'<rect x="{left}" y="{y + i * bar}" width="{length:.1f}" height="{bar - 2}" '
                       f'fill="{COLOURS[i % len(COLOURS)]}"/>'
                       f'<text x="{left + length + 4:.1f}" y="{y + i * bar + 10}">{number(value)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def curves(series, title, x_title, y_title, log_x=False, log_y=False, marks=()):
    """Lines over an axis as SVG. series: {name: [(x, y)]}; marks: [(x, text)], drawn as upright lines."""
    points = [p for line in series.values() for p in line]
    if not points:
        return ""
    scale = lambda value, log: math.log10(max(value, 1e-9)) if log else value  # noqa: E731
    xs, ys = [scale(x, log_x) for x, _ in points], [scale(y, log_y) for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys) if log_y else 0, max(ys)
    left, top, width, height = 80, 60, 640, 320
    place = lambda x, y: (left + width * (scale(x, log_x) - low_x) / ((high_x - low_x) or 1),  # noqa: E731
                          top + height - height * (scale(y, log_y) - low_y) / ((high_y - low_y) or 1))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 170}" height="{top + height + 60}" font-family="sans-serif" '
           f'font-size="11"><rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="14">{html.escape(title)}</text>',
           f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
           f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">{html.escape(x_title)}</text>',
           f'<text x="14" y="{top - 12}">{html.escape(y_title)}</text>']
    for i in range(5):
        y = low_y + (high_y - low_y) * i / 4
        shown = 10 ** y if log_y else y
        at = top + height - height * i / 4
        out.append(f'<text x="{left - 6}" y="{at + 4:.0f}" text-anchor="end">{number(shown)}</text>'
                   f'<line x1="{left}" x2="{left + width}" y1="{at:.0f}" y2="{at:.0f}" stroke="#eee"/>')
        x = low_x + (high_x - low_x) * i / 4
        out.append(f'<text x="{left + width * i / 4:.0f}" y="{top + height + 18}" text-anchor="middle">{number(10 ** x if log_x else x)}</text>')
    for at, text in marks:
        x = place(at, 1)[0]
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}" stroke="#d1495b" stroke-dasharray="4"/>'
                   f'<text x="{x + 3:.1f}" y="{top + 12}" fill="#d1495b">{html.escape(text)}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(line) <= 40:
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (place(*p) for p in line)]
        out.append(f'<rect x="{left + width + 16}" y="{top + 18 * i}" width="10" height="10" fill="{colour}"/>'
                   f'<text x="{left + width + 30}" y="{top + 18 * i + 9}">{html.escape(name)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def nodes_of(row):
    """How many nodes a row of `scale` is about; 0: none."""
    found = re.fullmatch(r"(\d+)([KM]?) nodes?", row)
    return int(found[1]) * {"": 1, "K": 1024, "M": 1 << 20}[found[2]] if found else 0


def scale_plot(lines, metric):
    series = {}
    for line in lines:
        if line["metric"] == metric and nodes_of(line["row"]):
            series.setdefault(line["system"], []).append((nodes_of(line["row"]), line["value"]))
    for line in series.values():
        line.sort()
    return curves(series, f"scale: {metric}", "nodes", metric, log_x=True, log_y=metric != "efficiency")


def directory_plot(lines):
    """`fs`: the rate at which files are made in one directory while it grows."""
    series = {}
    for line in lines:
        found = re.fullmatch(r"create, one directory (\d+)%", line["row"])
        if found:
            series.setdefault(line["system"], []).append((int(found[1]) + 5, line["value"]))
    return curves({system: sorted(line) for system, line in series.items()}, "fs: files made in one directory while it grows",
                  "% of its names made", "files/s")


PARTS = {"client": "the client's own work", "wire": "the way through more switches", "wake": "waking up", "service": "the instance's work",
         "queue": "waiting behind other requests", "connect": "opening connections (a client keeps 256)", "copies": "the second copy"}


def scale_words(lines):
    """What bounds the store at 8K and 1M nodes: a sentence for each system, out of the shares."""
    value = {(line["system"], line["row"], line["metric"]): line["value"] for line in lines}
    said = []
    for system in dict.fromkeys(line["system"] for line in lines):
        for row in ("8K nodes", "1M nodes"):
            efficiency, latency = value.get((system, row, "efficiency")), value.get((system, row, "latency_us"))
            small = value.get((system, "2 nodes", "latency_us"))
            if efficiency is None or (system, row, "share_wire") not in value:
                continue
            part = lambda at, name: value[(system, at, "share_" + name)] * value[(system, at, "latency_us")]  # noqa: E731
            more = sorted(((part(row, name) - part("2 nodes", name), name) for name in PARTS), reverse=True)
            told = ", ".join(f"{us:.1f} us {PARTS[name]}" for us, name in more[:3] if us > 0.05 * (latency - small))
            paper = value.get(("paper", row, "efficiency"))
            said.append(f"{system} at {row}: efficiency {efficiency:.0%}" + (f" (paper: {paper:.0%})" if paper else "") +
                        f", {number(value[(system, row, 'ops_per_s')])} ops/s; {latency:.0f} us a request, {latency - small:.0f} more than at 2 "
                        f"nodes, of which {told}.")
    return "\n".join(said)


def load(path):
    """The lines of a file that --json wrote."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
        for key in ("bench", "row", "system", "metric", "value", "rounds"):
            for line in lines:
                line[key]  # noqa: B018: a missing key is what we look for
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of results ({error!r}); give files that --json wrote") from error
    return lines


def saved(files):
    return files or sorted(glob.glob(os.path.join(TREE, "build", "bench", "*.json")))


def main(files):
    files = saved(files)
    if not files:
        print("bench/run: no saved results; bench/run NAME --json build/bench/NAME.json makes one", file=sys.stderr)
        return 2
    for path in files:
        try:
            lines = load(path)
        except ValueError as error:
            print(f"bench/run: {error}", file=sys.stderr)
            return 2
        for bench in dict.fromkeys(line["bench"] for line in lines):
            mine = [line for line in lines if line["bench"] == bench]
            print(f"## {bench}\n\n{table(mine, OURS.get(bench, bench), bench)}\n")
            if bench == "scale":
                print(scale_words(mine) + "\n")
            for metric in dict.fromkeys(line["metric"] for line in mine):
                if bench == "scale" and metric not in ("efficiency", "latency_us", "ops_per_s"):
                    continue
                target = f"{os.path.splitext(path)[0]}-{bench}-{metric}.svg"
                better = "less is better" if less_is_better(metric) else "more is better"
                with open(target, "w", encoding="utf-8") as file:
                    file.write(scale_plot(mine, metric) if bench == "scale" else
                               plot([line for line in mine if line["metric"] == metric], metric,
                                    f"{bench}: {metric} ({better}; each row to its own scale)"))
                print(f"plot: {os.path.relpath(target)}")
            if bench == "fs":
                target = f"{os.path.splitext(path)[0]}-{bench}-directory.svg"
                with open(target, "w", encoding="utf-8") as file:
                    file.write(directory_plot(mine))
                print(f"plot: {os.path.relpath(target)}")
            print()
    return 0

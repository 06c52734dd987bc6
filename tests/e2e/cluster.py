"""A cluster of real nodes, each in a network namespace of its own, with clients beside them: what fault tests are played on.

    with Cluster(nodes=5) as cluster:
        cluster.up()
        client = cluster.client()                 # a `zht pipe` in its own namespace
        cluster.nodes[2].kill()                   # kill -9
        cluster.part([cluster.nodes[0]], cluster.nodes[1:])

ZHT_KEEP_LOGS=FOLDER keeps the nodes' whole logs there.
"""
import json
import os
import shutil
import signal
import socket
import struct
import subprocess

import harness
from frames import control
from harness import Sandbox, wait_for
from network import Network

PORT = 7000


class Node:
    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.place = cluster.network.place(f"n{number}")
        self.name = f"n{number}"
        self.address = f"{self.place.address}:{PORT}"
        self.data = cluster.path(f"node-{number}")
        self.process, self.stopped, self.starts = None, False, 0
        self.below = None  # what lies under a disk that can fail
        os.makedirs(self.data, mode=0o700)

    def on_small_disk(self, size):
        """Its data folder becomes a file system of its own, of `size` (as mount's size= takes it)."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", self.data], check=True)

    def on_fragile_disk(self):
        """Its data folder becomes an ext4 in a file with holes, which break_disk() leaves no room to fill. False: no such thing here."""
        below = self.cluster.path(f"below-{self.number}")
        os.makedirs(below)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "none", below], check=True)
        self.below = below
        image = os.path.join(below, "image")
        with open(image, "wb") as file:
            file.truncate(512 << 20)
        for command in (["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image], ["mount", "-o", "loop", image, self.data]):
            done = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which(command[0]) else None
            if done is None or done.returncode != 0:
                print(f"no disk that can fail: {command[0]}: {done.stderr.strip() if done else 'not there'}", flush=True)
                return False
        os.chmod(self.data, 0o700)
        return True

    def break_disk(self):
        """What is written from now on is not kept, and a sync says so."""
        self._fill(os.path.join(self.below, "filler"))

    def mend_disk(self):
        os.unlink(os.path.join(self.below, "filler"))

    def fill_disk(self):
        self._fill(os.path.join(self.data, "filler"))

    @staticmethod
    def _fill(path):
        with open(path, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass

    def empty_disk(self):
        os.unlink(os.path.join(self.data, "filler"))

    def start(self, *more):
        """Starts it; it serves some time after."""
        log = open(os.path.join(self.cluster.folder, f"{self.name}.log"), "ab")
        argv = ["zht", "serve", "--data", self.data, "--config", self.cluster.config, "--listen", self.address, *more]
        self.process = self.cluster.start(*self.cluster.network.argv(self.place, argv), stdout=log, stderr=log)
        self.stopped = False
        self.starts += 1
        log.close()

    def serves(self):
        if self.process is None or self.process.poll() is not None:
            return False
        done = subprocess.run([os.path.join(harness.BIN, "zht"), "status", "--data", self.data, "--timeout", "2s"],
                              env=self.cluster.environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.returncode == 0

    def told(self):
        """`zht status --json` of this node; None when it does not answer."""
        done = subprocess.run([os.path.join(harness.BIN, "zht"), "status", "--json", "--data", self.data, "--timeout", "2s"],
                              env=self.cluster.environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def says_full(self):
        """Whether this node tells of itself that it takes no new copies; None when it does not answer."""
        told = self.told()
        if told is None:
            return None
        cluster = told["cluster"]
        return next(one["full"] for one in cluster["nodes"] if one["node"] == cluster["node"])

    def table(self):
        """{"instances": {id: address}, "views": [{"epoch", "primary", "sync", "learners"}]} as this node has it; None when it does not answer."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5)
                connection.connect(os.path.join(self.data, "node.sock"))
                connection.sendall(control(1))
                got = b""
                while len(got) < 72 or len(got) < 72 + struct.unpack_from("<I", got, 12)[0]:
                    more = connection.recv(1 << 20)
                    if not more:
                        return None
                    got += more
        except OSError:
            return None
        return membership(got[72:])

    def up(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.up():
            self.process.kill()
        self.process.wait()

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self):
        if self.stopped and self.up():
            os.kill(self.process.pid, signal.SIGCONT)
        self.stopped = False

    def log(self):
        with open(os.path.join(self.cluster.folder, f"{self.name}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()


def fields(message):
    """(number, value) of a protobuf message: whole numbers and bytes are all that the table has."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(message):
        key = varint()
        value = varint()
        if key & 7 == 2:
            at, value = at + value, message[at:at + value]
        yield key >> 3, value


def unpacked(packed):
    value = shift = 0
    for byte in packed:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def membership(message):
    """zht.proto's MembershipTable."""
    instances, views = {}, []
    for number, value in fields(message):
        if number == 3:
            one = dict(fields(value))
            instances[one.get(1, 0)] = one.get(3, b"").decode()
        elif number == 4:
            run = dict(fields(value))
            view = {"epoch": 0, "primary": 0, "sync": [], "learners": []}
            for part, content in fields(run.get(3, b"")):
                if part in (1, 2):
                    view["epoch" if part == 1 else "primary"] = content
                elif part in (3, 4):
                    view["sync" if part == 3 else "learners"] += list(unpacked(content)) if isinstance(content, bytes) else [content]
            views += [view] * run.get(2, 0)
    return {"instances": instances, "views": views}


class ClusterPipe(harness.Pipe):
    """`zht pipe` in a place of its own."""

    def __init__(self, cluster, place, *options):
        argv = cluster.network.argv(place, ["zht", "--cluster", cluster.addresses(), "pipe", *options])
        self.process = cluster.start(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=open(cluster.path(f"pipe-{place.name}.err"), "ab"))


class Cluster(Sandbox):
    SETTINGS = 'segment_size = "1MiB"\n'

    def __init__(self, nodes, partitions=32, spare=0, switch=False):
        super().__init__()
        self.network = Network(switch)
        self.count, self.spare, self.partitions = nodes, spare, partitions
        self.nodes = []

    def __enter__(self):
        super().__enter__()
        try:
            self.network.__enter__()
            self.config = self.path("zht.toml")
            with open(self.config, "w", encoding="ascii") as file:
                file.write(self.SETTINGS)
            secret = self.path("secret")
            self.run("zht", "secret", "new", "--file", secret)
            self.environment["ZHT_SECRET_FILE"] = secret
            self.nodes = [Node(self, n) for n in range(1, self.count + self.spare + 1)]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        for node in self.nodes:
            node.go_on()
        super().__exit__(kind, error, trace)
        self.network.__exit__(kind, error, trace)

    def show_log(self):
        for node in self.nodes:
            if node.starts:
                print(f"--- end of {node.name}'s log\n{node.log()[-3000:]}---", flush=True)

    def addresses(self):
        return ",".join(node.address for node in self.nodes[:self.count])

    def place(self, name):
        return self.network.place(name)

    def up(self):
        """Founds the cluster out of a list of its nodes. Returns when every partition has its copies."""
        listed = self.path("nodes")
        with open(listed, "w", encoding="ascii") as file:
            file.writelines(f"{node.address} instances=1\n" for node in self.nodes[:self.count])
        for node in self.nodes[:self.count]:
            node.start("--instances", "1", "--partitions", str(self.partitions), "--nodes", listed)
        for node in self.nodes[:self.count]:
            wait_for(node.serves, f"{node.name} to serve")
        self.settle()

    def join(self, node):
        node.start("--instances", "1", "--join", self.addresses())
        wait_for(node.serves, f"{node.name} to serve")

    def leave(self, node):
        self.run(*self.network.argv(node.place, ["zht", "leave", "--yes", "--data", node.data]))
        wait_for(lambda: not node.up(), f"the end of {node.name}")

    def part(self, some, others):
        self.network.part([n.place for n in some], [n.place for n in others])

    def heal(self):
        self.network.heal()

    def settle(self, without=()):
        """Waits until every partition has a primary and a synchronous copy, and as many copies as it should, on nodes that live."""
        living = [node for node in self.nodes if node.up() and node not in without]

        def settled():
            table = living[0].table()
            if table is None:
                return False
            own = {instance for instance, address in table["instances"].items() if any(address.startswith(n.place.address + ":") for n in living)}
            if len(own) < len(living):
                return False
            return all(view["primary"] in own and len(view["sync"]) >= min(2, len(own)) and set(view["sync"]) <= own and
                       len((set(view["sync"]) | set(view["learners"])) & own) >= min(3, len(own)) for view in table["views"])
        wait_for(settled, f"copies of everything on {' '.join(n.name for n in living)}")

    def clean_up(self):
        for node in self.nodes:
            if node.up():
                node.process.kill()
                node.process.wait()
        keep = os.environ.get("ZHT_KEEP_LOGS")
        if keep:
            os.makedirs(keep, exist_ok=True)
            for node in self.nodes:
                if node.starts:
                    shutil.copy(self.path(f"{node.name}.log"), keep)
        super().clean_up()

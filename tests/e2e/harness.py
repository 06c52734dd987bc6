"""Real processes for end-to-end tests: one sandbox a test, with its own node, and nothing left behind.

    with Sandbox() as box:
        box.run("zht", "insert", "k", "v")           # starts the sandbox's own local node
        box.kill_node()                              # kill -9; the next command starts it again
        assert box.out("zht", "lookup", "k") == "v"

Everything a sandbox starts, directly or not, carries ZHT_DATA=<its folder> in its environment. That is how it is found
and ended: no process is ever matched by its name.
"""
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TREE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("ZHT_BUILD", os.path.join(TREE, "build", "release"))
BIN = os.path.join(BUILD, "bin")
DEADLINE = 120  # seconds that any one wait may take on a loaded machine
SKIP = 77


def rounds(ci, long):
    """How much of a thing: `long` with ZHT_LONG=1, else `ci`."""
    return long if os.environ.get("ZHT_LONG") == "1" else ci


def lacking(*programs, fuse=False):
    """Why a test that needs these cannot run here; empty when it can."""
    for program in programs:
        if not os.path.exists(os.path.join(BIN, program)) and shutil.which(program) is None:
            return f"no program {program} in {BIN} or on the path"
    if fuse and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened here, so nothing can be mounted"
    if fuse and os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "not root, and no fusermount3 to mount with"
    return ""


def need(*programs, fuse=False):
    """For one test: skips it when something is lacking."""
    reason = lacking(*programs, fuse=fuse)
    if reason:
        raise unittest.SkipTest(reason)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def wait_for(condition, what, deadline=DEADLINE):
    """Polls `condition` until it returns something true, and returns that."""
    end = time.monotonic() + deadline
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline} s in vain for {what}")
        time.sleep(0.02)


class Failed(AssertionError):
    """A command ended otherwise than it should have."""


class Sandbox:
    def __init__(self, **environment):
        self.folder = tempfile.mkdtemp(prefix="zht-e2e-")
        self.data = os.path.join(self.folder, "data")
        self.environment = dict(os.environ, ZHT_DATA=self.data, HOME=self.folder, NO_COLOR="1", LC_ALL="C.UTF-8",
                                XDG_DATA_HOME=os.path.join(self.folder, "xdg"),
                                PATH=BIN + os.pathsep + os.environ.get("PATH", "/usr/bin:/bin"))
        self.environment.pop("ZHT_CLUSTER", None)
        self.environment.update(environment)
        self.mounts = []

    def __enter__(self):
        # A SIGTERM (ctest's time-out) becomes an exception, so that __exit__ runs.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and not issubclass(kind, unittest.SkipTest):
            self.show_log()
        self.clean_up()

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def make_certificates(self):
        """A cluster's own CA, and a certificate of it that all that is started from now on shows. (Of each key the sandbox's user
        alone is a reader.)"""
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")
        with open(self.path("names"), "w", encoding="ascii") as file:
            file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        for command in (("req", "-x509", *key, "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "3"),
                        ("req", *key, "node.key", "-out", "node.csr", "-subj", "/CN=node"),
                        ("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "node.pem",
                         "-days", "3", "-extfile", "names")):
            self.run("openssl", *command)
        os.chmod(self.path("node.key"), 0o600)
        self.environment.update(ZHT_TLS_CERTIFICATE=self.path("node.pem"), ZHT_TLS_KEY=self.path("node.key"),
                                ZHT_TLS_CA=self.path("ca.pem"))

    # Processes ------------------------------------------------------------------------------------------------------

    def start(self, *argv, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        environment = dict(self.environment, **options.pop("env", {}))
        return subprocess.Popen([str(a) for a in argv], env=environment, cwd=options.pop("cwd", self.folder), **options)

    def run(self, *argv, expect=0, input=None, timeout=DEADLINE, **options):
        """Runs a command to its end and returns (stdout, stderr) as text. `expect`: its exit status, None: any."""
        # The background node must not hold our pipes open: output goes to files.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
            if input is not None:
                given.write(input if isinstance(input, bytes) else input.encode())
                given.seek(0)
            process = self.start(*argv, stdin=given, stdout=out, stderr=err, **options)
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = "a time-out"
            out.seek(0)
            err.seek(0)
            stdout, stderr = out.read().decode(errors="replace"), err.read().decode(errors="replace")
        self.status = status
        if expect is not None and status != expect:
            raise Failed(f"{' '.join(map(str, argv))}: ended with {status}, not {expect}\n"
                         f"stdout: {stdout[-2000:]}\nstderr: {stderr[-2000:]}")
        return stdout, stderr

    def out(self, *argv, **options):
        return self.run(*argv, **options)[0].rstrip("\n")

    def json(self, *argv, **options):
        text = self.out(*argv, **options)
        try:
            return json.loads(text)
        except ValueError as error:
            raise Failed(f"{' '.join(map(str, argv))}: not one JSON value ({error}): {text[:500]}") from error

    def node_pid(self):
        """Process id of the sandbox's node, or None when none runs."""
        try:
            with open(os.path.join(self.data, "node.lock"), encoding="ascii", errors="replace") as file:
                pid = int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if pid in self.processes() else None

    def service_pid(self, name):
        """Process id of a service of the node (a MATRIX agent, a mount), or None when it does not run."""
        try:
            with open(os.path.join(self.data, "services", name + ".lock"), encoding="ascii", errors="replace") as file:
                pid = int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if pid in self.processes() else None

    def kill_node(self, deadline=DEADLINE):
        """kill -9 of the node; waits until it is gone. Returns its pid."""
        pid = wait_for(self.node_pid, "a running node", deadline)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        wait_for(lambda: not alive(pid), f"the end of process {pid}")
        return pid

    def processes(self):
        """Every live process that was started in this sandbox: {pid: command line}."""
        marker = b"ZHT_DATA=" + self.data.encode()
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if marker not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if alive(int(name)):
                found[int(name)] = command
        return found

    # FusionFS -------------------------------------------------------------------------------------------------------

    def mount(self, name="mnt", *options):
        point = self.path(name)
        if not self.mounted(point):  # one whose mount has died is there, and cannot be looked at
            os.makedirs(point, exist_ok=True)
        self.mounts.append(point)
        self.run("fusionfs", "mount", *options, point)
        wait_for(lambda: self.mounted(point), f"a mount at {point}")
        return point

    def umount(self, point):
        self.run("fusionfs", "umount", point)
        wait_for(lambda: not self.mounted(point), f"the end of the mount at {point}")

    @staticmethod
    def mounted(point):
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            return any(line.split(" ")[1] == point for line in file)

    def all_mounts(self):
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            return [line.split(" ")[1] for line in file if line.split(" ")[1].startswith(self.folder + "/")]

    # The end --------------------------------------------------------------------------------------------------------

    def show_log(self):
        for name in ("node.log",):
            path = os.path.join(self.data, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    print(f"--- end of {name}\n{file.read()[-3000:]}---", file=sys.stderr)

    def clean_up(self):
        for point in reversed(self.all_mounts()):
            for command in (["fusermount3", "-u", "-z", point], ["umount", "-l", point]):
                if shutil.which(command[0]) and subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    break
        # Whoever watches over another (the node over its services) starts it again: so until none is left.
        end = time.monotonic() + 30
        while time.monotonic() < end:
            left = self.processes()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


GIVEN_PORTS = set()
# Below the ports that the kernel gives to connections, and begun elsewhere in each test program: several run at once.
# A node takes the ones behind its own for its instances.
PORTS = range(10_000, 32_000, 16)


def may_bind(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port():
    """A TCP port of 127.0.0.1 that nobody has at the moment, another each time: two nodes of a list are never given one."""
    start = os.getpid() * 97 + len(GIVEN_PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(start + step) % len(PORTS)]
        if port in GIVEN_PORTS or not all(may_bind(one) for one in range(port, port + 16)):
            continue
        GIVEN_PORTS.add(port)
        return port
    raise AssertionError("no TCP port is free")


def python_package(box, requirement):
    """Installs a package from the Python package index into the sandbox; returns the folder for PYTHONPATH."""
    folder = box.path("python-packages")
    for command in ([sys.executable, "-m", "pip"], ["pip3"]):
        if command[0] == "pip3" and shutil.which("pip3") is None:
            continue
        try:
            done = subprocess.run(command + ["install", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1",
                                             "--timeout", "15", "--target", folder, requirement],
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return folder
    raise unittest.SkipTest(f"{requirement} cannot be installed: no pip, or no package index")


def go_program(box, name):
    """Builds tests/e2e/<name>/ with Go, its modules from the module proxy; returns the program's path."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not os.path.exists(go):
        raise unittest.SkipTest("no Go on the path or in /usr/local/go")
    output = box.path(name)
    environment = dict(os.environ, GOFLAGS="-mod=mod -buildvcs=false", GOTOOLCHAIN="local")
    # The source is copied: the tree stays as it is.
    source = box.path(name + "-source")
    shutil.copytree(os.path.join(TREE, "tests", "e2e", name), source)
    try:
        done = subprocess.run([go, "mod", "download"], cwd=source, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=180, check=False)
    except subprocess.TimeoutExpired:
        raise unittest.SkipTest("the Go module proxy does not answer") from None
    if done.returncode != 0:
        raise unittest.SkipTest(f"the Go module proxy has no answer: {done.stderr.decode(errors='replace').strip()[-200:]}")
    done = subprocess.run([go, "build", "-mod=readonly", "-o", output, "."], cwd=source, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=600, check=False)
    if done.returncode != 0:
        raise Failed(f"{name} does not build: {done.stderr.decode(errors='replace')[-2000:]}")
    return output


class Pipe:
    """One `zht pipe` client: JSON operations in, JSON answers out, in order.

    Each line out is flushed before the next is asked for, so what was acknowledged is known whenever anything dies.
    """

    def __init__(self, box, *options):
        self.process = box.start("zht", "pipe", *options, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=open(box.path(f"pipe-{id(self)}.err"), "wb"))

    def send(self, **operation):
        self.process.stdin.write(json.dumps(operation).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"zht pipe ended with {self.process.wait()} before its answer")
        return json.loads(line)

    def ask(self, **operation):
        self.send(**operation)
        return self.receive()

    def close(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)


def value_of(answer):
    """The bytes of an answer's value, whichever way they were carried; None without one."""
    if answer.get("value") is not None:
        return answer["value"].encode()
    if answer.get("value_b64") is not None:
        return base64.b64decode(answer["value_b64"])
    return None


def main(*programs, fuse=False):
    """For a whole test program: exit status 77, and the reasons, when any of its tests was skipped and none failed."""
    reason = lacking("zht", *programs, fuse=fuse)
    if reason:
        print("skipped: " + reason)
        sys.exit(SKIP)
    run_tests()


def run_tests(verbosity=2):
    """unittest.main(), which says 0 where tests were skipped; this says 77."""
    result = unittest.main(verbosity=verbosity, warnings="ignore", exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    for test, reason in result.skipped:
        print(f"skipped: {test.id().removeprefix('__main__.')}: {reason}", flush=True)
    sys.exit(SKIP if result.skipped else 0)

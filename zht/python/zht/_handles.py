"""Handles of libzht: who owns which, and that none is used after it was closed, or in a forked child."""
from __future__ import annotations

import ctypes
import itertools
import os
import select
import threading
import time
import weakref

from ._library import FAILED, Bytes, NodeOptions, Options, last_error, lib, provide_program
from ._types import Error, Invalid, Operation, Outcome, Unavailable, _millis, answer_at, error_of

_FIRST_BUFFER = 64 << 10
_LONGEST_WAIT_MS = 3_600_000

_handles: weakref.WeakSet[Connection | Node] = weakref.WeakSet()


def _forget_all() -> None:
    # In a forked child the threads behind the handles are not there: nothing of them may be called, closing included.
    for handle in list(_handles):
        handle.forget()


os.register_at_fork(after_in_child=_forget_all)


def _encoded(text: str | os.PathLike[str] | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _check(code: int) -> None:
    if code != 0:
        raise error_of(code, last_error())


class Queue:
    """Answers of one thread, or of one event loop. Its methods are called by that one alone, except free()."""

    def __init__(self, client: int) -> None:
        handle = ctypes.c_void_p()
        _check(lib.zht_queue_make(client, ctypes.byref(handle)))
        self.handle = handle.value
        self.descriptor: int = lib.zht_queue_descriptor(self.handle)
        self.busy = False
        self.needed = ctypes.c_size_t()
        self._needed = ctypes.byref(self.needed)
        self.grow(_FIRST_BUFFER)

    def grow(self, size: int) -> None:
        self.size = size
        self.buffer = (ctypes.c_char * size)()
        self.view = memoryview(self.buffer).cast("B")

    def call(self, tag: int, flat: bytes) -> Outcome | None:
        """The answer; None: it will come through the queue."""
        size = lib.zht_queue_call_flat(self.handle, flat, len(flat), self.buffer, self.size, self._needed)
        if size == FAILED:
            raise Invalid(last_error())
        if size == 0:
            return None
        return answer_at(self.view, 0)[1]

    def submit(self, flat: bytes) -> None:
        _check(lib.zht_queue_submit_flat(self.handle, flat, len(flat)))

    def take(self) -> list[tuple[int, Outcome]]:
        """All answers that are there."""
        answers: list[tuple[int, Outcome]] = []
        while True:
            size = lib.zht_queue_take_flat(self.handle, self.buffer, self.size, self._needed)
            if size == 0:
                if self.needed.value == 0:
                    return answers
                self.grow(max(self.needed.value, 2 * self.size))
                continue
            at = 0
            while at < size:
                tag, outcome, at = answer_at(self.view, at)
                answers.append((tag, outcome))
            if self.size > 64 * _FIRST_BUFFER:
                self.grow(_FIRST_BUFFER)

    def wait(self, tags: set[int]) -> dict[int, Outcome]:
        """Waits for the answers of all `tags`. Signals get through: on an exception of theirs what can be is cancelled."""
        answers: dict[int, Outcome] = {}
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        try:
            while len(answers) < len(tags):
                poll.poll(_LONGEST_WAIT_MS)
                answers.update([answer for answer in self.take() if answer[0] in tags])
        except BaseException:
            for tag in tags - answers.keys():
                lib.zht_queue_cancel(self.handle, tag)
            raise
        return answers

    def free(self) -> None:
        handle, self.handle = self.handle, None
        lib.zht_queue_free(handle)


class Connection:
    """A zht_client and the queues over it. Any thread."""

    def __init__(self, handle: int) -> None:
        self.handle: int | None = handle
        self.gone = "the client is closed"
        self.tags = itertools.count(1)
        self._lock = threading.Lock()
        self._queues: list[tuple[weakref.ref[threading.Thread] | None, Queue]] = []
        self._local = threading.local()
        self.partition_count: int = lib.zht_partition_count(handle)
        _handles.add(self)

    @staticmethod
    def open(cluster: str | None, data_folder: str | os.PathLike[str] | None, timeout: float, connect_timeout: float,
             start: bool, quiet: bool, max_in_flight: int) -> Connection:
        options = Options(cluster=_encoded(cluster), data_folder=_encoded(data_folder), timeout_ms=_millis(timeout),
                          connect_timeout_ms=_millis(connect_timeout), no_start=not start, quiet=quiet,
                          max_in_flight=max_in_flight)
        if start and cluster is None and (data_folder is not None or "ZHT_CLUSTER" not in os.environ):
            provide_program()
        handle = ctypes.c_void_p()
        _check(lib.zht_connect(ctypes.byref(options), ctypes.byref(handle)))
        assert handle.value is not None
        return Connection(handle.value)

    def partition_of(self, key: bytes) -> int:
        return int(lib.zht_partition_of(Bytes(key, len(key)), self.partition_count))

    def make_queue(self, of_thread: bool) -> Queue:
        with self._lock:
            if self.handle is None:
                raise Unavailable(self.gone)
            queue = Queue(self.handle)
            if of_thread:
                # Those of ended threads go with the next one that is made.
                for owner, one in self._queues:
                    if owner is not None and owner() is None:
                        one.free()
                self._queues = [(owner, one) for owner, one in self._queues if one.handle is not None]
            self._queues.append((weakref.ref(threading.current_thread()) if of_thread else None, queue))
            return queue

    def queue(self) -> Queue:
        """This thread's."""
        try:
            queue: Queue = self._local.queue
        except AttributeError:
            queue = self._local.queue = self.make_queue(True)
        return queue

    def call(self, operation: Operation, timeout: float | None) -> Outcome:
        queue = self.queue()
        if queue.busy:
            raise Error("a client was called from a signal handler that interrupted its own call; use another client there")
        queue.busy = True  # seen by close() before it frees anything
        try:
            if self.handle is None:
                raise Unavailable(self.gone)
            tag = next(self.tags)
            outcome = queue.call(tag, operation.flat(tag, _millis(timeout)))
            return outcome if outcome is not None else queue.wait({tag})[tag]
        finally:
            queue.busy = False

    def call_all(self, operations: list[Operation], timeout: float | None) -> list[Outcome]:
        queue = self.queue()
        if queue.busy:
            raise Error("a client was called from a signal handler that interrupted its own call; use another client there")
        queue.busy = True
        try:
            if self.handle is None:
                raise Unavailable(self.gone)
            ms = _millis(timeout)
            tags = [next(self.tags) for _ in operations]
            queue.submit(b"".join([one.flat(tag, ms) for tag, one in zip(tags, operations)]))
            answers = queue.wait(set(tags))
            return [answers[tag] for tag in tags]
        finally:
            queue.busy = False

    def close(self) -> None:
        with self._lock:
            handle, self.handle = self.handle, None
            if handle is None:
                return
            queues, self._queues = self._queues, []
        for _, queue in queues:
            while queue.busy:  # another thread's call ends first; its time-out bounds that
                time.sleep(0.001)
            if queue.handle is not None:
                queue.free()
        lib.zht_close(handle)

    def forget(self) -> None:
        self.handle = None
        self.gone = "this client was made before the process forked; connect anew in the child"
        self._lock = threading.Lock()
        self._queues = []

    def __del__(self) -> None:
        try:
            self.close()
        except AttributeError:  # it was never whole
            pass


class Node:
    """A node inside this process: the store as a library.

    data_folder: where it keeps its data, made when absent; None: in memory alone. instances: threads that serve, 0: what
    the folder has, or one per core. durability: "interval" (survives any process crash at once, a loss of power up to
    sync_interval seconds), "always" or "none". local_socket: let other processes of this user find it through its folder.
    listen, resp: "host:port" to serve clients, and Redis clients, over TCP (port 0: any).

        with zht.Node() as node, node.client() as client:
            client.insert("greeting", "hello")

    Raises Conflict (another node has the folder), Invalid, Corrupt, NoSpace, StoreFailed, Unsupported.
    """

    def __init__(self, data_folder: str | os.PathLike[str] | None = None, *, instances: int = 0, partitions: int = 0,
                 durability: str = "interval", sync_interval: float = 1.0, max_value_size: int = 0,
                 local_socket: bool = False, listen: str | None = None, resp: str | None = None) -> None:
        self._handle: int | None = None
        kinds = {"interval": 0, "always": 1, "none": 2}
        if durability not in kinds:
            raise Invalid(f"durability is {durability!r}; interval, always or none")
        options = NodeOptions(data_folder=_encoded(data_folder), instances=instances, partitions=partitions,
                              durability=kinds[durability], sync_interval_ms=_millis(sync_interval),
                              max_value_size=max_value_size, local_socket=local_socket, listen=_encoded(listen),
                              resp=_encoded(resp))
        handle = ctypes.c_void_p()
        _check(lib.zht_node_start(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value
        _handles.add(self)

    def _connection(self) -> Connection:
        handle = ctypes.c_void_p()
        _check(lib.zht_node_client(self._running(), ctypes.byref(handle)))
        assert handle.value is not None
        return Connection(handle.value)

    def _running(self) -> int:
        if self._handle is None:
            raise Unavailable("the node has stopped")
        return self._handle

    @property
    def listen(self) -> str:
        """Where it listens for clients ("": nowhere)."""
        return str(lib.zht_node_listen(self._running()).decode())

    @property
    def resp(self) -> str:
        """Where it listens for Redis clients ("": nowhere)."""
        return str(lib.zht_node_resp(self._running()).decode())

    def stop(self) -> None:
        """Ends it; its clients' operations are Unavailable from then on. Fine when it has stopped."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.zht_node_stop(handle)

    def forget(self) -> None:
        self._handle = None

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        try:
            self.stop()
        except AttributeError:
            pass

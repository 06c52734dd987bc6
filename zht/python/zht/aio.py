"""The asyncio client: the same operations as zht.Client's, awaited.

    async with await zht.aio.connect() as client:
        await client.insert("greeting", "hello")
        values = await asyncio.gather(*(client.lookup(f"k{i}") for i in range(100)))   # leave together

What the tasks of one turn of the loop ask for leaves in one write to each instance; answers come through one descriptor that
the loop watches. No threads of Python's are involved.
"""
from __future__ import annotations

import asyncio
import os
from typing import Any, AsyncIterator, Iterable, Mapping

from ._handles import Connection, Queue
from ._library import lib
from ._types import (Appended, ConditionLike, Data, Entry, Operation, Outcome, Range, Swap, Unavailable, Value, _millis, appended_of,
                     batch_of, partitions_of, result_of, swap_of, value_of, value_or_none, version_of)

_MAX_IN_FLIGHT = 50_000
_SCANNED_AT_ONCE = 64  # partitions


class Client:
    """An asyncio client of one event loop; made by connect(), or from a running loop with zht.aio.Client(), which blocks the
    loop while it connects. Arguments and errors: zht.Client's. A task that is cancelled while it waits cancels its request:
    what that was to change may have happened. Not for use after os.fork()."""

    def __init__(self, cluster: str | None = None, *, data_folder: str | os.PathLike[str] | None = None, timeout: float = 10.0,
                 connect_timeout: float = 2.0, start: bool = True, quiet: bool = False) -> None:
        self._begin(Connection.open(cluster, data_folder, timeout, connect_timeout, start, quiet, 0))

    def _begin(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: Queue = connection.make_queue(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._queue.descriptor, self._take)
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._outgoing: list[bytes] = []
        self._room: asyncio.Event | None = None  # while too many are under way

    @classmethod
    def _over(cls, connection: Connection) -> Client:
        client = cls.__new__(cls)
        client._begin(connection)
        return client

    def _take(self) -> None:
        waiting = self._waiting
        for tag, outcome in self._queue.take():
            future = waiting.pop(tag, None)
            if future is not None and not future.done():
                future.set_result(outcome)
        if self._room is not None and len(waiting) < _MAX_IN_FLIGHT:
            self._room.set()
            self._room = None

    def _send(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._queue.handle is not None and outgoing:
            self._queue.submit(b"".join(outgoing))

    def _begin_one(self, operation: Operation, timeout_ms: int) -> tuple[int, asyncio.Future[Outcome]]:
        if self._connection.handle is None:
            raise Unavailable(self._connection.gone)
        tag = next(self._connection.tags)
        future = self._waiting[tag] = self._loop.create_future()
        if not self._outgoing:
            self._loop.call_soon(self._send)  # after the other tasks of this turn have said what they want
        self._outgoing.append(operation.flat(tag, timeout_ms))
        return tag, future

    async def _for_room(self) -> None:
        while len(self._waiting) >= _MAX_IN_FLIGHT:
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def _give_up(self, tag: int) -> None:
        if self._waiting.pop(tag, None) is not None and self._queue.handle is not None:
            self._send()
            lib.zht_queue_cancel(self._queue.handle, tag)

    async def call(self, operation: Operation, timeout: float | None = None) -> Outcome:
        """Any operation; raises nothing of its outcome. timeout: in seconds, None: the client's."""
        if len(self._waiting) >= _MAX_IN_FLIGHT:
            await self._for_room()
        tag, future = self._begin_one(operation, _millis(timeout))
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up(tag)
            raise

    async def call_all(self, operations: Iterable[Operation], timeout: float | None = None) -> list[Outcome]:
        """Many at once, each by itself; answers in order, errors among them."""
        begun: list[tuple[int, asyncio.Future[Outcome]]] = []
        try:
            for one in operations:
                if len(self._waiting) >= _MAX_IN_FLIGHT:
                    await self._for_room()
                begun.append(self._begin_one(one, _millis(timeout)))
            return [await future for _, future in begun]
        except asyncio.CancelledError:
            for tag, _ in begun:
                self._give_up(tag)
            raise

    async def insert(self, key: Data, value: Data, *, ttl: float | None = None) -> int:
        """Sets the value; after `ttl` seconds the key is absent again. Returns the key's new version."""
        return version_of(await self.call(Operation.insert(key, value, ttl=ttl)))

    async def insert_new(self, key: Data, value: Data, *, ttl: float | None = None) -> int:
        """As insert, where the key is absent; else raises Conflict."""
        return version_of(await self.call(Operation.insert_new(key, value, ttl=ttl)))

    async def lookup(self, key: Data, *, range: Range | None = None) -> Value:
        """The value, or the part of it that `range` names, with its version. Raises NotFound."""
        return value_of(await self.call(Operation.lookup(key, range=range)))

    async def lookup_eventual(self, key: Data, *, at_least: int = 0, range: Range | None = None) -> Value:
        """As lookup, of any copy of the key's partition: it may be old. Only a copy answers that has seen the partition's change
        with version `at_least`: who gives the newest version he has seen never goes back."""
        return value_of(await self.call(Operation.lookup_eventual(key, at_least=at_least, range=range)))

    async def get(self, key: Data) -> bytes | None:
        """The value; None: absent."""
        found = value_or_none(await self.call(Operation.lookup(key)))
        return None if found is None else found.value

    async def remove(self, key: Data, *, missing_ok: bool = False) -> int:
        """Removes the key. Raises NotFound, unless `missing_ok`."""
        return version_of(await self.call(Operation.remove(key, missing_ok=missing_ok)))

    async def append(self, key: Data, value: Data, *, limit: int = 0) -> Appended:
        """Adds a fragment at the end, in constant time; an absent key is made. Raises NoSpace where the value would grow past
        `limit` bytes (0: no such limit)."""
        return appended_of(await self.call(Operation.append(key, value, limit=limit)))

    async def cswap(self, key: Data, expected: ConditionLike, desired: Data, *, ttl: float | None = None) -> Swap:
        """Sets the value if `expected` holds: a Condition, bytes or str that the value equals, None for an absent key. The
        result is true when it swapped, and says what is there when not."""
        return swap_of(await self.call(Operation.cswap(key, expected, desired, ttl=ttl)))

    async def cswap_remove(self, key: Data, expected: ConditionLike) -> Swap:
        """Removes the key if `expected` holds."""
        return swap_of(await self.call(Operation.cswap_remove(key, expected)))

    async def callback(self, key: Data, condition: ConditionLike, timeout: float | None = None, *,
                 range: Range | None = None) -> Value:
        """Waits until `condition` holds, for `timeout` seconds (None: the client's); then raises Timeout. No change is
        missed, and a restart of the node is waited through."""
        return value_of(await self.call(Operation.callback(key, condition, range=range), timeout))

    async def update(self, key: Data, procedure: str, arguments: Data = b"") -> bytes:
        """Runs a procedure at the instance that owns `key`, atomically: "add", "max", "set_if", "list_take", or a service's."""
        return result_of(await self.call(Operation.update(key, procedure, arguments)))

    async def batch(self, operations: Iterable[Operation]) -> list[Outcome]:
        """All or nothing, on keys of one partition (give them one {tag}). Raises the failed one's error; its `outcome` has
        failed_index, and what each operation up to it found."""
        return batch_of(await self.call(Operation.batch(operations)))

    async def lookup_many(self, keys: Iterable[Data]) -> list[Value | None]:
        """Each key's value, None where absent; all at once, one write to each instance."""
        return [value_or_none(one) for one in await self.call_all(Operation.lookup(key) for key in keys)]

    async def insert_many(self, pairs: Mapping[Any, Data] | Iterable[tuple[Data, Data]], *, ttl: float | None = None) -> list[int]:
        """Sets each pair by itself (no atomicity between them; see batch), all at once. Raises the first one's error after all
        were answered; call_all tells each one's."""
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        return [version_of(one) for one in await self.call_all(Operation.insert(key, value, ttl=ttl) for key, value in items)]

    async def scan(self, prefix: Data = b"", *, page: int = 1000) -> AsyncIterator[Entry]:
        """Every key that begins with `prefix`, in no order, with its version and size; `page` entries a request."""
        connection = self._connection
        partitions = partitions_of(prefix, connection.partition_count, connection.partition_of)
        for at in range(0, len(partitions), _SCANNED_AT_ONCE):
            some = partitions[at:at + _SCANNED_AT_ONCE]
            outcomes = await self.call_all(Operation.scan(one, 0, prefix, page) for one in some)
            for partition, outcome in zip(some, outcomes):
                for entry in outcome.check().entries:
                    yield entry
                while outcome.cursor:
                    outcome = (await self.call(Operation.scan(partition, outcome.cursor, prefix, page))).check()
                    for entry in outcome.entries:
                        yield entry

    def close(self) -> None:
        """Ends the client; tasks that still wait get Unavailable. Fine when it has ended."""
        if self._connection.handle is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._queue.descriptor)
        self._connection.close()
        for future in self._waiting.values():
            if not future.done() and not self._loop.is_closed():
                future.set_exception(Unavailable("the client was closed; what was asked may have happened"))
        self._waiting.clear()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def connect(cluster: str | None = None, *, data_folder: str | os.PathLike[str] | None = None, timeout: float = 10.0,
                  connect_timeout: float = 2.0, start: bool = True, quiet: bool = False) -> Client:
    """A client of the running loop, connected without blocking it. Arguments and errors: zht.Client's."""
    loop = asyncio.get_running_loop()
    connection = await loop.run_in_executor(
        None, lambda: Connection.open(cluster, data_folder, timeout, connect_timeout, start, quiet, 0))
    return Client._over(connection)

"""Blocking and asyncio clients of ZHT, the zero-hop key-value store.

    import zht

    with zht.Client() as client:                 # the local node, started when none runs
        client.insert("greeting", "hello")
        client.append("greeting", ", world")
        print(client.lookup("greeting").text())  # hello, world

asyncio: zht.aio.Client. A node inside this process: zht.Node. Keys and values are bytes or str (UTF-8); values come back as
bytes. A retried request executes once; zht.Timeout means that a change may have happened, every other error that it did not.
"""
from __future__ import annotations

import os
from typing import Any, Iterable, Iterator, Mapping

from ._handles import Connection, Node as _Node
from ._library import lib as _lib
from ._types import (Appended, Code, Condition, ConditionLike, Conflict, Corrupt, Data, Entry, Error, Invalid, NoSpace, NotFound,
                     Operation, Outcome, Range, StoreFailed, Swap, Timeout, Unavailable, Unsupported, Value, appended_of,
                     batch_of, partitions_of, result_of, swap_of, value_of, value_or_none, version_of)

__all__ = ["Appended", "Client", "Code", "Condition", "Conflict", "Corrupt", "Entry", "Error", "Invalid", "NoSpace", "Node",
           "NotFound", "Operation", "Outcome", "Range", "StoreFailed", "Swap", "Timeout", "Unavailable", "Unsupported", "Value",
           "aio"]
__version__ = str(_lib.zht_version_text().decode())

_SCANNED_AT_ONCE = 64  # partitions


class Client:
    """A blocking client. Any thread may use it, all at once.

    cluster: "host:port[,host:port...]" or the path of a file of such; None: without `data_folder` $ZHT_CLUSTER, else the local node of
    data_folder (None: $ZHT_DATA, else ~/.local/share/zht), started when none runs unless start is False; quiet: without
    saying so on stderr. timeout: seconds for an operation, retries included. connect_timeout: seconds for a connection.

    Ctrl-C gets through a call that waits, and cancels it: what it was to change may have happened. After os.fork() the child
    must make a client of its own; the parent's raises Unavailable there.
    Every operation may raise Unavailable, Timeout, Invalid, NoSpace, StoreFailed, Corrupt, Unsupported.
    """

    def __init__(self, cluster: str | None = None, *, data_folder: str | os.PathLike[str] | None = None, timeout: float = 10.0,
                 connect_timeout: float = 2.0, start: bool = True, quiet: bool = False) -> None:
        self._connection = Connection.open(cluster, data_folder, timeout, connect_timeout, start, quiet, 0)

    @classmethod
    def _over(cls, connection: Connection) -> Client:
        client = cls.__new__(cls)
        client._connection = connection
        return client

    def call(self, operation: Operation, timeout: float | None = None) -> Outcome:
        """Any operation; raises nothing of its outcome. timeout: in seconds, None: the client's."""
        return self._connection.call(operation, timeout)

    def call_all(self, operations: Iterable[Operation], timeout: float | None = None) -> list[Outcome]:
        """Many at once, each by itself; answers in order, errors among them."""
        return self._connection.call_all(list(operations), timeout)

    def insert(self, key: Data, value: Data, *, ttl: float | None = None) -> int:
        """Sets the value; after `ttl` seconds the key is absent again. Returns the key's new version."""
        return version_of(self.call(Operation.insert(key, value, ttl=ttl)))

    def insert_new(self, key: Data, value: Data, *, ttl: float | None = None) -> int:
        """As insert, where the key is absent; else raises Conflict."""
        return version_of(self.call(Operation.insert_new(key, value, ttl=ttl)))

    def lookup(self, key: Data, *, range: Range | None = None) -> Value:
        """The value, or the part of it that `range` names, with its version. Raises NotFound."""
        return value_of(self.call(Operation.lookup(key, range=range)))

    def lookup_eventual(self, key: Data, *, at_least: int = 0, range: Range | None = None) -> Value:
        """As lookup, of any copy of the key's partition: it may be old. Only a copy answers that has seen the partition's change
        with version `at_least`: who gives the newest version he has seen never goes back."""
        return value_of(self.call(Operation.lookup_eventual(key, at_least=at_least, range=range)))

    def get(self, key: Data) -> bytes | None:
        """The value; None: absent."""
        found = value_or_none(self.call(Operation.lookup(key)))
        return None if found is None else found.value

    def remove(self, key: Data, *, missing_ok: bool = False) -> int:
        """Removes the key. Raises NotFound, unless `missing_ok`."""
        return version_of(self.call(Operation.remove(key, missing_ok=missing_ok)))

    def append(self, key: Data, value: Data, *, limit: int = 0) -> Appended:
        """Adds a fragment at the end, in constant time; an absent key is made. Raises NoSpace where the value would grow past
        `limit` bytes (0: no such limit)."""
        return appended_of(self.call(Operation.append(key, value, limit=limit)))

    def cswap(self, key: Data, expected: ConditionLike, desired: Data, *, ttl: float | None = None) -> Swap:
        """Sets the value if `expected` holds: a Condition, bytes or str that the value equals, None for an absent key. The
        result is true when it swapped, and says what is there when not."""
        return swap_of(self.call(Operation.cswap(key, expected, desired, ttl=ttl)))

    def cswap_remove(self, key: Data, expected: ConditionLike) -> Swap:
        """Removes the key if `expected` holds."""
        return swap_of(self.call(Operation.cswap_remove(key, expected)))

    def callback(self, key: Data, condition: ConditionLike, timeout: float | None = None, *,
                 range: Range | None = None) -> Value:
        """Waits until `condition` holds, for `timeout` seconds (None: the client's); then raises Timeout. No change is
        missed, and a restart of the node is waited through."""
        return value_of(self.call(Operation.callback(key, condition, range=range), timeout))

    def update(self, key: Data, procedure: str, arguments: Data = b"") -> bytes:
        """Runs a procedure at the instance that owns `key`, atomically: "add", "max", "set_if", "list_take", or a service's."""
        return result_of(self.call(Operation.update(key, procedure, arguments)))

    def batch(self, operations: Iterable[Operation]) -> list[Outcome]:
        """All or nothing, on keys of one partition (give them one {tag}). Raises the failed one's error; its `outcome` has
        failed_index, and what each operation up to it found."""
        return batch_of(self.call(Operation.batch(operations)))

    def lookup_many(self, keys: Iterable[Data]) -> list[Value | None]:
        """Each key's value, None where absent; all at once, one write to each instance."""
        return [value_or_none(one) for one in self.call_all(Operation.lookup(key) for key in keys)]

    def insert_many(self, pairs: Mapping[Any, Data] | Iterable[tuple[Data, Data]], *, ttl: float | None = None) -> list[int]:
        """Sets each pair by itself (no atomicity between them; see batch), all at once. Raises the first one's error after all
        were answered; call_all tells each one's."""
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        return [version_of(one) for one in self.call_all(Operation.insert(key, value, ttl=ttl) for key, value in items)]

    def scan(self, prefix: Data = b"", *, page: int = 1000) -> Iterator[Entry]:
        """Every key that begins with `prefix`, in no order, with its version and size; `page` entries a request."""
        connection = self._connection
        partitions = partitions_of(prefix, connection.partition_count, connection.partition_of)
        for at in range(0, len(partitions), _SCANNED_AT_ONCE):
            some = partitions[at:at + _SCANNED_AT_ONCE]
            for partition, outcome in zip(some, self.call_all(Operation.scan(one, 0, prefix, page) for one in some)):
                yield from outcome.check().entries
                while outcome.cursor:
                    outcome = self.call(Operation.scan(partition, outcome.cursor, prefix, page)).check()
                    yield from outcome.entries

    def close(self) -> None:
        """Ends the client; fine when it has ended. Calls under way in other threads are waited for."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Node(_Node):
    __doc__ = _Node.__doc__

    def client(self) -> Client:
        """A client of this node, without sockets; any number. It may outlive the node."""
        return Client._over(self._connection())

    def __enter__(self) -> Node:
        return self


from . import aio  # noqa: E402  (it stands on the names above)

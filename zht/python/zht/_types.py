"""What operations are made of and answered with: conditions, ranges, operations, outcomes, errors; and their bytes.

The bytes are those of the C API's flat form (zht/c/zht.h) and of batches on the wire (zht/wire/PROTOCOL.md).
"""
from __future__ import annotations

import enum
import struct
from typing import Callable, Iterable, NamedTuple, Sequence, Union

Data = Union[str, bytes, bytearray, memoryview]
"""A key or a value: bytes as they are, a str as UTF-8."""


class Code(enum.IntEnum):
    OK = 0
    NOT_FOUND = 1
    CONFLICT = 2
    INVALID = 3
    UNAVAILABLE = 4
    TIMEOUT = 5
    NO_SPACE = 6
    CORRUPT = 7
    IO = 8
    UNSUPPORTED = 9


class Error(Exception):
    """Any failure of an operation. `code` says which, `outcome` has what the store said besides, where it said something."""

    code: Code = Code.IO

    def __init__(self, message: str = "", outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.outcome = outcome

    def __str__(self) -> str:
        return self.message


class NotFound(Error, LookupError):
    """There is no such key."""

    code = Code.NOT_FOUND


class Conflict(Error):
    """A comparison failed, or the key is already there. Nothing changed; `outcome` has what is there now."""

    code = Code.CONFLICT


class Invalid(Error, ValueError):
    """This argument can never work; the message names it."""

    code = Code.INVALID


class Unavailable(Error, ConnectionError):
    """Nobody to serve it now, or cancelled. Nothing changed; the same call may succeed later."""

    code = Code.UNAVAILABLE


class Timeout(Error, TimeoutError):
    """No definite answer in time: the change MAY have happened. Of callback: the condition did not hold in time."""

    code = Code.TIMEOUT


class NoSpace(Error):
    """A disk or a configured bound is full. Nothing changed."""

    code = Code.NO_SPACE


class Corrupt(Error):
    """Stored bytes are wrong."""

    code = Code.CORRUPT


class StoreFailed(Error):
    """A system call of the store failed: it only reads until it is started again."""

    code = Code.IO


class Unsupported(Error):
    """The node speaks a newer protocol than this build."""

    code = Code.UNSUPPORTED


_ERRORS: dict[int, type[Error]] = {one.code: one for one in (NotFound, Conflict, Invalid, Unavailable, Timeout, NoSpace, Corrupt,
                                                            StoreFailed, Unsupported)}


def error_of(code: int, message: str, outcome: Outcome | None = None) -> Error:
    return _ERRORS.get(code, Error)(message, outcome)


class Value(NamedTuple):
    """What lookup and callback return. `version` is 0 when a callback waited for the key to be absent."""

    value: bytes
    version: int
    size: int = 0                    # of the whole value
    offset: int = 0                  # of value[0] within it
    fragments: tuple[int, ...] = ()  # sizes; empty when there is one

    def text(self) -> str:
        """The value as UTF-8."""
        return self.value.decode()


class Appended(NamedTuple):
    """What append returns."""

    size: int            # of the value now
    fragment_index: int  # of this fragment, from 0
    version: int


class Swap(NamedTuple):
    """What cswap returns; true when it swapped. Else `current` is what is there instead (None: absent)."""

    swapped: bool
    version: int
    current: bytes | None

    def __bool__(self) -> bool:
        return self.swapped


class Entry(NamedTuple):
    """What scan finds."""

    key: bytes
    version: int
    size: int


class Outcome:
    """The answer to one operation, errors included: for batches and many operations at once."""

    # Most outcomes have the first seven alone.
    fragments: tuple[int, ...] = ()  # sizes of those inside `value`, when there is more than one
    fragment_count: int = 1          # of the whole value
    fragment_index: int = 0          # append: this fragment's, from 0
    outcomes: Sequence[Outcome] = () # of a batch
    failed_index: int = 0
    entries: Sequence[Entry] = ()    # of a scan
    cursor: int = 0

    def __init__(self, code: int, present: bool, version: int, size: int, offset: int, message: str, value: bytes) -> None:
        self.code = code
        self.present = present  # the key exists after the operation
        self.version = version
        self.size = size        # of the whole value
        self.offset = offset    # of value[0] within it
        self.message = message
        self.value = value

    @property
    def ok(self) -> bool:
        return self.code == 0

    def check(self) -> Outcome:
        """Itself when it is ok; else raises its error."""
        if self.code != 0:
            raise error_of(self.code, self.message, self)
        return self

    def __repr__(self) -> str:
        return f"Outcome({Code(self.code).name}, value={self.value!r}, version={self.version}, message={self.message!r})"


class Condition:
    """What a cswap expects to find and a callback waits for. Where one is expected, plain bytes or str stand for
    Condition.equals, and None for Condition.absent()."""

    __slots__ = ("field",)

    def __init__(self, kind: int, version: int = 0, value: bytes = b"") -> None:
        self.field = _CONDITION.pack(0x8001, 9 + len(value), kind, version) + value if kind else b""

    @staticmethod
    def absent() -> Condition:
        """The key is not there."""
        return Condition(1)

    @staticmethod
    def present() -> Condition:
        """The key is there, whatever its value."""
        return Condition(2)

    @staticmethod
    def equals(value: Data) -> Condition:
        """The key has this value."""
        return Condition(3, 0, _bytes(value))

    @staticmethod
    def at_version(version: int) -> Condition:
        """The key's last change is the one that made this version."""
        return Condition(4, version)

    @staticmethod
    def after_version(version: int) -> Condition:
        """The key's last change is later than `version`; a removal counts as a change."""
        return Condition(5, version)


ConditionLike = Union[Condition, Data, None]


class Range:
    """Which part of a value a lookup returns."""

    __slots__ = ("field",)

    def __init__(self, kind: int, offset: int = 0, size: int = 0) -> None:
        self.field = _RANGE.pack(0x8004, 17, kind, offset, size)

    @staticmethod
    def bytes(offset: int, size: int) -> Range:
        """`size` bytes at most from `offset` on."""
        return Range(1, offset, size)

    @staticmethod
    def tail(fragments: int) -> Range:
        """The last so many fragments."""
        return Range(2, 0, fragments)

    @staticmethod
    def nothing() -> Range:
        """Version and size only."""
        return Range(3)


_CONDITION = struct.Struct("<HIBQ")
_RANGE = struct.Struct("<HIBQQ")
_U64_FIELD = struct.Struct("<HIQ")
_U8_FIELD = struct.Struct("<HIB")
_FIELD = struct.Struct("<HI")
_HEAD = struct.Struct("<QII")      # tag, timeout in ms, partition
_START = struct.Struct("<BBI")     # kind, flags, size of the key
_U32 = struct.Struct("<I")
_TAG = struct.Struct("<Q")         # an answer's; the size that follows it is not needed: an outcome knows its own
_OUTCOME = struct.Struct("<BBQQQI")
_ENTRY = struct.Struct("<QQI")
_NOTHING = b"\0\0\0\0"
_NOTHINGS = _NOTHING + _NOTHING
_INSERT, _LOOKUP, _REMOVE, _APPEND, _CSWAP, _CALLBACK, _UPDATE, _BATCH, _SCAN = range(1, 10)


def _bytes(data: Data) -> bytes:
    if type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"a key or value is bytes or str, not {type(data).__name__}")


def _millis(seconds: float | None) -> int:
    """A time-out as it travels: 0 is "the default", so a positive one is at least 1."""
    if seconds is None:
        return 0
    if seconds < 0:
        raise Invalid(f"a time of {seconds} s is negative")
    return min(max(1, round(seconds * 1000)), 0xFFFFFFFF)


def _number(tag: int, value: int) -> bytes:
    if not 0 <= value < 1 << 64:
        raise Invalid(f"{value} is not a number from 0 to 2**64 - 1")
    return _U64_FIELD.pack(tag, 8, value) if value else b""


def _ttl(seconds: float | None) -> bytes:
    return _number(0x8002, _millis(seconds)) if seconds else b""


def _condition(condition: ConditionLike) -> bytes:
    if condition is None:
        return Condition.absent().field
    return condition.field if isinstance(condition, Condition) else Condition.equals(condition).field


class Operation:
    """One operation as a value: for batch(), call() and call_all(). Made by the functions below, named as the client's."""

    __slots__ = ("body", "partition")

    def __init__(self, kind: int, key: Data, value: Data = b"", extra: bytes = b"", flags: int = 0, partition: int = 0) -> None:
        if type(key) is not bytes:
            key = _bytes(key)
        if value:
            value = _bytes(value)
            self.body = b"".join((_START.pack(kind, flags, len(key)), key, _U32.pack(len(value)), value, _U32.pack(len(extra)), extra))
        elif extra:
            self.body = b"".join((_START.pack(kind, flags, len(key)), key, _NOTHING, _U32.pack(len(extra)), extra))
        else:
            self.body = _START.pack(kind, flags, len(key)) + key + _NOTHINGS
        self.partition = partition

    def flat(self, tag: int, timeout_ms: int) -> bytes:
        """As the library takes it."""
        return _HEAD.pack(tag, timeout_ms, self.partition) + self.body

    @staticmethod
    def insert(key: Data, value: Data, *, ttl: float | None = None) -> Operation:
        """Sets the value. ttl: in seconds, after which the key is absent; None: never."""
        return Operation(_INSERT, key, value, _ttl(ttl))

    @staticmethod
    def insert_new(key: Data, value: Data, *, ttl: float | None = None) -> Operation:
        """Sets the value of a key that is absent; Conflict when it is there."""
        return Operation(_INSERT, key, value, Condition.absent().field + _ttl(ttl))

    @staticmethod
    def lookup(key: Data, *, range: Range | None = None) -> Operation:
        """The value, or a part of it; NotFound when the key is absent."""
        return Operation(_LOOKUP, key, b"", range.field if range else b"")

    @staticmethod
    def lookup_eventual(key: Data, *, at_least: int = 0, range: Range | None = None) -> Operation:
        """Answered by any copy; see Client.lookup_eventual."""
        if at_least < 0:
            raise Invalid(f"at_least of {at_least} is negative")
        extra = Condition.after_version(at_least).field if at_least else b""
        return Operation(_LOOKUP, key, b"", extra + (range.field if range else b""), 4)

    @staticmethod
    def remove(key: Data, *, missing_ok: bool = False) -> Operation:
        """Removes the key; NotFound when it is absent, unless missing_ok."""
        return Operation(_REMOVE, key, b"", b"", 1 if missing_ok else 0)

    @staticmethod
    def append(key: Data, value: Data, *, limit: int = 0) -> Operation:
        """Adds a fragment to the value; NoSpace when it would grow past `limit` bytes (0: no limit)."""
        return Operation(_APPEND, key, value, _number(0x8003, limit))

    @staticmethod
    def cswap(key: Data, expected: ConditionLike, desired: Data, *, ttl: float | None = None) -> Operation:
        """Sets the value when the key is as expected; else Conflict, with what is there."""
        return Operation(_CSWAP, key, desired, _condition(expected) + _ttl(ttl))

    @staticmethod
    def cswap_remove(key: Data, expected: ConditionLike) -> Operation:
        """Removes the key when it is as expected."""
        return Operation(_CSWAP, key, b"", _condition(expected) + _U8_FIELD.pack(0x8009, 1, 1))

    @staticmethod
    def check(key: Data, expected: ConditionLike) -> Operation:
        """A cswap that changes nothing."""
        return Operation(_CSWAP, key, b"", _condition(expected) + _U8_FIELD.pack(0x8009, 1, 2))

    @staticmethod
    def callback(key: Data, condition: ConditionLike, *, range: Range | None = None) -> Operation:
        """Waits until the key is so; not within a batch."""
        return Operation(_CALLBACK, key, b"", _condition(condition) + (range.field if range else b""))

    @staticmethod
    def update(key: Data, procedure: str, arguments: Data = b"") -> Operation:
        """Runs a procedure of the store on the key; its result is the outcome's value."""
        name = procedure.encode()
        return Operation(_UPDATE, key, arguments, _FIELD.pack(0x8005, len(name)) + name)

    @staticmethod
    def batch(operations: Iterable[Operation]) -> Operation:
        """All of them or none, on keys of one partition, which one {tag} makes sure of."""
        bodies = [one.body for one in operations]
        inside = _U32.pack(len(bodies)) + b"".join(bodies)
        return Operation(_BATCH, b"", b"", _FIELD.pack(0x8006, len(inside)) + inside)

    @staticmethod
    def scan(partition: int, cursor: int = 0, prefix: Data = b"", limit: int = 0) -> Operation:
        """A page of a partition's keys; go on from the outcome's cursor until that is 0."""
        return Operation(_SCAN, prefix, b"", _number(0x8003, limit) + _number(0x8008, cursor), 0, partition)


def _extra(outcome: Outcome, data: memoryview) -> None:
    at = 0
    while at < len(data):
        tag, size = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        field = data[at:at + size]
        at += size
        if tag == 0x8020:
            outcome.fragments = struct.unpack(f"<{size // 4}I", field)
        elif tag == 0x0021:
            outcome.fragment_count, outcome.fragment_index = struct.unpack_from("<II", field)
        elif tag == 0x8022:
            (count,) = _U32.unpack_from(field)
            inside = 4
            outcomes = []
            for _ in range(count):
                one, inside = outcome_at(field, inside)
                outcomes.append(one)
            outcome.outcomes = outcomes
        elif tag == 0x0023:
            (outcome.failed_index,) = _U32.unpack_from(field)
        elif tag == 0x8024:
            (count,) = _U32.unpack_from(field)
            inside = 4
            entries = []
            for _ in range(count):
                version, whole, length = _ENTRY.unpack_from(field, inside)
                inside += _ENTRY.size
                entries.append(Entry(bytes(field[inside:inside + length]), version, whole))
                inside += length
            outcome.entries = entries
        elif tag == 0x8008:
            (outcome.cursor,) = struct.unpack_from("<Q", field)



def outcome_at(data: memoryview, at: int) -> tuple[Outcome, int]:
    code, present, version, size, offset, length = _OUTCOME.unpack_from(data, at)
    at += 30
    message = ""
    if length:
        message = str(data[at:at + length], "utf-8", "replace")
        at += length
    (length,) = _U32.unpack_from(data, at)
    at += 4
    end = at + length
    outcome = Outcome(code, present == 1, version, size, offset, message, bytes(data[at:end]))
    if not present:
        outcome.fragment_count = 0
    (length,) = _U32.unpack_from(data, end)
    end += 4
    if length:
        _extra(outcome, data[end:end + length])
        end += length
    return outcome, end


def answer_at(data: memoryview, at: int) -> tuple[int, Outcome, int]:
    """(tag, outcome, where the next answer begins)"""
    (tag,) = _TAG.unpack_from(data, at)
    outcome, end = outcome_at(data, at + 12)
    return tag, outcome, end


# --- an outcome as the client's methods return it ---

def version_of(outcome: Outcome) -> int:
    if outcome.code:
        outcome.check()
    return outcome.version


def value_of(outcome: Outcome) -> Value:
    if outcome.code:
        outcome.check()
    return Value(outcome.value, outcome.version if outcome.present else 0, outcome.size, outcome.offset, outcome.fragments)


def value_or_none(outcome: Outcome) -> Value | None:
    return None if outcome.code == Code.NOT_FOUND else value_of(outcome)


def appended_of(outcome: Outcome) -> Appended:
    outcome.check()
    return Appended(outcome.size, outcome.fragment_index, outcome.version)


def swap_of(outcome: Outcome) -> Swap:
    if outcome.code == Code.CONFLICT:
        return Swap(False, outcome.version, outcome.value if outcome.present else None)
    outcome.check()
    return Swap(True, outcome.version, None)


def result_of(outcome: Outcome) -> bytes:
    return outcome.check().value


def batch_of(outcome: Outcome) -> list[Outcome]:
    return list(outcome.check().outcomes)


def partitions_of(prefix: Data, count: int, partition_of: Callable[[bytes], int]) -> Sequence[int]:
    """Where keys that begin with `prefix` may be: a prefix that holds a whole {tag} names its partition."""
    data = _bytes(prefix)
    close = data.find(b"}")
    if data[:1] == b"{" and close > 1:
        return [partition_of(data)]
    return range(count)

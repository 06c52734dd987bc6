"""libzht.so: where it is, and the few functions of it that are called (zht/c/zht.h)."""
from __future__ import annotations

import ctypes
import os
import shutil
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

_HERE = Path(__file__).resolve().parent
FAILED = ctypes.c_size_t(-1).value  # of zht_queue_call_flat


class Options(ctypes.Structure):
    _fields_ = [("cluster", c_char_p), ("data_folder", c_char_p), ("timeout_ms", c_uint64), ("connect_timeout_ms", c_uint64),
                ("max_in_flight", c_uint64), ("max_connections", c_uint64), ("no_start", c_bool), ("quiet", c_bool),
                ("reserved", c_uint64 * 8)]


class NodeOptions(ctypes.Structure):
    _fields_ = [("data_folder", c_char_p), ("instances", c_uint32), ("partitions", c_uint32), ("durability", c_int),
                ("sync_interval_ms", c_uint64), ("max_value_size", c_uint64), ("local_socket", c_bool),
                ("listen", c_char_p), ("resp", c_char_p), ("reserved", c_uint64 * 8)]


class Bytes(ctypes.Structure):
    _fields_ = [("data", c_char_p), ("size", c_size_t)]


def _load() -> ctypes.CDLL:
    candidates = [os.environ.get("ZHT_LIBRARY"),
                  str(_HERE / "libzht.so"),                                            # in the wheel
                  os.path.join(os.environ["ZHT_BUILD"], "lib", "libzht.so") if "ZHT_BUILD" in os.environ else None,
                  str(_HERE.parents[2] / "build" / "release" / "lib" / "libzht.so")]   # run from the tree
    for path in candidates:
        if path and os.path.exists(path):
            return ctypes.CDLL(path)
    try:
        return ctypes.CDLL("libzht.so.0")
    except OSError as error:
        raise ImportError("libzht.so is not found: install this package with pip from ZHT's source tree, build the tree, or set "
                          f"$ZHT_LIBRARY ({error})") from None


lib = _load()


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(lib, name)
    function.restype = result
    function.argtypes = arguments


_declare("zht_error", c_char_p)
_declare("zht_version_text", c_char_p)
_declare("zht_connect", c_int, POINTER(Options), POINTER(c_void_p))
_declare("zht_close", None, c_void_p)
_declare("zht_partition_count", c_uint32, c_void_p)
_declare("zht_partition_of", c_uint32, Bytes, c_uint32)
_declare("zht_node_start", c_int, POINTER(NodeOptions), POINTER(c_void_p))
_declare("zht_node_client", c_int, c_void_p, POINTER(c_void_p))
_declare("zht_node_listen", c_char_p, c_void_p)
_declare("zht_node_resp", c_char_p, c_void_p)
_declare("zht_node_stop", None, c_void_p)
_declare("zht_queue_make", c_int, c_void_p, POINTER(c_void_p))
_declare("zht_queue_free", None, c_void_p)
_declare("zht_queue_descriptor", c_int, c_void_p)
_declare("zht_queue_submit_flat", c_int, c_void_p, c_char_p, c_size_t)
_declare("zht_queue_cancel", None, c_void_p, c_uint64)
_declare("zht_queue_take_flat", c_size_t, c_void_p, c_void_p, c_size_t, POINTER(c_size_t))
_declare("zht_queue_call_flat", c_size_t, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t))


def last_error() -> str:
    return str(lib.zht_error().decode(errors="replace"))


def provide_program() -> None:
    """The library starts the local node with the `zht` program: where none is in PATH, the one in the wheel will do."""
    if "ZHT_PROGRAM" in os.environ or shutil.which("zht") is not None:
        return
    for program in (_HERE / "bin" / "zht", _HERE.parents[2] / "build" / "release" / "bin" / "zht"):
        if program.exists():
            os.environ["ZHT_PROGRAM"] = str(program)
            return

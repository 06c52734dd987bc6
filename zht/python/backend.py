"""Builds the wheel with the standard library alone (PEP 517, PEP 660): `pip install ./zht/python` needs no network.

The wheel carries libzht.so, and the `zht` program that starts the local node. They are taken from the tree's build
(build/release, or the folder that $ZHT_BUILD names); what is not built yet is built with CMake.
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent


def _project(name: str) -> str:
    text = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'^{name} = "(.*)"$', text, re.MULTILINE)
    assert found, f"pyproject.toml has no {name}"
    return found.group(1)


NAME, VERSION = "zht", _project("version")
INFO = f"{NAME}-{VERSION}.dist-info"


def _say(text):
    print(f"zht: {text}", file=sys.stderr, flush=True)


def _built():
    """(libzht.so, the zht program), built when they are not there."""
    build = Path(os.environ.get("ZHT_BUILD") or TREE / "build" / "release")
    library, program = build / "lib" / "libzht.so", build / "bin" / "zht"
    if library.exists() and program.exists():
        return library, program
    if os.environ.get("ZHT_BUILD"):
        raise RuntimeError(f"$ZHT_BUILD is {build}, but {library} or {program} is not there; "
                           "build them there: cmake --build . --target zht_c zht_program")
    if not (TREE / "CMakePresets.json").exists():
        raise RuntimeError(f"{library} is not there, and {TREE} is not ZHT's source tree; install from inside the tree: "
                           "pip install ./zht/python")
    if shutil.which("cmake") is None:
        raise RuntimeError(f"{library} is not built, and there is no cmake to build it with; run ./quickstart in {TREE}, "
                           "which installs what is missing")
    _say(f"{library} is not built yet; building it with CMake, which takes some minutes")
    for command in (["cmake", "--preset", "release"],
                    ["cmake", "--build", "--preset", "release", "--target", "zht_c", "zht_program"]):
        _say(" ".join(command))
        done = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed in {TREE}:\n{done.stdout[-4000:]}")
    return library, program


def _metadata():
    return (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\nSummary: {_project('description')}\n"
            f"Requires-Python: {_project('requires-python')}\nLicense: Apache-2.0\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text(encoding="utf-8"))


def _tag():
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


class _Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, mode=0o644):
        about = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        about.external_attr = (0o100000 | mode) << 16
        about.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(about, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        self.record.append(f"{INFO}/RECORD,,")
        self.zip.writestr(zipfile.ZipInfo(f"{INFO}/RECORD", (2020, 1, 1, 0, 0, 0)), "\n".join(self.record) + "\n")
        self.zip.close()


def _make(folder, files):
    name = f"{NAME}-{VERSION}-{_tag()}.whl"
    wheel = _Wheel(Path(folder) / name)
    for path, data, mode in files:
        wheel.add(path, data, mode)
    wheel.add(f"{INFO}/METADATA", _metadata().encode())
    wheel.add(f"{INFO}/WHEEL", f"Wheel-Version: 1.0\nGenerator: zht\nRoot-Is-Purelib: false\nTag: {_tag()}\n".encode())
    wheel.add(f"{INFO}/top_level.txt", b"zht\n")
    wheel.close()
    return name


def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_sdist = get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    library, program = _built()
    files = [(f"zht/{path.name}", path.read_bytes(), 0o644)
             for path in sorted((HERE / "zht").iterdir()) if path.suffix == ".py" or path.name == "py.typed"]
    files.append(("zht/libzht.so", library.read_bytes(), 0o755))
    files.append(("zht/bin/zht", program.read_bytes(), 0o755))
    return _make(wheel_directory, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _built()
    return _make(wheel_directory, [("zht_in_its_tree.pth", f"{HERE}\n".encode(), 0o644)])


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("this package is built from inside ZHT's source tree: pip install ./zht/python, or "
                       "pip wheel ./zht/python for a wheel to carry elsewhere")

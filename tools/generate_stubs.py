"""Write what protoc makes of the protos in `src/dray/v1`: modules, typed stubs, and the image that servers reflect.

One run of the compiler makes all files; its plug-ins are found beside this interpreter, wherever PATH points.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
PACKAGE = "dray/v1"
MESSAGES = ("_pb2.py", "_pb2.pyi")
SERVICES = ("_pb2_grpc.py", "_pb2_grpc.pyi")


class NotCompiled(Exception):
    """The protos are no protos; the compiler's words say where."""


def protos() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in (SOURCE / PACKAGE).glob("*.proto"))


def files() -> list[str]:
    """Every file that is made, below `src`; of services only where a proto has one."""
    found = []
    for name in protos():
        has_service = "\nservice " in (SOURCE / name).read_text(encoding="utf-8")
        suffixes = (*MESSAGES, *SERVICES) if has_service else MESSAGES
        found += [name.removesuffix(".proto") + suffix for suffix in suffixes]
    return found


def stub(name: str) -> str:
    """The text of one of them."""
    return compile_all()[name]


@functools.cache
def compile_all() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
        beside = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *protos()],
            cwd=SOURCE,
            env=beside,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotCompiled(done.stderr)
        return {name: (Path(folder) / name).read_text(encoding="utf-8") for name in files()}

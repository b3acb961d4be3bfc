"""Functions under way: by name or by value, what they need is read and compared before they are opened."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dray.errors import InvalidInput
from dray.functions.envelope import find_mismatch, open_function, read_envelope, seal, tell_name
from dray.functions.values import Unpicklable, pack_call, unpack


def double(x: int) -> int:
    return 2 * x


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def test_a_function_goes_round() -> None:
    sealed = seal(double)
    envelope = read_envelope(sealed.function)
    assert (envelope.name, envelope.digest) == ("double", sealed.digest)
    assert envelope.inline
    assert find_mismatch(envelope) == ""
    assert open_function(envelope.body)(21) == 42
    assert seal(double).digest == sealed.digest


def test_names_are_those_that_people_use() -> None:
    def inner() -> None: ...

    assert tell_name(double) == "double"
    assert tell_name(inner) == "inner"
    assert tell_name(lambda: 0) == "<lambda>"
    assert tell_name(functools.partial(double, 1)) == "double"
    assert tell_name(np.mean).endswith("mean")


def test_a_large_function_goes_ahead_as_a_blob() -> None:
    table = b"x" * 200_000
    sealed = seal(lambda: table)
    assert sealed.blob is not None
    envelope = read_envelope(sealed.function)
    assert not envelope.inline
    assert envelope.size == sealed.blob.size > 200_000
    assert open_function(sealed.blob.join())() == table


def test_packages_that_a_function_uses_are_compared() -> None:
    envelope = read_envelope(seal(mean).function)
    assert envelope.packages["numpy"] == np.__version__
    other = envelope._replace(packages={"numpy": "1.0.3", "nonesuch_package": "2.1"})
    said = find_mismatch(other)
    assert "numpy is" in said
    assert "the caller has 1.0.3" in said
    assert "nonesuch_package 2.1 is missing" in said
    repaired = ".".join([*np.__version__.split(".")[:2], "999"])
    assert find_mismatch(envelope._replace(packages={"numpy": repaired})) == ""


def test_another_python_is_explained() -> None:
    envelope = read_envelope(seal(double).function)._replace(python="3.8")
    assert "sent by Python 3.8" in find_mismatch(envelope)


def test_a_function_that_cannot_travel_is_named_with_what_it_holds() -> None:
    guard = threading.Lock()

    def hold() -> Any:
        return guard

    with pytest.raises(Unpicklable, match=r"hold\(\).*'guard', a lock"):
        seal(hold)
    with pytest.raises(InvalidInput, match="no function"):
        seal("train")  # type: ignore[arg-type]  # the very mistake


@pytest.mark.parametrize(
    "data", [b"", b"DF1\0", b"DF1\0\xff\xff\0\0{}", b"DF1\0\x02\0\0\0{}", b"nonsense" * 4]
)
def test_bytes_that_are_no_function_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_envelope(data)


def test_a_later_format_is_told_as_such() -> None:
    text = json.dumps({"v": 2}).encode()
    with pytest.raises(InvalidInput, match="version 2"):
        read_envelope(b"DF1\0" + len(text).to_bytes(4, "little") + text)


SEND = """
import sys
from dray.functions.envelope import seal
from dray.functions.values import pack_call
{code}
sealed = seal(function)
head = len(sealed.function).to_bytes(4, "little")
sys.stdout.buffer.write(head + sealed.function + pack_call("f", args, {{}}).join())
"""
RUN = """
import sys
from dray.functions.envelope import open_function, read_envelope
from dray.functions.modules import add_paths
from dray.functions.values import unpack_call
data = sys.stdin.buffer.read()
size = int.from_bytes(data[:4], "little")
envelope = read_envelope(data[4:4 + size])
add_paths(envelope.paths)
args, kwargs = unpack_call(data[4 + size:])
print(repr(open_function(envelope.body)(*args, **kwargs)))
"""
CASES = {
    "main": "def function(x): return x + 1\nargs = (1,)",
    "lambda": "function = lambda x: x + 1\nargs = (1,)",
    "closure": "def make(n):\n    def inner(x): return x + n\n    return inner\nfunction = make(1)\nargs = (1,)",
    "class": "class Box:\n    def __init__(self, x): self.x = x\n"
    "def function(box): return box.x if isinstance(box, Box) else -1\nargs = (Box(2),)",
    "recursive": "def function(x): return 2 if x == 0 else function(x - 1)\nargs = (3,)",
    "module": "from beside import function\nargs = (1,)",
}


@pytest.mark.parametrize("case", CASES)
def test_functions_of_a_program_run_in_another_process(case: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SEND.format(code=CASES[case]))
    (tmp_path / "beside.py").write_text("def function(x):\n    return x + 1\n")
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    sent = subprocess.run([sys.executable, str(script)], capture_output=True, check=True, timeout=60, env=env)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", RUN],
        input=sent.stdout,
        capture_output=True,
        check=True,
        timeout=60,
        env=env,
    )
    assert ran.stdout.strip() == b"2"


def test_arguments_keep_their_names() -> None:
    assert unpack(pack_call("f", (1,), {"k": 2}).join()) == ((1,), {"k": 2})


STALE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
from dray.functions.modules import ModuleWatch
import edited
watch = ModuleWatch()
assert not watch.drop_stale() and not watch.drop_stale()
with open(os.path.join(sys.argv[1], "edited.py"), "w") as file:
    file.write("VALUE = 'second'")
assert watch.drop_stale() and not watch.drop_stale()
import edited
assert edited.VALUE == "second"
assert not watch.drop_stale()
"""


def test_a_module_edited_since_is_imported_anew(tmp_path: Path) -> None:
    (tmp_path / "edited.py").write_text("VALUE = 'one'")
    subprocess.run([sys.executable, "-c", STALE, str(tmp_path)], check=True, timeout=60)

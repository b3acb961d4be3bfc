"""Run a probe that loads a driver in a child process, so that a crash or a hang costs a note and not the agent.

Owns the process and its time limit; knows nothing about what is probed. The surprising rule: a child that hangs inside
the kernel ignores SIGKILL, so after the kill it is waited for only briefly and then left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

import dray
from dray.agent.detect.cards import Cards

_REAP_S = 1.0
_STDERR_CHARS = 200


def probe_in_child(module: str, label: str, timeout_s: float) -> Cards:
    """Run `python -m module` and read the `Cards` it prints as its last line."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_env(),
            start_new_session=True,
        )
    except OSError as error:
        return Cards(notes=[f"{label}: the probe could not be started: {error}"])
    try:
        stdout, stderr = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end_group(child)
        return Cards(
            notes=[f"{label}: the driver did not answer within {timeout_s:g} s; its cards are not offered"]
        )
    if child.returncode != 0:
        return Cards(notes=[f"{label}: the probe {_describe_exit(child.returncode)}{_quote(stderr)}"])
    return _read_answer(stdout, label)


def child_env() -> dict[str, str]:
    """The agent's environment, with this very copy of dray first on the path, however the agent itself was started."""
    env = dict(os.environ)
    package_root = str(Path(dray.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, env.get("PYTHONPATH", "")]))
    return env


def _end_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_S)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _describe_exit(returncode: int) -> str:
    if returncode > 0:
        return f"failed with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _quote(stderr: bytes) -> str:
    """The last line a dying probe wrote is the one that names the error."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f": {lines[-1][:_STDERR_CHARS]}" if lines else ""


def _read_answer(stdout: bytes, label: str) -> Cards:
    # Drivers write banners to stdout; the answer is the last line, whatever came before it.
    lines = stdout.strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=Cards)
    except msgspec.DecodeError as error:
        return Cards(notes=[f"{label}: the probe's answer cannot be read: {error}"])

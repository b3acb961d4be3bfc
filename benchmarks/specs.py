"""The jobs that benchmarks submit. They ask for no CPU, so that slots alone decide how many run at once."""

from __future__ import annotations

from typing import Any

from benchmarks.floors import true_path


def true_spec(**fields: Any) -> dict[str, Any]:
    """A job that runs `true`."""
    return {"command": [true_path()], "env": {"PATH": "/usr/bin:/bin"}, "workdir": "/", **fields}


def array_spec(tasks: int, **fields: Any) -> dict[str, Any]:
    """The same as one array."""
    return true_spec(array={"first": 0, "last": tasks - 1}, **fields)


def waiting_spec(**fields: Any) -> dict[str, Any]:
    """A job that no worker of this project can ever run: it waits."""
    return true_spec(gpu_count=64, gpu_type="none-such", **fields)

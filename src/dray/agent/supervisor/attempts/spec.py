"""What the agent asks for: one task to run, checked before anything is written or started.

The environment is the whole environment: nothing of the supervisor's own is added but a mark (processes/marks.py). Ids
become folder names, so an id that could be read as a path is refused here.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dray.agent.supervisor.records.journal import Record
    from dray.processes import ProcessInfo

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DEFAULT_GRACE_S = 30.0
EPILOG_LIMIT_S = 60.0
# A word of the hub's, told again with the end: an older supervisor need not know it.
MOST_REASON = 64


class TaskSpec:
    __slots__ = (
        "argv",
        "behind",
        "behind_s",
        "cwd",
        "env",
        "epilog",
        "grace_s",
        "heard_at",
        "lease_s",
        "limit_s",
        "memory_bytes",
        "meta",
        "own_cwd",
        "ports",
        "prolog",
        "prompt",
        "relays",
        "start_by",
        "task_id",
        "terminal",
        "uid",
        "user",
    )

    def __init__(self, raw: Record) -> None:
        """Raises ValueError naming the field at fault."""
        self.uid = read_uid(raw)
        self.task_id = _read_text(raw, "task_id") or ""
        self.argv = read_argv(raw, "argv") or []
        if not self.argv:
            raise ValueError("argv is empty: name the program to run")
        self.prolog = read_argv(raw, "prolog")
        self.epilog = read_argv(raw, "epilog")
        self.env = read_env(raw)
        self.cwd = _read_text(raw, "cwd")
        self.user = _read_text(raw, "user")
        self.limit_s = read_seconds(raw, "limit_s")
        self.lease_s = read_seconds(raw, "lease_s")
        # From when on the lease runs: now, where nothing is said.
        self.heard_at = read_seconds(raw, "heard_at")
        grace_s = read_seconds(raw, "grace_s")
        self.grace_s = DEFAULT_GRACE_S if grace_s is None else grace_s
        memory = raw.get("memory_bytes", 0)
        if not isinstance(memory, int) or memory < 0:
            raise ValueError(f"memory_bytes is {memory!r}: give a whole number, 0 for no limit")
        self.memory_bytes = memory
        # Whether the agent wants to hear of its start without delay.
        self.prompt = raw.get("prompt") is True
        # By the clock of this host: whoever asked has given it back by then, so that it must not start any more.
        self.start_by = read_seconds(raw, "start_by")
        # Whether the folder it starts in is this worker's own: then it is nobody else's fault where that is missing.
        self.own_cwd = raw.get("own_cwd") is True
        # The attempt whose place it takes when that has ended, and for how long it waits for that.
        self.behind = _read_text(raw, "behind") or ""
        self.behind_s = read_seconds(raw, "behind_s") or 0.0
        # Whether its command runs in a terminal, which stays when nobody is at it.
        self.terminal = raw.get("terminal") is True
        # Whether what it starts hands signals on to all that belongs to it.
        self.relays = raw.get("relays") is True
        self.meta = raw.get("meta")
        self.ports = ports_of(self.meta)

    def is_late(self) -> bool:
        """Whether it was asked for too long ago to be started."""
        return self.start_by is not None and time.monotonic() > self.start_by

    def list_apart(self, members: Iterable[ProcessInfo], leader: int) -> list[ProcessInfo]:
        """Those of its processes that a signal to the leader's group does not reach."""
        return [] if self.relays else [info for info in members if info.session != leader]

    @property
    def epilog_limit_s(self) -> float:
        return self.grace_s or EPILOG_LIMIT_S


def ports_of(meta: object) -> list[int]:
    """The ports that an attempt holds, by what the agent has written down for its successor."""
    ports = meta.get("ports") if isinstance(meta, dict) else None
    return [port for port in ports if isinstance(port, int)] if isinstance(ports, list) else []


def read_uid(raw: Record) -> str:
    uid = raw.get("uid")
    if not isinstance(uid, str) or ID_PATTERN.fullmatch(uid) is None:
        raise ValueError(
            f"uid is {uid!r}: an id starts with a letter or digit and holds up to 128 of A-Z a-z 0-9 . _ -"
        )
    return uid


def read_seconds(raw: Record, name: str) -> float | None:
    value = raw.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} is {value!r}: give seconds, 0 or more")
    return float(value)


def _read_text(raw: Record, name: str) -> str | None:
    value = raw.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{name} is {value!r}: give text without NUL")
    return value


def read_argv(raw: Record, name: str) -> list[str] | None:
    value = raw.get(name)
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise ValueError(f"{name} is {value!r}: give a list of words without NUL")
    if not value[0]:
        raise ValueError(f"{name} starts with an empty word: name the program to run")
    return value


def read_env(raw: Record) -> dict[str, str]:
    env = raw.get("env")
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise ValueError("env is not an object of names and values")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or not isinstance(value, str) or "\0" in value:
            # The value stays out of the message: environments hold secrets.
            raise ValueError(f"env has a name or value that no environment can hold, at {name!r}")
    return env

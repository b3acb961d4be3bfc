"""What `run` and `wait` exit with, so that scripts can treat a job as they treat a program.

Reads job and task documents only. The order of the rules matters: a time limit ends in a signal too, and must read as
124, not as that signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TIME_LIMIT = 124
NOT_RUN = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128
CANCELLED = SIGNALLED + 15
INTERRUPTED = SIGNALLED + 2
# Of a process that was followed and whose end is not known, as ssh has it.
CUT_OFF = 255

ENDED = ("succeeded", "failed", "killed", "worker_failed", "unschedulable")
UNSUCCESSFUL = ENDED[1:]
_BY_CLASS = {
    "time_limit": TIME_LIMIT,
    "not_found": NOT_FOUND,
    "not_executable": NOT_EXECUTABLE,
    # The command itself never ran, so there is no exit code of its own to pass on.
    "prolog": NOT_RUN,
    "workdir": NOT_RUN,
    "snapshot": NOT_RUN,
    "dependency": NOT_RUN,
}
_WORDS = {"oom": "out of memory", "time_limit": "time limit reached", "not_found": "command not found"}


def has_ended(document: Mapping[str, Any]) -> bool:
    return document.get("state") in ENDED


def is_numbered(job: Mapping[str, Any]) -> bool:
    """Whether the job has several tasks, so that its own document holds no single exit code."""
    total = (job.get("tasks") or {}).get("total", 1)
    return isinstance(total, int) and total != 1


def exit_code(document: Mapping[str, Any]) -> int:
    """The code of one ended task, or of a job with one task."""
    state, exit_class = document.get("state"), document.get("exit_class") or ""
    if state == "succeeded":
        return 0
    if state in ("unschedulable", "worker_failed"):
        return NOT_RUN
    if exit_class in _BY_CLASS:
        return _BY_CLASS[exit_class]
    signal = document.get("signal") or 0
    if signal:
        return SIGNALLED + int(signal)
    if state == "killed":
        return CANCELLED
    code = document.get("exit_code")
    # A failure must never look like success, whatever the numbers say.
    return (int(code) & 0xFF or 1) if code else 1


def describe_end(document: Mapping[str, Any]) -> str:
    """How a task or job ended, in a few words; empty for success and for what still lives."""
    state, exit_class = document.get("state"), document.get("exit_class") or ""
    if state not in UNSUCCESSFUL:
        return ""
    if document.get("error"):
        # Whoever saw it end has said it better than its class could.
        return str(document["error"])
    signal, code = document.get("signal") or 0, document.get("exit_code")
    if exit_class == "code" or (not exit_class and code):
        return f"exit code {code}"
    if exit_class == "signal" or (not exit_class and signal):
        return f"signal {signal}"
    return _WORDS.get(exit_class, exit_class.replace("_", " "))

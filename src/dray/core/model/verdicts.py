"""What became of an attempt that did not succeed: one verdict, what it rests on, and the one thing to do next.

A value made of what the attempt's worker reported (how it ended, and the last lines that it printed) and of nothing
else, so that everybody who tells of a failure tells the same. Output is believed only about what an exit code cannot
say: a program that ended by itself names the card's memory, a missing module, a full disk. Surprising rule: of several
lines that mean something the last one counts, since earlier ones may have been caught and survived.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dray.core.model.records.records import Attempt, Phase
from dray.core.model.units import format_bytes

# As much of the last output as is kept of an attempt.
LAST_CHARS = 2000
_LINES, _LINE_CHARS = 5, 300


class Verdict(NamedTuple):
    """`kind` is a key of `KINDS`; `evidence` are lines, the one that matters first; `step` is what to do next."""

    kind: str
    evidence: tuple[str, ...]
    step: str


class Kind(NamedTuple):
    """What is said of all failures of a kind."""

    title: str
    step: str


KINDS = {
    "code": Kind("own code", "look at the last lines: dray logs {task}; then: {again}"),
    "host_memory": Kind("out of host memory", "ask for more (--mem), or let the program hold less at a time"),
    "gpu_memory": Kind(
        "out of GPU memory",
        "ask for a card with more memory (--vram), or use a smaller batch: {larger}",
    ),
    "time_limit": Kind("time limit", "give it longer (--time), or save on stop so that the next try goes on"),
    "person": Kind("stopped by a person", "nothing is wrong with it; for another run: {again}"),
    "node": Kind("node fault", "look at the worker: dray worker show {worker}; then: {again}"),
    "environment": Kind(
        "environment", "make the program, folder or module available on the worker, or name it rightly"
    ),
    "idle": Kind(
        "idle GPUs",
        "see what it waited for: dray logs {task}; then ask for no GPU, or use it sooner: {again}",
    ),
    "dependency": Kind("dependency", "mend the job that it waits for, then: {again}"),
    "preempted": Kind("preempted", "give it more losses, or submit it in a tier that is not preempted"),
    "gang": Kind("gang", "look at the member that its error names"),
    "unplaced": Kind(
        "never placed", "ask for what some worker has: dray plan tells before; or give it longer to wait"
    ),
}
_OF_CLASS = {
    "oom": "host_memory",
    "time_limit": "time_limit",
    "cancelled": "person",
    "user": "person",
    "lost": "node",
    "lost_unstarted": "node",
    "preempted": "preempted",
    "idle": "idle",
    "dependency": "dependency",
    "gang": "gang",
    "unschedulable": "unplaced",
    **dict.fromkeys(
        (
            "not_found",
            "not_executable",
            "workdir",
            "prolog",
            "environment",
            "no_account",
            "refused",
            "snapshot",
        ),
        "environment",
    ),
}
# Ends of which a program's own words may say more than the class does.
_OWN_ENDS = frozenset(("", "code", "signal", "raised", "crashed", "prolog"))
_WORDS = {
    "gpu_memory": r"""(?:CUDA|HIP|MPS\ backend|XPU)\ out\ of\ memory | torch\.(?:cuda\.)?OutOfMemoryError
        | cupy\S*\.OutOfMemoryError | cudaErrorMemoryAllocation | CUDA_ERROR_OUT_OF_MEMORY | hipErrorOutOfMemory
        | RESOURCE_EXHAUSTED:.*(?:memory|allocat) | ResourceExhaustedError | OOM\ when\ allocating\ tensor
        | (?:CUBLAS|CUDNN|CUSOLVER|CUFFT)_(?:STATUS_)?ALLOC_FAILED
        | cu(?:da)?(?:Mem)?(?:A|Ma)lloc\w*\ failed.*out\ of\ memory
        | CUDA\ error:?\ out\ of\ memory | (?:VK_ERROR_|Error)OUT_?OF_?DEVICE_?MEMORY""",
    "node": r"""No\ space\ left\ on\ device | Disk\ quota\ exceeded | Read-only\ file\ system
        | CUDA\ driver\ version\ is\ insufficient | no\ CUDA-capable\ device | Driver/library\ version\ mismatch
        | uncorrectable\ ECC | fallen\ off\ the\ bus | NVRM:\ Xid | CUDA-capable\ device\(s\)\ is/are\ busy
        | cudaErrorDevicesUnavailable | cudaErrorNoDevice""",
    "host_memory": r"""\bMemoryError\b | std::bad_alloc | Cannot\ allocate\ memory | _ArrayMemoryError""",
    "environment": r"""ModuleNotFoundError: | ImportError: | error\ while\ loading\ shared\ libraries
        | :\ command\ not\ found | :\ not\ found$ | can't\ open\ file\ '""",
}
_SEARCH = re.compile("|".join(f"(?P<{kind}>{words})" for kind, words in _WORDS.items()), re.VERBOSE)


def judge(
    exit_class: str,
    error: str,
    last: str = "",
    *,
    exit_code: int | None = None,
    preempted: bool = False,
    peak_bytes: int = 0,
    worker: str = "",
) -> Verdict:
    """Give the verdict on one end that was no success."""
    lines = [line.rstrip()[:_LINE_CHARS] for line in last.splitlines() if line.strip()]
    said = error.strip().splitlines() or [""]
    kind = "preempted" if preempted else _OF_CLASS.get(exit_class, "code")
    words = ""
    if exit_class in _OWN_ENDS:
        kind, words = find_words([*said, *lines]) or (kind, "")
    fact = said[0] or (f"exit code {exit_code}" if exit_code is not None else exit_class.replace("_", " "))
    if worker:
        fact += f" (on {worker})"
    if kind == "host_memory" and peak_bytes:
        fact += f"; its peak was {format_bytes(peak_bytes)}"
    # Words that name the cause need no company.
    tail = [] if words or kind not in ("code", "environment", "host_memory") else lines
    evidence = [words, fact[:_LINE_CHARS], *tail[-_LINES:]]
    return Verdict(kind, tuple(dict.fromkeys(filter(None, evidence))), KINDS[kind].step)


def find_words(lines: list[str]) -> tuple[str, str] | None:
    """The last line by which a program says why it ended, with its kind."""
    for line in reversed(lines):
        found = _SEARCH.search(line)
        if found is not None and found.lastgroup is not None:
            return found.lastgroup, line.strip()[:_LINE_CHARS]
    return None


def judge_attempt(attempt: Attempt) -> Verdict | None:
    """The verdict on an attempt; None where it lives, succeeded, or never was one (taken back before it began)."""
    if attempt.phase.live or attempt.phase in (Phase.SUCCEEDED, Phase.REVOKED):
        return None
    return judge(
        attempt.exit_class,
        attempt.error,
        attempt.last,
        exit_code=attempt.exit_code,
        preempted=attempt.phase is Phase.PREEMPTED or attempt.cancel == "preempted",
        peak_bytes=attempt.max_rss_bytes,
        worker=attempt.worker,
    )

"""Keep the store out of turns: who in the hub may ask it for rows is listed here, with the reason why that is safe.

A turn consults memory and what was fetched for it (`dray.hub.rows`). The store's own guard refuses a read inside a turn
when it runs; this check sees a new one before it runs, also where it would only hold up the loop. Every read that the
protocol of stores has is looked for, so a new kind of read is covered as soon as it is there. Takes the folder that
holds the `dray` package (default: src).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# What a store does beside reading rows: it writes, or says what it knows without looking.
OTHER = frozenset(
    "verify position begin_epoch raise_epoch commit project save_clock save_token save_blobs save_sample sweep_blobs"
    " drop_holds sweep size_bytes free_bytes low_space close".split()
)
START = "while the hub starts: there are no turns yet"
THREAD = "on a thread"
AFTER = "after the commit, between two turns: to be sent with what has just been decided"
BEFORE = "before the request enters the inbox; found by an index"

ALLOWED: dict[tuple[str, str], str] = {
    ("dray.hub.access.tokens", "tokens"): START,
    ("dray.hub.answers.answers", "audit"): THREAD,
    ("dray.hub.answers.answers", "group_jobs"): THREAD,
    ("dray.hub.answers.pages", "list_jobs"): THREAD,
    ("dray.hub.answers.pages", "count_ended"): THREAD,
    ("dray.hub.answers.site", "sum_uses"): THREAD,
    ("dray.hub.app", "recent_runs"): START,
    ("dray.hub.assembly", "tokens"): START,
    ("dray.hub.calls.arguments", "find_args"): AFTER,
    ("dray.hub.calls.blob_access", "fresh_refs"): BEFORE,
    ("dray.hub.calls.blob_access", "is_referred"): BEFORE,
    ("dray.hub.calls.blob_access", "job_refers"): BEFORE,
    ("dray.hub.calls.blob_access", "user_refers"): BEFORE,
    ("dray.hub.calls.blob_quotas", "count_user_blobs"): THREAD,
    ("dray.hub.calls.blobs", "find_blobs"): BEFORE + "; of strays, on a thread",
    ("dray.hub.calls.subscriptions", "results_from"): AFTER,
    ("dray.hub.documents.public_feed", "tail"): THREAD,
    ("dray.hub.engine.follower", "load"): START,
    ("dray.hub.engine.recovery", "load"): START,
    ("dray.hub.notifications.notifier", "tail"): THREAD,
    ("dray.hub.engine.recovery", "tail"): START,
    ("dray.hub.studies.past", "find_attempts"): THREAD,
    ("dray.hub.studies.past", "list_jobs"): THREAD,
    ("dray.hub.studies.replays", "samples"): THREAD,
    ("dray.hub.views.counts", "count_jobs"): THREAD,
    ("dray.hub.views.advice", "find_attempts"): THREAD,
    ("dray.hub.views.advice", "list_jobs"): THREAD,
    ("dray.hub.views.past.demand", "list_jobs"): THREAD,
    ("dray.hub.views.past.events", "find_job"): THREAD,
    ("dray.hub.views.past.events", "tail"): THREAD,
    ("dray.hub.views.past.failures", "find_attempts"): THREAD,
    ("dray.hub.views.past.failures", "find_job"): THREAD,
    ("dray.hub.views.past.failures", "past_attempts"): THREAD,
    ("dray.hub.views.past.history", "samples"): THREAD,
    ("dray.hub.views.past.timeline", "past_attempts"): THREAD,
}


class Read(NamedTuple):
    """A store's reading method by its module, where it is named."""

    module: str
    method: str
    path: Path
    line: int


def read_methods(source: Path) -> set[str]:
    """The reads of the protocol that every store keeps."""
    tree = ast.parse((source / "dray/hub/store/base.py").read_text())
    protocol = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Store")
    return {node.name for node in protocol.body if isinstance(node, ast.FunctionDef)} - OTHER


def find_reads(source: Path) -> Iterator[Read]:
    """Every mention of a read of something that is called a store, in the hub but not in its stores."""
    methods = read_methods(source)
    for path in sorted((source / "dray/hub").rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        if module.startswith("dray.hub.store."):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in methods and _is_store(node.value):
                yield Read(module, node.attr, path, node.lineno)


def _is_store(receiver: ast.expr) -> bool:
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return name.endswith("store")


def main(source: Path) -> int:
    reads = list(find_reads(source))
    found = {(read.module, read.method) for read in reads}
    faults = [
        f"{read.path}:{read.line}: error: reads the store ({read.method}): ask `dray.hub.rows`, and declare it as what "
        "the request wants; what must read by itself is listed in tools/check_reads.py with its reason"
        for read in reads
        if (read.module, read.method) not in ALLOWED
    ]
    faults += [
        f"tools/check_reads.py: error: {module} does not read by {method} any more: strike it off the list"
        for module, method in sorted(ALLOWED.keys() - found)
    ]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src"))

"""Trace files read to jobs and nodes: what each published format means, told apart by the header row.

Knows columns, not what becomes of them. Every reader gives jobs sorted by arrival, counted from the first one. The
surprising rule: a field that is empty says nothing, and a row that cannot be read stops the reading with its line.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from dray.core.model.specs.resources import WHOLE
from dray.core.model.units import parse_bytes
from dray.errors import InvalidInput
from dray.sim.traces.workload import Node, TraceJob

MIB, GIB = 1 << 20, 1 << 30
DEFAULT_DURATION_MS = 3_600_000
Row = Mapping[str, str]
JobReader = Callable[[Row, int], TraceJob]


def read_jobs(path: Path) -> list[TraceJob]:
    """Read a trace of any known format."""
    rows = _rows(path)
    header, first = next(rows, (0, {}))
    if not first:
        raise InvalidInput(f"{path} holds no rows: a trace begins with a row of column names")
    reader = next((read for names, read in _FORMATS if names <= first.keys()), None)
    if reader is None:
        known = "; ".join(", ".join(sorted(names)) for names, _ in _FORMATS)
        raise InvalidInput(
            f"{path} has the columns {', '.join(first)}: a trace has at least the columns of one of these: {known}"
        )
    found: list[TraceJob] = []
    for line, row in [(header, first), *rows]:
        try:
            found.append(reader(row, line - 2))
        except (ValueError, InvalidInput) as error:
            raise InvalidInput(f"{path}, line {line}: {error}") from None
    return settle(found)


def settle(jobs: list[TraceJob]) -> list[TraceJob]:
    """Sort jobs by arrival and let the first one arrive at 0; deadlines move along."""
    jobs = sorted(jobs, key=lambda job: job.arrival_ms)
    zero_ms = jobs[0].arrival_ms if jobs else 0
    if not zero_ms:
        return jobs
    return [
        msgspec.structs.replace(
            job,
            arrival_ms=job.arrival_ms - zero_ms,
            deadline_ms=max(1, job.deadline_ms - zero_ms) if job.deadline_ms else 0,
        )
        for job in jobs
    ]


def read_nodes(path: Path) -> list[Node]:
    """Read a node list: one row per node, or per group of `count` equal ones."""
    found: list[Node] = []
    for line, row in _rows(path):
        try:
            found += _nodes_of(row)
        except (KeyError, ValueError, InvalidInput) as error:
            raise InvalidInput(f"{path}, line {line}: {error}") from None
    if not found:
        raise InvalidInput(f"{path} describes no nodes")
    return found


def parse_cluster(text: str) -> list[Node]:
    """Read `8x8` (nodes x GPUs), `8x8xV100`, or the path of a node list."""
    parts = text.lower().split("x")
    if 2 <= len(parts) <= 3 and parts[0].isdigit() and parts[1].isdigit():
        nodes, gpus = int(parts[0]), int(parts[1])
        model = text.split(text[len(parts[0])], 2)[2] if len(parts) == 3 else ""
        return [_node(f"n{number:05d}", gpus=gpus, model=model) for number in range(nodes)]
    path = Path(text)
    if not path.exists():
        raise InvalidInput(
            f"{text!r} is neither a file nor a size: write 8x8 (nodes x GPUs), 8x8xV100, or a node list's path"
        )
    return read_nodes(path)


# --- one row ----------------------------------------------------------------------------------------------------------


def _philly(row: Row, number: int) -> TraceJob:
    """Rigid training jobs: `submit_s`, `duration_s`, `gpus`, perhaps `restart_s` and `deadline_s`."""
    whole, milli = _cards(row.get("gpus", ""))
    return TraceJob(
        id=_id(row.get("job_id", ""), number),
        arrival_ms=_ms(row["submit_s"]),
        duration_ms=max(1, _ms(row["duration_s"])),
        user=row.get("user") or row.get("vc") or "trace",
        gpus=whole,
        gpu_milli=milli,
        cpu_milli=round(float(row.get("cpus") or 0) * 1000),
        memory_bytes=round(float(row.get("mem_gb") or 0) * GIB),
        deadline_ms=_ms(row.get("deadline_s", "")),
        restart_ms=_ms(row.get("restart_s", "")),
    )


def _openb(row: Row, number: int) -> TraceJob:
    """Pods: cores and memory asked for, devices and the share wanted of each, models accepted."""
    created_s, deleted_s = row.get("creation_time") or "", row.get("deletion_time") or ""
    begun_s = row.get("scheduled_time") or created_s
    gpus = int(row["num_gpu"])
    ran_ms = _ms(deleted_s) - _ms(begun_s) if deleted_s else DEFAULT_DURATION_MS
    return TraceJob(
        id=_id(row["name"], number),
        arrival_ms=_ms(created_s),
        duration_ms=max(1, ran_ms),
        user=row.get("qos") or "trace",
        cpu_milli=int(row["cpu_milli"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
        gpus=gpus,
        gpu_milli=(int(row["gpu_milli"]) or WHOLE) if gpus else WHOLE,
        models=tuple(sorted(model for model in row.get("gpu_spec", "").split("|") if model)),
    )


def _generic(row: Row, number: int) -> TraceJob:
    """Any workload: `arrival` and `duration` in seconds, and as much of the rest as is known."""
    whole, milli = _cards(row.get("gpus", ""))
    memory = row.get("memory", "")
    return TraceJob(
        id=_id(row.get("job", ""), number),
        arrival_ms=_ms(row["arrival"]),
        duration_ms=max(1, _ms(row["duration"])),
        user=row.get("user") or "trace",
        queue=row.get("queue") or "default",
        gpus=whole,
        gpu_milli=milli,
        cpu_milli=round(float(row.get("cpus") or 0) * 1000),
        memory_bytes=parse_bytes(memory) if memory else 0,
        priority=int(row.get("priority") or 0),
        estimate_ms=_ms(row.get("estimate", "")),
        deadline_ms=_ms(row.get("deadline", "")),
        models=tuple(sorted(model for model in row.get("gpu_type", "").split("|") if model)),
    )


_FORMATS: tuple[tuple[set[str], JobReader], ...] = (
    ({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, _openb),
    ({"submit_s", "duration_s", "gpus"}, _philly),
    ({"arrival", "duration"}, _generic),
)


def _nodes_of(row: Row) -> Iterator[Node]:
    if "sn" in row:
        cpu, memory = int(row["cpu_milli"]), int(row["memory_mib"]) * MIB
        yield Node(
            name=row["sn"], cpu_milli=cpu, memory_bytes=memory, gpus=int(row["gpu"]), model=row["model"]
        )
        return
    name, count = row.get("node") or row["name"], int(row.get("count") or 1)
    memory = parse_bytes(row["memory"]) if row.get("memory") else 0
    for number in range(count):
        yield _node(
            f"{name}-{number}" if count > 1 else name,
            gpus=int(row.get("gpus") or 0),
            model=row.get("gpu_model") or row.get("model") or "",
            cpu_milli=round(float(row.get("cpus") or 0) * 1000),
            memory_bytes=memory,
        )


def _node(name: str, *, gpus: int, model: str = "", cpu_milli: int = 0, memory_bytes: int = 0) -> Node:
    """A node of which only the cards are known has cores and memory for any job."""
    return Node(
        name=name,
        gpus=gpus,
        model=model,
        cpu_milli=cpu_milli or 1_000_000,
        memory_bytes=memory_bytes or 1 << 44,
    )


def _cards(text: str) -> tuple[int, int]:
    """Whole cards, or the share of one."""
    wanted = float(text or 0)
    if wanted < 0:
        raise ValueError(f"a job cannot ask for {text} GPUs")
    if wanted == int(wanted):
        return int(wanted), WHOLE
    if wanted > 1:
        raise ValueError(f"{text} GPUs: a job asks for whole cards or for a share of one")
    return 1, max(1, round(wanted * WHOLE))


def _ms(text: str) -> int:
    if not text:
        return 0
    seconds = float(text)
    if not 0 <= seconds < 1e12:
        raise ValueError(f"{text} is not a number of seconds from 0 on")
    return round(seconds * 1000)


def _id(text: str, number: int) -> str:
    """Ids are unique in any trace because the row's number is part of them."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in text)
    return f"{number:07d}-{kept}" if kept else f"{number:07d}"


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError):
        raise InvalidInput(f"{path} is not a CSV file in UTF-8") from None
    for line, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        yield line, {key: (value or "").strip() for key, value in row.items() if key}

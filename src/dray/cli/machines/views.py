"""How workers, tokens, checks and this machine look to a person; reads documents and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    paint,
    short_span,
    span_between,
    terminal_width,
)
from dray.core.model.units import GB, format_bytes, format_seconds, format_vram

Document = Mapping[str, Any]
WORKER_COLUMNS = (
    Column("ID", least=12, cosy=20),
    Column("STATUS"),
    Column("DETAIL", least=8, drop=1, cosy=12),
    Column("BACKEND", drop=2),
    Column("GPUS", least=8, cosy=12),
    Column("VRAM", drop=2, right=True),
    Column("CPUS", drop=3, right=True),
    Column("MEM", drop=4, right=True),
    Column("SLOTS", right=True),
    Column("TASKS", drop=6, right=True),
    Column("SEEN", drop=5, right=True),
)
TOKEN_COLUMNS = (
    Column("ID"),
    Column("USER", least=6),
    Column("SCOPES", least=8),
    Column("CREATED", drop=2),
    Column("EXPIRES"),
    Column("LAST USED", drop=3),
    Column("WORKER", least=6),
    Column("STATE"),
)


def draw_status(status: Document) -> str:
    """The lines of `status`; what there is nothing to say about is left out."""
    workers, tasks, gpus = status["workers"], status["tasks"], status["gpus"]
    away, failed, wait_s = workers["away"], status["failed_24h"], status["oldest_wait_s"]
    silent = [
        f"{name} for {span_between(seen, None)}" if seen else name for name, seen in sorted(away.items())
    ]
    oldest = f", the oldest for {short_span(wait_s)}" if wait_s is not None and tasks["waiting"] else ""
    return draw_pairs(
        [
            ("workers", f"{workers['ready']} ready" + (f", {len(away)} away" if away else "")),
            ("not ready", clean("; ".join(f"{name}: {why}" for name, why in workers["not_ready"].items()))),
            ("draining", ", ".join(workers["draining"])),
            ("away", clean(_few(silent))),
            ("slots", f"{status['slots']['in_use']} of {status['slots']['total']} in use"),
            ("gpus", f"{gpus['held']:g} of {gpus['total']} held" if gpus["total"] or gpus["held"] else ""),
            ("tasks", f"{tasks['running']} running, {tasks['waiting']} waiting{oldest}"),
            ("a minute", f"{status['starts_per_min']:g} starts, {status['ends_per_min']:g} ends"),
            ("failed", _tell_failed(failed)),
            ("tasks failed", _tell_failed_tasks(status.get("failed_tasks_24h") or {})),
            ("alarms", clean("; ".join(status.get("alarms") or []))),
        ]
    )


def _few(words: Sequence[str], most: int = 5) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _tell_failed(failed: Mapping[str, int]) -> str:
    if not failed:
        return "no job in 24 hours"
    words = {"code": "by exit code", "signal": "by signal", "array": "array"}
    kinds = ", ".join(f"{count} {words.get(name, name.replace('_', ' '))}" for name, count in failed.items())
    total = sum(failed.values())
    return f"{total} {'job' if total == 1 else 'jobs'} in 24 hours: {kinds} (`dray ps --failed`)"


def _tell_failed_tasks(failed: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count} {name}" for name, count in failed.items())
    return f"{sum(failed.values())} of arrays: {kinds}" if failed else ""


def draw_workers(workers: Sequence[Document], width: int | None = None) -> str:
    """The table of `worker ls`."""
    rows = [_worker_row(worker) for worker in workers]
    return draw_table(WORKER_COLUMNS, rows, width or terminal_width(), has_colour())


def _worker_row(worker: Document) -> list[str]:
    slots: Document = worker.get("slots") or {}
    total = slots.get("batch_total", worker.get("total_slots", 0))
    # What the hub knows to be free is newer than what the worker last said to be in use.
    free = (worker.get("free") or {}).get("batch_slots")
    used = slots.get("batch_in_use", worker.get("active_jobs", 0)) if free is None else max(0, total - free)
    seen = span_between(worker.get("last_heartbeat"), None)
    return [
        str(worker.get("id", "")),
        str(worker.get("status", "")),
        tell_state(worker),
        str(worker.get("backend") or "-"),
        tell_cards(worker),
        format_vram(worker["vram_gb"] * GB) if worker.get("vram_gb") else "-",
        f"{worker['cpu_count']:g}" if worker.get("cpu_count") else "?",
        _tell_memory(worker) or "?",
        f"{used}/{total}",
        str(worker.get("active_jobs", 0)),
        f"{seen} ago" if seen else "never",
    ]


def tell_state(worker: Document) -> str:
    """What is worth knowing of a worker beside its status: that it is fake, silent since when, on its way out."""
    detail = str(worker.get("state_detail") or "")
    if detail == "silent" and (span := span_between(worker.get("last_heartbeat"), None)):
        detail = f"silent for {span}"
    parts = ["fake" if worker.get("fake") else "", detail]
    if worker.get("draining") and "drain" not in parts[1] and not worker.get("faults"):
        parts.append("draining")
    if worker.get("quarantined"):
        parts.append(f"{len(worker['quarantined'])} unknown")
    return ", ".join(filter(None, parts)) or "-"


def _tell_memory(offer: Document) -> str:
    """In the unit in which jobs ask for it: a job may ask for as much as stands here."""
    return format_bytes(round(offer["memory_gb"] * GB)) if offer.get("memory_gb") else ""


def tell_cards(worker: Document) -> str:
    count = worker.get("gpu_count") or 0
    return f"{count}× {worker.get('gpu_type') or 'GPU'}" if count else "-"


def draw_worker(worker: Document) -> str:
    """All that `worker show` tells."""
    slots: Document = worker.get("slots") or {}
    free: Document = worker.get("free") or {}
    pairs = [
        ("worker", str(worker.get("id", ""))),
        ("status", f"{paint(str(worker.get('status', '')))}{_in_brackets(tell_state(worker))}"),
        ("ends", local_time(worker.get("ends_at")) or ""),
        ("version", clean(str(worker.get("version") or ""))),
        ("host", clean(f"{worker.get('hostname') or '-'}{_in_brackets(str(worker.get('address') or ''))}")),
        (
            "cards",
            f"{tell_cards(worker)}{_in_brackets(_tell_vram(worker))}, backend {worker.get('backend') or '-'}",
        ),
        ("cores", f"{worker['cpu_count']:g}" if worker.get("cpu_count") else "unknown"),
        ("memory", _tell_memory(worker) or "unknown"),
        ("slots", _tell_slots(slots)),
        ("free", _tell_free(free)),
        ("labels", tell_labels(worker)),
        ("drained by", clean(str(worker.get("drained_by") or ""))),
        ("registered", local_time(worker.get("registered_at"))),
        ("last seen", local_time(worker.get("last_heartbeat"))),
        ("unknown tasks", ", ".join(map(str, worker.get("quarantined") or []))),
    ]
    blocks = [draw_pairs(pairs)]
    for title, draw in (("devices", _draw_devices), ("jobs", _draw_worker_jobs)):
        if worker.get(title):
            blocks.append(draw(worker[title]))
    return "\n\n".join(blocks)


def tell_labels(worker: Document) -> str:
    labels = sorted((worker.get("labels") or {}).items())
    return clean(" ".join(f"{key}={value}" for key, value in labels)) or "no labels"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text and text != "-" else ""


def _tell_vram(worker: Document) -> str:
    return f"{format_vram(worker['vram_gb'] * GB)} in all" if worker.get("vram_gb") else ""


def _tell_slots(slots: Document) -> str:
    pools = [
        f"{slots.get(f'{pool}_in_use', 0)} of {slots[f'{pool}_total']} {pool} slots in use"
        for pool in ("batch", "service")
        if slots.get(f"{pool}_total")
    ]
    return ", ".join(pools)


def _tell_free(free: Document) -> str:
    parts = [
        f"{free['cpu_milli'] / 1000:g} cores" if free.get("cpu_milli") is not None else "",
        format_bytes(int(free["memory_bytes"])) if free.get("memory_bytes") else "",
        f"{free['gpus']} GPUs" if free.get("gpus") else "",
        f"{free['batch_slots']} batch slots" if free.get("batch_slots") is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _draw_devices(devices: Sequence[Document]) -> str:
    columns = (
        Column("GPU", right=True),
        Column("MODEL", least=8),
        Column("VRAM", right=True),
        Column("HEALTH"),
        Column("UUID", drop=1),
    )
    rows = [
        [
            str(device.get("index", "")),
            str(device.get("model") or "-"),
            format_vram(device["vram_bytes"]) if device.get("vram_bytes") else "?",
            "ok" if device.get("healthy", True) else "FAILED",
            str(device.get("uuid") or "-"),
        ]
        for device in devices
    ]
    return draw_table(columns, rows, terminal_width(), has_colour())


def _draw_worker_jobs(jobs: Sequence[Document]) -> str:
    columns = (
        Column("TASK"),
        Column("NAME", least=6, drop=1),
        Column("STATUS"),
        Column("USER", drop=2),
        Column("RUN", right=True),
    )
    rows = [
        [
            str(job.get("task_id", "")),
            str(job.get("job_name") or "-"),
            str(job.get("status", "")),
            str(job.get("user") or "-"),
            span_between(job.get("started_at"), None) or "-",
        ]
        for job in jobs
    ]
    return draw_table(columns, rows, terminal_width(), has_colour())


def draw_tokens(tokens: Sequence[Document]) -> str:
    rows = [
        [
            str(token.get("id", "")),
            str(token.get("user") or "-"),
            ",".join(token.get("scopes") or []),
            local_time(token.get("created_at")) or "-",
            local_time(token.get("expires_at")) or "never",
            local_time(token.get("last_used_at")) or "-",
            str(token.get("worker") or "-"),
            "revoked"
            if token.get("revoked")
            else f"session of {token['parent']}"
            if token.get("parent")
            else "valid",
        ]
        for token in tokens
    ]
    return draw_table(TOKEN_COLUMNS, rows, terminal_width(), has_colour())


HUB_COLUMNS = (
    Column("ID"),
    Column("ROLE"),
    Column("URL", least=12),
    Column("EPOCH", right=True),
    Column("WORKERS", right=True),
    Column("SEEN", right=True),
    Column("LAG", right=True),
)


def draw_hubs(hubs: Sequence[Document]) -> str:
    """The hubs of one store."""
    rows = [
        [
            str(hub.get("id") or "-"),
            str(hub.get("role", "")),
            str(hub.get("url", "")),
            str(hub.get("epoch", "")),
            str(hub.get("workers") or 0),
            f"{float(hub.get('seen_s') or 0):.1f}s",
            "loading" if hub.get("lag") is None else str(hub["lag"]),
        ]
        for hub in hubs
    ]
    return draw_table(HUB_COLUMNS, rows, terminal_width(), has_colour())


def draw_role(role: Document) -> str:
    """Which part one hub plays."""
    pairs = [("role", str(role.get("role", ""))), ("since", local_time(role.get("since")) or "-")]
    if role.get("id"):
        pairs.insert(0, ("hub", str(role["id"])))
    pairs.append(("leader", str(role.get("leader") or "nobody")))
    pairs.append(("epoch", str(role.get("epoch", ""))))
    if role.get("role") == "standby":
        pairs.append(("lag", "loading" if role.get("lag") is None else f"{role['lag']} turns"))
    if last := role.get("takeover"):
        before = f" from {last['before']}" if last.get("before") else ""
        pairs.append(("took over", f"{local_time(last.get('at'))}{before}: {last.get('why')}"))
    return draw_pairs(pairs)


def draw_checks(answer: Document) -> str:
    """The answer of `doctor`: each check, then the facts."""
    checks = answer.get("checks") or []
    columns = (Column("CHECK", least=12), Column("RESULT"), Column("DETAIL", least=20))
    rows = [
        [str(check.get("name", "")), "ok" if check.get("ok") else "FAILED", str(check.get("detail") or "")]
        for check in checks
    ]
    facts = [
        (_name_fact(name), _tell_fact(name, value)) for name, value in (answer.get("facts") or {}).items()
    ]
    blocks = [draw_table(columns, rows, terminal_width(), has_colour())]
    if answer.get("reports"):
        blocks.append(_draw_reports(answer["reports"]))
    if facts:
        blocks.append(draw_pairs(facts))
    return "\n\n".join(blocks)


def _draw_reports(reports: list[Document]) -> str:
    columns = (Column("REPORT"), Column("LAST"), Column("TIMES"), Column("KIND"), Column("WHO"))
    rows = [
        [
            str(report.get("id", "")),
            local_time(report.get("last_at")) or "-",
            str(report.get("count", 1)),
            clean(str(report.get("kind", ""))),
            clean(str(report.get("who") or "-")),
            clean(": ".join(filter(None, (str(report.get("what", "")), str(report.get("error") or ""))))),
        ]
        for report in reports
    ]
    return draw_table((*columns, Column("WHAT", least=20)), rows, terminal_width(), has_colour())


def _name_fact(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _tell_fact(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if name.endswith("_s") and isinstance(value, (int, float)):
        return format_seconds(value)
    return clean(str(value))


def draw_machine(found: Document) -> str:
    """What `worker detect` tells: the offer, the cards, and what could not be seen."""
    capability: Document = found.get("capability") or {}
    labels = " ".join(f"{key}={value}" for key, value in (found.get("labels") or {}).items())
    info: Document = capability.get("gpu_info") or {}
    pairs = [
        ("host", clean(str(capability.get("hostname") or "-"))),
        ("backend", str(capability.get("gpu_backend") or "-")),
        ("cards", f"{tell_cards(capability)}{_in_brackets(_tell_vram(capability))}"),
        ("driver", clean(str(info.get("driver") or ""))),
        ("cores", f"{capability.get('cpu_count') or 0:g} ({found.get('usable_cores')} usable)"),
        ("memory", _tell_memory(capability) or "unknown"),
        ("labels", clean(labels)),
    ]
    blocks = [draw_pairs(pairs)]
    if found.get("devices"):
        blocks.append(_draw_devices(found["devices"]))
    if found.get("notes"):
        blocks.append("\n".join(f"note: {clean(str(note))}" for note in found["notes"]))
    return "\n\n".join(blocks)

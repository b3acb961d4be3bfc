"""Workloads as the documents that people and programs read. Pure: state in, plain dicts out."""

from __future__ import annotations

from dray.core.lifecycle.state.parties import HOUR_MS, Tally
from dray.core.model.records.workload import MICRO, WorkloadRecord, WorkloadState
from dray.hub.documents.records import Document, moment


def workload_document(tally: Tally, now_ms: int) -> Document:
    """One workload; its verdict is somebody else's."""
    record = tally.record
    terms = record.terms
    budget, lies, objective, state = terms.budget, terms.distribution, terms.objective, record.state
    failures = record.failed + record.worker_failed + record.unschedulable
    ended = record.succeeded + record.killed + failures
    used_ms, paid = tally.used_ms(now_ms), tally.paid(now_ms)
    return {
        "id": record.id,
        "title": terms.title,
        "state": str(state),
        "reason": _reason(record, state),
        "user": record.user,
        "members": terms.members,
        "queue": terms.queue,
        "priority": terms.priority,
        "labels": terms.labels,
        "deadline": terms.deadline or None,
        "budget": {
            "money": budget.money,
            "gpu_hours": budget.gpu_hours,
            "when_spent": budget.when_spent,
        },
        "distribution": {
            "mode": lies.mode,
            "by": lies.by,
            "shares": lies.shares,
            "max_skew": lies.max_skew,
            "required": lies.required,
        },
        "objective": {
            "cost": objective.cost,
            "performance": objective.performance,
            "reliability": objective.reliability,
            "latency": objective.latency,
            "cheapest_in_time": objective.cheapest_in_time,
        },
        "width": terms.width,
        "failures": terms.failures,
        "defaults": terms.defaults,
        "sealed": record.is_sealed,
        "paused": record.is_paused,
        "switched_by": record.switched_by,
        "tasks": {
            "total": record.total,
            "pending": record.total - ended - record.running,
            "running": record.running,
            "succeeded": record.succeeded,
            "failed": record.failed,
            "killed": record.killed,
            "worker_failed": record.worker_failed,
            "unschedulable": record.unschedulable,
        },
        "jobs": {"total": record.jobs, "ended": record.ended_jobs},
        "failed_share": round(record.failed_share, 6) if failures else 0.0,
        "spent": {
            "gpu_hours": round(used_ms / (HOUR_MS * 1000), 6) if used_ms else 0.0,
            "money": round(paid / MICRO, 6) if paid else 0.0,
        },
        "created_at": moment(record.created_at_ms),
        "started_at": moment(record.started_at_ms),
        "ended_at": moment(record.ended_at_ms),
        "etag": f"{record.seq}-{record.changes}",
    }


def _reason(record: WorkloadRecord, state: WorkloadState) -> str:
    if state is WorkloadState.RUNNING and not record.spent:
        return ""
    if state is WorkloadState.DRAFT:
        return f"nothing of it starts yet: dray workload start {record.id}"
    who = f" by {record.switched_by}" if record.switched_by else ""
    if state is WorkloadState.PAUSED:
        return f"paused{who}: dray workload start {record.id}"
    if state is WorkloadState.CANCELLED:
        return f"cancelled{who}"
    if record.spent and not state.ended:
        budget = record.terms.budget
        return f"its budget is spent ({budget.when_spent}): dray workload set {record.id} --budget"
    if state is WorkloadState.FAILED:
        return f"{record.failed_share:.1%} of its tasks failed, {record.terms.failures:.1%} may"
    return ""

"""What a workload says of its jobs, laid under each of them at its submit."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.core.model.records.workload import Terms

OF_CARDS = ("gpu_type", "gpu_backend", "min_vram_gb", "vram_per_gpu_bytes", "gpu_milli", "device")


def lay_under(terms: Terms, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job with what its workload says under them; labels of both."""
    laid = {**terms.defaults, **said_of_jobs(terms)}
    if raw.get("gpu_count") == 0:
        # Who says that it wants no cards wants nothing else about them either.
        laid = {field: value for field, value in laid.items() if field not in OF_CARDS}
    laid.update({field: value for field, value in raw.items() if value is not None})
    given = raw.get("labels")
    if terms.labels and (given is None or isinstance(given, dict)):
        laid["labels"] = {**terms.labels, **(given or {})}
    return laid


def said_of_jobs(terms: Terms) -> dict[str, Any]:
    """What is said of a workload and holds for each of its jobs, where the job does not say otherwise."""
    said: dict[str, Any] = {"queue": terms.queue, "deadline": terms.deadline, "labels": terms.labels}
    said["objective"] = msgspec.to_builtins(terms.objective)
    said = {field: value for field, value in said.items() if value}
    return said if terms.priority is None else said | {"priority": terms.priority}

"""What a job may wait for: another job's success, its end, or its failure, written `ok:ID`, `any:ID` or `fail:ID`; and
services that it uses, by their names.

Speaks of jobs by their ids and states alone. A bare id means `ok:ID`; an array or a gang counts as one job, which has
succeeded when all of its tasks have. `ok:ID/7` speaks of one task of it, which may end long before its job does.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dray.core.model.ids import ID_RULE, NAME_RULE, is_name, split_task_id, task_id
from dray.core.model.records.records import JobState
from dray.core.model.specs.values import texts_fault

KINDS = ("ok", "any", "fail")
MAX_NEEDS = 1024
MAX_USES = 64
_WORDS = {"ok": "to succeed", "any": "to end", "fail": "to fail"}


class Need(NamedTuple):
    """One condition on one job, or on one task of it (`task` from 0 on)."""

    kind: str
    job_id: str
    task: int = -1

    def __str__(self) -> str:
        return f"{self.kind}:{task_id(self.job_id, self.task)}"

    @property
    def what(self) -> str:
        """For people: `job 7`, or `task 7/3`."""
        return f"{'job' if self.task < 0 else 'task'} {task_id(self.job_id, self.task)}"

    @property
    def words(self) -> str:
        """For people: `job 7 to succeed`."""
        return f"{self.what} {_WORDS[self.kind]}"


def read_need(text: str) -> Need:
    """Read a condition that `need_problem` found nothing wrong with."""
    kind, colon, name = text.partition(":")
    if not colon:
        kind, name = "ok", text
    return Need(kind, *(split_task_id(name) or (name, -1)))


def need_problem(text: str) -> str:
    """Say what is wrong with a condition as written; empty where it is sound."""
    kind, colon, job_id = text.partition(":")
    if colon and kind not in KINDS:
        return f"{text[:160]!r} must begin with ok:, any: or fail:, followed by the id of a job"
    name = job_id if colon else kind
    return "" if split_task_id(name) is not None else f"{text[:160]!r} names no job: an id is {ID_RULE}"


def needs_problem(value: Any) -> str:
    """Say what is wrong with a list of conditions; empty where it is sound."""
    if fault := texts_fault(value):
        return fault
    if len(value) > MAX_NEEDS:
        return f"names {len(value)} jobs, the limit is {MAX_NEEDS}"
    if fault := next((problem for item in value if (problem := need_problem(item))), ""):
        return fault
    seen: dict[str, None] = {}
    for need in map(read_need, value):
        if need.what in seen:
            return f"names {need.what} twice: give one condition for it"
        seen[need.what] = None
    return ""


def uses_problem(value: Any) -> str:
    """Say what is wrong with a list of services; empty where it is sound."""
    if fault := texts_fault(value):
        return fault
    if len(value) > MAX_USES:
        return f"names {len(value)} services, the limit is {MAX_USES}"
    if bad := next((item for item in value if not is_name(item)), None):
        return f"{bad[:160]!r} names no service that can be used: a name is {NAME_RULE}"
    told: dict[str, str] = {}
    for item in value:
        if (other := told.setdefault(service_variable(item), item)) != item or value.count(item) > 1:
            return f"names {other} and {item}, which both would be {service_variable(item)}: use one of them by its id"
    return ""


def service_variable(name: str) -> str:
    """Under which name a task finds where a service is; whose it is does not matter there."""
    return f"DRAY_SERVICE_{re.sub('[^A-Z0-9]', '_', name.partition('@')[0].upper())}_URL"


def is_met(need: Need, ended: JobState) -> bool:
    """Whether a job that ended so meets the condition; if not, nothing ever will."""
    if need.kind == "any":
        return True
    return (ended is JobState.SUCCEEDED) == (need.kind == "ok")


def broken_words(need: Need, ended: JobState) -> str:
    """Say why a condition can no longer be met."""
    return f"it waited for {need.words}, and that {'job' if need.task < 0 else 'task'} ended {ended.value}"

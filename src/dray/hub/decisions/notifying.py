"""Who is to be told of a committed note: by the rules of the policy, and by what the job itself asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dray.core.lifecycle.state.effects import Note
from dray.core.model.policies.notifications import Notifications, NotifyRule
from dray.core.model.records.records import Job, JobState
from dray.core.model.specs.notifying import ENDED, ENDS, mail_domain, read_url
from dray.core.model.specs.spec import JobSpec, unpack_spec
from dray.errors import InvalidSpec, Problem

_END_OF = {JobState.SUCCEEDED.value: "done", JobState.KILLED.value: "killed"}
_EVENTS = {
    "task_started": "started",
    "task_preempting": "preempted",
    "task_idle": "idle",
    "alarm_raised": "alarm",
    "alarm_cleared": "cleared",
    "worker_quarantined": "alarm",
}
NOTES = frozenset(("job_ended", *_EVENTS))
# Looked for in a packed spec, as the name of its field: to unpack each spec that ends would cost much more.
_MARK = b"notify"


class Target(NamedTuple):
    """One to be told: how, and which; `named_by_job` says who chose it."""

    way: str
    name: str
    named_by_job: bool = False


def event_of(note: Note) -> str:
    """What a note means to those who are told."""
    if note.type == "job_ended":
        return _END_OF.get(note.data["state"], "failed")
    return _EVENTS[note.type]


def find_targets(told: Notifications, event: str, job: Job | None) -> list[Target]:
    """Everybody who is to be told of it, each once."""
    found = dict.fromkeys(_by_policy(told, event, job))
    if job is not None and _MARK in job.spec:
        spec = unpack_spec(job.spec)
        if event in spec.notify or (event in ENDS and ENDED in spec.notify):
            found |= dict.fromkeys(job_targets(told, spec))
    return list(found)


def _by_policy(told: Notifications, event: str, job: Job | None) -> Iterator[Target]:
    for rule in told.rules:
        if event in rule.on or (event in ENDS and ENDED in rule.on):
            if job is not None and not _is_about(rule, job):
                continue
            yield from (Target(way_of(told, name), name) for name in rule.to)


def _is_about(rule: NotifyRule, job: Job) -> bool:
    if (rule.user and rule.user != job.user) or (rule.queue and rule.queue != job.queue):
        return False
    if not rule.label:
        return True
    name, mark, value = rule.label.partition("=")
    labels = unpack_spec(job.spec).labels
    return name in labels and (not mark or labels[name] == value)


def job_targets(told: Notifications, spec: JobSpec) -> Iterator[Target]:
    """Whom a job has told: those it names, or those the policy has for jobs that name nobody."""
    for name in spec.notify_to or told.jobs.to:
        if "://" in name:
            yield Target("webhook", name, True)
        elif "@" in name:
            yield Target("mail", name, True)
        else:
            yield Target(way_of(told, name), name)


def way_of(told: Notifications, name: str) -> str:
    """How a receiver is told; empty for one that the policy does not have."""
    receiver = told.receivers.get(name)
    if receiver is None:
        return ""
    return "webhook" if receiver.webhook else "mail" if receiver.mail else "command"


def check_notify(told: Notifications, spec: JobSpec) -> str:
    """What stands against telling whom a job names; empty where nothing does."""
    if not spec.notify:
        return ""
    if not spec.notify_to and not told.jobs.to:
        return (
            "the policy has nobody who is told where a job names nobody: add whom to tell, or have an admin set "
            "notifications.jobs.to"
        )
    return next((fault for name in spec.notify_to if (fault := _target_fault(told, name))), "")


def _target_fault(told: Notifications, name: str) -> str:
    if (url := read_url(name)) is not None:
        if told.jobs.webhooks == "none" and not told.jobs.networks:
            return f"jobs may name no addresses here: name a receiver ({_list(told)})"
        if url.scheme != "https" and not told.jobs.networks:
            return f"{url.shown} is not https: what is said in the clear can be read and changed on its way"
        return ""
    if domain := mail_domain(name):
        if not any(domain == known.lower() for known in told.jobs.mail_domains):
            allowed = ", ".join(told.jobs.mail_domains) or "none"
            return f"jobs may have mail sent to these domains: {allowed}; or name a receiver ({_list(told)})"
        return ""
    return "" if name in told.receivers else f"there is no receiver {name!r}; there is {_list(told)}"


def _list(told: Notifications) -> str:
    return ", ".join(sorted(told.receivers)) or "none"


def check_notifications(told: Notifications, specs: Sequence[JobSpec]) -> None:
    """Refuse jobs that want somebody told whom the policy does not let them."""
    problems = [
        Problem(f"[{place}].notify_to" if len(specs) > 1 else "notify_to", fault)
        for place, spec in enumerate(specs)
        if spec.notify and (fault := check_notify(told, spec))
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems[:200])

"""Replacing the policy: at the hub's start by the file of its home, later by whoever may; never against the state.

Decides inside the turn, so that a job cannot slip into a queue that is just being removed. The surprising rule: the
file counts only when its content has changed since it was last read; what was applied since outlives restarts.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dray.core.lifecycle.state.events import Clock, PolicyChanged
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import DEFAULT_QUEUE, Policy, pack_policy
from dray.core.model.policies.spelling import compare_policies
from dray.core.model.records.ledger import PolicyRecord
from dray.core.model.specs.resources import WHOLE
from dray.core.model.specs.values import suggest
from dray.errors import Conflict, InvalidPolicy, Problem, Stale
from dray.hub.access.caller import Caller
from dray.hub.decisions.holdings import Holding, find_holdings, quotas_in_force
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord
from dray.marked_yaml import MarkedYaml, Place, read_text

APPLIED, DEFAULT = "applied", "default"
BROUGHT_FILE, NONE_BROUGHT = "policy.brought", "-"
SHOWN_JOBS = 5
SHOWN_CHANGES = 20
logger = logging.getLogger("dray.hub")
FILE_NAME = "policy.yaml"
MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 200_000
MAX_DEPTH = 16


class Change(NamedTuple):
    """What another policy would come to: values that differ, and what stands in its way."""

    changes: list[tuple[str, Any, Any]]
    conflicts: list[Problem]


def policy_record(state: State) -> PolicyRecord:
    """Where the policy in force came from."""
    record = state.ledger.get(("policy", ""))
    return record if isinstance(record, PolicyRecord) else PolicyRecord()


def examine(state: State, policy: Policy, force: bool = False) -> Change:
    """Compare another policy with the one in force and with what waits and runs."""
    conflicts = [*_removed_queues(state, policy), *([] if force else _exceeded_quotas(state, policy))]
    return Change(compare_policies(state.policy, policy), conflicts)


def etag_of(policy: Policy) -> str:
    """What names the content of a policy: another content has another one."""
    return hashlib.sha256(pack_policy(policy)).hexdigest()[:16]


def check_etag(policy: Policy, etag: str) -> None:
    """Refuse to replace another policy than the one that was looked at."""
    if etag and etag != etag_of(policy):
        raise Stale("another policy has come into force meanwhile: look at that, and change it")


def apply_policy(
    caller: Caller, policy: Policy, force: bool, finish: Callable[[State, Change], Any], etag: str = ""
) -> Callable[[State, Clock], Decision]:
    """Make the decision of replacing the policy; the same one again changes nothing."""

    def decide(state: State, clock: Clock) -> Decision:
        check_etag(state.policy, etag)
        change = examine(state, policy, force)
        _refuse(change.conflicts, "the policy stays as it is")
        if policy == state.policy:
            return Decision(answer=lambda after: finish(after, change))
        event = PolicyChanged(pack_policy(policy), APPLIED, caller.user, policy_record(state).digest)
        record = AuditRecord(
            clock.at_ms, caller.user, caller.token_id, "apply_policy", "policy", _tell(change)
        )
        return Decision([event], lambda after: finish(after, change), (record,))

    return decide


def settle_at_start(
    state: State, file: PolicyFile | None, brought: str | None = None
) -> Callable[[State, Clock], Decision] | None:
    """What the file of the home changes, None where it says nothing new; raises `Conflict` where it cannot hold.

    A quota below what runs holds from now on: refusing it would leave the site without a hub to stop that work with.
    Where hubs of several homes have one store, `brought` names what this home has brought before: a hub that takes over
    leaves the policy as it is, whatever its home has, unless somebody has changed the file there since.
    """
    record = policy_record(state)
    if brought is not None and not _is_news(record, file, brought):
        return None
    if file is None:
        if record.origin != FILE_NAME:
            return None
        policy, origin, digest = Policy(), DEFAULT, ""
    elif file.digest == record.digest:
        return None
    else:
        policy, origin, digest = file.policy, FILE_NAME, file.digest
    change = examine(state, policy, force=True)
    _refuse(change.conflicts, f"{FILE_NAME} cannot be used as it is")
    event = PolicyChanged(pack_policy(policy), origin, "", digest)

    def decide(state: State, clock: Clock) -> Decision:
        audit = AuditRecord(clock.at_ms, "", "", "read_policy", origin, _tell(change))
        return Decision([event], audit=(audit,))

    return decide


def _is_news(record: PolicyRecord, file: PolicyFile | None, brought: str) -> bool:
    if file is None:
        # Gone from the very home that the policy in force came from.
        return bool(brought) and record.digest == brought
    if not brought and record.origin != DEFAULT and file.digest != record.digest:
        logger.warning(
            "%s of this home is not the policy in force, which stays: apply it (`dray config apply`), or change the "
            "file and start the hub anew",
            FILE_NAME,
        )
        return False
    return file.digest != brought


def read_brought(home: Path) -> str:
    """Name the policy file that a home has brought into its store last; empty where it has never led there."""
    try:
        return (home / BROUGHT_FILE).read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _refuse(conflicts: list[Problem], what: str) -> None:
    if conflicts:
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        first = f"{conflicts[0].where}: {conflicts[0].what}"
        raise Conflict(f"{what}: {first}{more}", conflicts)


def _tell(change: Change) -> str:
    names = [name for name, _, _ in change.changes]
    more = ", …" if len(names) > SHOWN_CHANGES else ""
    return f"{len(names)} values: {', '.join(names[:SHOWN_CHANGES])}{more}"


def _removed_queues(state: State, policy: Policy) -> list[Problem]:
    """Queues that the policy no longer has, and in which jobs are."""
    if not policy.queues:
        return []
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    jobs: dict[str, list[str]] = {}
    for job in state.jobs.values():
        if policy.admits(job.queue) or job.state.final:
            continue
        waiting[job.queue] += job.waiting
        running[job.queue] += job.live
        shown = jobs.setdefault(job.queue, [])
        if len(shown) <= SHOWN_JOBS:
            shown.append(job.id)
    return [
        Problem(
            f"queues.{queue}",
            f"is not listed, but {waiting[queue]} tasks wait and {running[queue]} run in it "
            f"({', '.join(ids[:SHOWN_JOBS])}{', …' if len(ids) > SHOWN_JOBS else ''}): keep the queue until they "
            "have ended, or cancel them",
        )
        for queue, ids in sorted(jobs.items())
    ]


def _exceeded_quotas(state: State, policy: Policy) -> list[Problem]:
    """Quotas below what runs already; those that were so before are no news."""
    new = [quota for quota in policy.quotas if quota.gpus >= 0 and quota not in state.policy.quotas]
    if not new:
        return []
    held = find_holdings(state)
    problems = []
    for (kind, name), quota in sorted(quotas_in_force(policy, held).items(), key=lambda item: item[0]):
        holding = held[kind].get(name, Holding())
        if quota in new and holding.gpu_milli > quota.gpus * WHOLE:
            what = (
                f"is {quota.gpus:g}, but {kind} {name!r} holds {holding.gpu_milli / WHOLE:g} now: wait until less "
                "runs, or force it (what runs goes on, nothing new starts)"
            )
            problems.append(Problem(f"quotas[{policy.quotas.index(quota)}].gpus", what))
    return problems


def check_queue(policy: Policy, queue: str) -> str:
    """What is wrong with submitting to a queue; empty where it is welcome."""
    if policy.admits(queue):
        return ""
    known = list(dict.fromkeys([*policy.queues, DEFAULT_QUEUE]))
    return f"there is no queue {queue!r}{suggest(queue, known)}; this hub has {', '.join(known)}"


# --- the policy as a YAML file, with line and column of each problem -------------------------------------------------


class PolicyFileError(InvalidPolicy):
    """A policy file with problems: a mistake in what was written, like a wrong flag."""

    exit_code = 2


class PolicyFile(NamedTuple):
    """What a file says, as a document and as a policy; `digest` names its content."""

    document: dict[str, Any]
    policy: Policy
    digest: str


def read_policy_file(path: Path) -> PolicyFile:
    """Read a file, or raise `PolicyFileError` with every problem at its line."""
    text = read_text(path, MAX_FILE_BYTES, "no policy needs that", PolicyFileError)
    document, policy = read_policy_text(text, str(path))
    return PolicyFile(document, policy, hashlib.sha256(text.encode()).hexdigest())


def find_policy_file(home: Path) -> PolicyFile | None:
    """The policy file of a home, where there is one."""
    path = home / FILE_NAME
    return read_policy_file(path) if path.exists() else None


def read_policy_text(text: str, name: str) -> tuple[dict[str, Any], Policy]:
    """Read YAML as a policy; `name` is what problems call it."""
    reader = _Reader(text)
    document = reader.read()
    policy = Policy()
    if not reader.stopped:
        try:
            policy = check_policy(document)
        except InvalidPolicy as fault:
            for problem in fault.problems:
                reader.note(reader.find(problem.where), f"{problem.where}: {problem.what}")
    if problems := reader.problems(name):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise PolicyFileError(f"{name} has {count}, nothing was changed", problems)
    return document or {}, policy


class _Reader(MarkedYaml):
    what, called, most, deepest = "policy", "name", MAX_VALUES, MAX_DEPTH

    def find(self, where: str) -> yaml.Mark | None:
        """Where a value stands; where it is missing, where the entry around it does."""
        while where and where not in self._spelled:
            where = where[: max(where.rfind("."), where.rfind("["), 0)]
        return self._spelled.get(where)

    @cached_property
    def _spelled(self) -> dict[str, yaml.Mark]:
        return {_spell(place): mark for place, mark in self.marks.items()}


def _spell(place: Place) -> str:
    """A place as checks name it, such as `quotas[1].gpus`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in place).removeprefix(
        "."
    )

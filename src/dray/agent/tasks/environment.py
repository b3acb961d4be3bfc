"""What a task finds around it: a scrubbed environment, its own variables, the cards it may see.

Nothing of the agent's environment leaks in but the few names below: the agent's may hold the hub's token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dray.agent.decide.attempts import is_careful
from dray.agent.decide.effects import Launch
from dray.agent.decide.preparing import tree_meta, waits_for_tree
from dray.agent.detect import mask_name
from dray.core.model.capability import Device
from dray.core.model.ids import split_task_id

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SHELL", "TMPDIR", "LD_LIBRARY_PATH")
FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_environment(
    launch: Launch, worker: str, own: Mapping[str, str], cards: Sequence[Device]
) -> dict[str, str]:
    """Give the whole environment of a task: kept names, then the job's own, then dray's."""
    environment = {name: own[name] for name in KEPT if name in own}
    environment.setdefault("PATH", FALLBACK_PATH)
    # What a program printed before it was killed is what people need most: Python would have kept it back.
    environment["PYTHONUNBUFFERED"] = "1"
    environment |= launch.spec.env
    return environment | _variables(launch, worker) | mask_cards(launch.devices, cards)


def _variables(launch: Launch, worker: str) -> dict[str, str]:
    spec = launch.spec
    job_id, index = split_task_id(spec.id) or (spec.id, -1)
    variables = {
        "DRAY_JOB_ID": job_id,
        "DRAY_TASK_ID": spec.id,
        "DRAY_ATTEMPT": str(launch.attempt_no),
        "DRAY_ATTEMPT_UID": launch.uid,
        "DRAY_WORKER": worker,
        "DRAY_TIER": spec.job_tier,
        "DRAY_DEVICES": ",".join(str(device) for device in launch.devices),
        "DRAY_TASK_INDEX": str(max(index, 0)),
    }
    if spec.name:
        variables["DRAY_JOB_NAME"] = spec.name
    if spec.user_id:
        variables["DRAY_USER"] = spec.user_id
    if spec.array is not None:
        variables["DRAY_ARRAY_INDEX"] = str(spec.array.first + max(index, 0) * spec.array.step)
        variables["DRAY_ARRAY_COUNT"] = str(spec.array.count)
    return variables


def mask_cards(devices: Sequence[int], cards: Sequence[Device]) -> dict[str, str]:
    """Let a task see the cards the hub chose and no others; none at all without an ask."""
    by_index = {card.index: card for card in cards}
    names = [mask_name(by_index[index]) if index in by_index else str(index) for index in devices]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def build_task(
    launch: Launch, environment: dict[str, str], work: str, task_user: str, tree: str = "", built: str = ""
) -> dict[str, Any]:
    """Spell a launch as the supervisor's `run` entry; `tree` is where its snapshot will be, `built` its environment."""
    spec = launch.spec
    meta: dict[str, Any] = {"pool": spec.slot_pool or spec.type, "devices": list(launch.devices)}
    if waits_for_tree(spec):
        meta["tree"] = tree_meta(spec)
    if launch.behind:
        meta["behind"] = launch.behind
    if spec.ports:
        meta["named"] = list(spec.ports)
    if spec.health_check is not None:
        meta["health"] = msgspec.to_builtins(spec.health_check)
    if tree:
        environment = {**environment, "DRAY_SNAPSHOT": tree}
    if built:
        path = f"{built}/bin:{environment.get('PATH', FALLBACK_PATH)}"
        environment = {**environment, "VIRTUAL_ENV": built, "PATH": path}
    return {
        "uid": launch.uid,
        "task_id": spec.id,
        "argv": list(spec.command),
        "env": environment,
        "cwd": os.path.join(tree or work, spec.workdir),
        "own_cwd": not spec.workdir,
        "prolog": spec.prolog or None,
        "epilog": spec.epilog or None,
        "limit_s": launch.limit_s,
        "grace_s": launch.grace_s,
        "lease_s": launch.lease_s,
        "heard_at": launch.heard_ms / 1000 if launch.heard_ms else None,
        "prompt": is_careful(spec),
        "start_by": launch.start_by_ms / 1000 if launch.start_by_ms else None,
        "memory_bytes": spec.memory_bytes,
        "terminal": spec.interactive,
        "user": task_user or None,
        "behind": launch.behind or None,
        "behind_s": launch.behind_s,
        "meta": meta,
    }

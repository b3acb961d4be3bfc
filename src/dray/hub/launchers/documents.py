"""Launches and launchers as people read them. Pure."""

from __future__ import annotations

from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.providers.prices import MICRO, spell_money
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import LaunchRecord
from dray.core.scheduling.launches.decide import why_not
from dray.hub.documents.records import Document, moment


def launcher_names(state: State) -> list[str]:
    """Every launcher of the policy, and those of which a worker is left."""
    listed = [name for name, provider in state.policy.providers.items() if provider.launch is not None]
    return list(dict.fromkeys([*listed, *state.launches]))


def launcher_document(state: State, name: str) -> Document:
    """One launcher as it stands now."""
    launch = launches.launch_of(state, name)
    counts = dict.fromkeys(("coming", "joined", "ending"), 0)
    for _, record in launches.of_launcher(state, name):
        if record.state in launches.COMING:
            counts["coming"] += 1
        elif record.state == launches.JOINED:
            counts["joined"] += 1
        elif record.state not in launches.OVER:
            counts["ending"] += 1
    standing = launches.standing_of(state, name)
    return {
        "name": name,
        "way": launch.way if launch is not None else "",
        "min": launch.min if launch is not None else 0,
        "most": launch.most if launch is not None else 0,
        **counts,
        "failures": standing.failures,
        "spent_today": spell_money(launches.spent_today(state, name, state.at_ms)),
        "budget_per_day": launch.budget_per_day if launch is not None else 0,
        "note": why_not(state, name, launch) if launch is not None else "it is gone from the policy",
    }


def launch_document(state: State, launch_id: str, record: LaunchRecord) -> Document:
    """One launch."""
    worker = state.workers.get(launch_id)
    return {
        "id": launch_id,
        "launcher": record.launcher,
        "state": record.state,
        "why": record.why,
        "job_id": record.job_id,
        "user": record.user,
        "handle": record.handle,
        "said": record.said,
        "worker": launch_id if worker is not None else None,
        "tasks": len(state.held.get(launch_id, ())),
        "asked_at": moment(record.asked_at_ms),
        "started_at": moment(record.started_at_ms),
        "joined_at": moment(record.joined_at_ms),
        "ended_at": moment(record.ended_at_ms),
        "price_per_hour": record.rate / MICRO,
    }

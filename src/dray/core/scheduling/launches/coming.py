"""Who is on the way for a job, and whom it could have: what `why` says about workers that are not there yet."""

from __future__ import annotations

from typing import NamedTuple

from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.launching import Launch
from dray.core.model.records.ledger import LaunchRecord
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import Asks
from dray.core.scheduling.launches.decide import why_not
from dray.core.scheduling.launches.imagined import Imagined

MOST_MEASURED = 20


class Coming(NamedTuple):
    """One launcher that could help a job: how many of its workers are being started, in about how long the first is
    there (0: nobody knows), or why none is asked for now.
    """

    launcher: str
    workers: int
    eta_s: int
    why_not: str
    said: str = ""


def who_comes(state: State, job: Job) -> list[Coming]:
    """What launchers do for a job that waits; nothing where none of their workers would hold a task of it."""
    asks = state.asks(job.shape)
    found: list[Coming] = []
    for name, provider in state.policy.providers.items():
        launch = provider.launch
        if launch is None or not _holds(name, launch, job, asks):
            continue
        records = [
            record for _, record in launches.of_launcher(state, name) if record.state in launches.COMING
        ]
        if records:
            said = next((record.said for record in records if record.said not in ("", "started")), "")
            found.append(Coming(name, len(records), _eta_s(state, name, records), "", said))
        else:
            found.append(Coming(name, 0, 0, _tell_why_not(state, name, launch, job)))
    return found


def _holds(name: str, launch: Launch, job: Job, asks: Asks) -> bool:
    worker = Imagined(name, launch)
    return worker.lasts(job) and any(worker.fits(ask) for ask in asks)


def _eta_s(state: State, name: str, records: list[LaunchRecord]) -> int:
    """When the first of them is there, if it takes as long as others took lately."""
    taken = [
        record.joined_at_ms - record.asked_at_ms
        for _, record in launches.of_launcher(state, name)
        if record.joined_at_ms
    ][-MOST_MEASURED:]
    if not taken:
        return 0
    usual_ms = sorted(taken)[len(taken) // 2]
    return max(1, min(usual_ms - (state.at_ms - record.asked_at_ms) for record in records) // 1000)


def _tell_why_not(state: State, name: str, launch: Launch, job: Job) -> str:
    if why := why_not(state, name, launch):
        return why
    left_s = launch.wait_s - (state.now_ms - job.waiting_since_ms) / 1000
    return f"one is asked for once it has waited {launch.wait_s:g} s" if left_s > 0 else ""


def tell(coming: Coming) -> str:
    """One line about a launcher."""
    if coming.workers:
        many = "1 worker" if coming.workers == 1 else f"{coming.workers} workers"
        about = f", about {_span(coming.eta_s)}" if coming.eta_s else ""
        said = f" ({coming.said})" if coming.said else ""
        return (
            f"{many} of {coming.launcher} {'is' if coming.workers == 1 else 'are'} being started{about}{said}"
        )
    return (
        f"a worker of {coming.launcher} would hold it: {coming.why_not or 'one is asked for within seconds'}"
    )


def _span(seconds: int) -> str:
    return f"{seconds} s" if seconds < 90 else f"{round(seconds / 60)} min"

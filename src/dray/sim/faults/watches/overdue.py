"""What should have happened by now: every timer of the hub, looked at from outside, with some slack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dray.core.lifecycle.happenings.workers import LONGEST_LOOK_MS, MOST_UNKNOWN
from dray.core.lifecycle.holding.attempts import with_followers
from dray.core.model.records.records import Attempt, Phase
from dray.sim.faults.nodes.hub_life import HOUSEKEEPING_MS, HubLife
from dray.sim.faults.nodes.runs import Runs

SLACK_MS = 35_000
SHORT_SLACK_MS = 15_000
ZOMBIE_MS = 40_000


def find_overdue(life: HubLife, runs: Runs) -> list[str]:
    """Name what waits longer than any rule allows; of a hub that stood still until now nothing, it has yet to look."""
    found = [
        *_silences(life),
        *_losses(life),
        *_unaccepted(life),
        *_waits(life),
        *_drains(life),
        *_stops(life, runs),
        *_unconfirmed(life, runs),
        *_zombies(life, runs),
        *_untold_ports(life, runs),
        *_rests(life),
    ]
    return found if life.world.now_ms - life.steady_ms >= SHORT_SLACK_MS else []


def _untold_ports(life: HubLife, runs: Runs) -> Iterator[str]:
    """Of what runs with ports the hub knows them, where its worker could say so all the time."""
    state = life.state
    held = {run.uid: run.ports for going in runs.going.values() for run in going if run.ports}
    for uid, ports in held.items():
        attempt = state.attempts.get(uid)
        if attempt is None or attempt.phase is not Phase.RUNNING or attempt.ports == ports:
            continue
        session = life.sessions.open.get(state.presence[attempt.worker].session)
        age_ms = max(SHORT_SLACK_MS, life.clock().now_ms - attempt.assigned_ms)
        if session is not None and session.connection.undisturbed(age_ms):
            yield f"attempt {uid} runs with ports {ports}, and the hub has heard of {attempt.ports}"


def find_unasked(life: HubLife) -> Iterator[str]:
    """Who was asked to stop and is still there is asked again, for as long as it can be reached."""
    state, now_ms = life.state, life.world.now_ms
    for uid, attempt in state.attempts.items():
        if attempt.phase is not Phase.STOPPING:
            continue
        session = life.sessions.open.get(state.presence[attempt.worker].session)
        if session is None:
            continue
        grace_over_ms = attempt.cancel_ms - life.shift_ms + round(1000 * attempt.grace_s)
        began_ms = max(life.steady_ms, session.connection.began_ms)
        waits_ms = now_ms - max(began_ms, grace_over_ms, life.stop_asked_ms.get(uid, 0))
        if waits_ms > state.rules.stop_again_ms + SHORT_SLACK_MS:
            yield f"attempt {uid} is to stop on {attempt.worker}, and was not asked again for {waits_ms} ms"


def find_unstopped(life: HubLife, over_ms: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """A worker that names in a heartbeat what was over by then is asked to stop it; `over_ms`: since when that is.

    Looked at once the heartbeat must have been read, if its session is still the one that counts. What was lost is left
    out: it may be taken back.
    """
    ready = [entry for entry in life.named if entry[0] < life.turn_ms - SHORT_SLACK_MS]
    del life.named[: len(ready)]
    for heard_ms, worker, session, uids in ready:
        presence = life.state.presence.get(worker)
        if presence is None or presence.session != session:
            continue
        over = [uid for uid in uids if over_ms.get((worker, uid), heard_ms) < heard_ms]
        # Of more than these one heartbeat has some looked at, and the next ones the others.
        for uid in over if len(uids) <= MOST_UNKNOWN else ():
            if life.stop_asked_ms.get(uid, -1) < heard_ms:
                yield f"{worker} said at {heard_ms} that it runs {uid}, over by then, and was not asked to stop"


def find_stale(life: HubLife) -> Iterator[str]:
    """A hub that lost its store to another finds out, also with nothing to write, and never gets it back."""
    stale_ms = life.world.now_ms - life.replaced_ms
    if life.replaced_ms >= 0 and life.lead is None and life.store.epoch == life.site.file.epoch:
        yield f"hub {life.number} lost its store {stale_ms} ms ago and took it back"
    if life.replaced_ms >= 0 and stale_ms > HOUSEKEEPING_MS + SHORT_SLACK_MS:
        yield f"hub {life.number} lost its store {stale_ms} ms ago and goes on"


def _silences(life: HubLife) -> Iterator[str]:
    """Of a worker that says nothing the hub is wary in time, also where that has happened before."""
    state, now_ms = life.state, life.clock().now_ms
    for worker, presence in state.presence.items():
        silent_ms = now_ms - presence.seen_ms
        if not presence.suspect and silent_ms > state.rules.suspect_ms + SHORT_SLACK_MS:
            yield f"{worker} says nothing for {silent_ms} ms, and is not suspected of anything"


def _losses(life: HubLife) -> Iterator[str]:
    """A worker that stays silent is given up in the end."""
    state, now_ms = life.state, life.world.now_ms
    age_ms = now_ms - life.began_ms
    braked = life.braked_ms >= 0 and now_ms - life.braked_ms < SLACK_MS
    if age_ms < state.rules.start_grace_ms + SLACK_MS or braked:
        return
    for worker, held in state.held.items():
        silent_ms = min(age_ms, now_ms - life.heard_ms.get(worker, life.began_ms))
        for uid in with_followers(state, held):
            attempt = state.attempts[uid]
            if attempt.phase is not Phase.ASSIGNED and silent_ms > attempt.lost_after_ms + SLACK_MS:
                yield f"attempt {uid} is still {attempt.phase} after {silent_ms} ms of silence of {worker}"


def _unaccepted(life: HubLife) -> Iterator[str]:
    """An assignment that nobody accepts is taken back."""
    state, now_ms = life.state, life.clock().now_ms
    for uid, attempt in state.attempts.items():
        waits_ms = now_ms - max(attempt.assigned_ms, attempt.cancel_ms, state.started_ms)
        if attempt.phase is Phase.ASSIGNED and waits_ms > state.rules.accept_ms + SHORT_SLACK_MS:
            yield f"attempt {uid} waits for acceptance by {attempt.worker} since {waits_ms} ms"


def _waits(life: HubLife) -> Iterator[str]:
    """A job with a scheduling timeout does not wait beyond it, while nothing of it runs."""
    now_ms = life.world.now_ms
    for job in life.state.jobs.values():
        begun = job.service and job.started_at_ms
        if not job.timeout_ms or not job.waiting or job.live or job.state.final or job.barred or begun:
            life.waits_since.pop(job.id, None)
            continue
        began_ms, placed_ms = life.waits_since.get(job.id, (now_ms, job.waiting_since_ms))
        if placed_ms != job.waiting_since_ms:
            began_ms = now_ms
        life.waits_since[job.id] = (began_ms, job.waiting_since_ms)
        if now_ms - began_ms > job.timeout_ms + SHORT_SLACK_MS:
            yield f"job {job.id} waits since {now_ms - began_ms} ms, its scheduling timeout is {job.timeout_ms}"


def _rests(life: HubLife) -> Iterator[str]:
    """A replica that has rested is queued again."""
    state, now_ms = life.state, life.clock().now_ms
    for job_id in state.services:
        for index in range(state.jobs[job_id].cursor):
            task = state.tasks.get((job_id, index))
            if task is not None and 0 < task.again_ms < now_ms - SHORT_SLACK_MS:
                yield f"replica {job_id}/{index} has rested since {now_ms - task.again_ms} ms"


def _drains(life: HubLife) -> Iterator[str]:
    """A drain that is to end by itself does, by the wall clock of the hub, which may be set back and forth."""
    at_ms, shift_ms = life.clock().at_ms, life.world.wall_shift_ms
    for worker in life.state.workers.values():
        if worker.draining and worker.drain_until_ms and at_ms > worker.drain_until_ms:
            before_ms, since_ms = life.drained_ms.get(worker.id, (shift_ms, life.world.now_ms))
            if before_ms != shift_ms:
                since_ms = life.world.now_ms  # the clock may have shown an earlier time when the hub looked
            life.drained_ms[worker.id] = shift_ms, since_ms
            waits_ms = life.world.now_ms - since_ms
            if waits_ms > LONGEST_LOOK_MS + SHORT_SLACK_MS:
                yield f"worker {worker.id} is drained {waits_ms} ms after that was to end"
        else:
            life.drained_ms.pop(worker.id, None)


def _stops(life: HubLife, runs: Runs) -> Iterator[str]:
    """A worker that speaks confirms in the end what it was asked to stop; one that was away has from its return on,
    one whose supervisor stood still from when that reads again.

    Between two storms it may be heard for a moment in which it had nothing to repeat: the calm must have lasted.
    """
    state, now_ms = life.state, life.world.now_ms
    for uid, attempt in state.attempts.items():
        if attempt.phase is not Phase.STOPPING:
            continue
        session = life.sessions.open.get(state.presence[attempt.worker].session)
        if session is None:
            continue
        asked_ms = max(attempt.cancel_ms, state.started_ms) - life.shift_ms + round(1000 * attempt.grace_s)
        reads_ms = runs.reads_from_ms.get(session.connection.owner, 0)
        waits_ms = now_ms - max(asked_ms, session.connection.began_ms, reads_ms)
        if waits_ms > 2 * state.rules.stop_again_ms + SLACK_MS and session.connection.undisturbed(SLACK_MS):
            yield f"attempt {uid} was asked to stop {waits_ms} ms ago, {attempt.worker} speaks and has it still"


def _unconfirmed(life: HubLife, runs: Runs) -> Iterator[str]:
    """A worker that is asked to stop what it does not run says so, where nothing keeps either's word away.

    The calm must have lasted since the request: one that fell into a storm is repeated only when the grace is over.
    Only the supervisor knows what runs: while it stands still nobody can say so.
    """
    state, now_ms = life.state, life.world.now_ms
    for uid, asked_ms in life.stop_asked_ms.items():
        attempt = state.attempts.get(uid)
        if attempt is None or attempt.phase is not Phase.STOPPING or state.workers[attempt.worker].base:
            continue
        session = life.sessions.open.get(state.presence[attempt.worker].session)
        # What was never accepted may have gone with the worker's supervisor: the hub takes that back by its own timer.
        patience_ms = SHORT_SLACK_MS + (0 if attempt.accepted_at_ms else state.rules.accept_ms)
        if session is None or asked_ms < session.connection.began_ms:
            continue
        if life.heard_ms.get(attempt.worker, 0) < asked_ms:
            continue  # it says nothing at all: the answer to its registration was lost, and it has yet to dial again
        if now_ms - max(asked_ms, runs.reads_from_ms.get(session.connection.owner, 0)) < patience_ms:
            continue
        ends = [run.ended_ms for run in runs.of_task.get(state.spell(attempt), ()) if run.uid == uid]
        busy = any(ended_ms < 0 or now_ms - ended_ms < SHORT_SLACK_MS for ended_ms in ends)
        if not busy and session.connection.undisturbed(max(SLACK_MS, now_ms - asked_ms)):
            yield f"{attempt.worker} was asked to stop {uid}, does not run it, and has not said so"


def _zombies(life: HubLife, runs: Runs) -> Iterator[str]:
    """What the hub has given up does not go on running where nothing keeps the hub's word away."""
    now_ms = life.world.now_ms
    for session in life.sessions.open.values():
        presence = life.state.presence.get(session.worker)
        connection = session.connection
        if presence is None or presence.session != session.number or not connection.undisturbed(ZOMBIE_MS):
            continue
        reads_ms = runs.reads_from_ms.get(connection.owner, 0)
        for run in runs.going.get(connection.owner, ()):
            attempt = life.store.find_attempt(run.uid)
            if attempt is None or attempt.phase.live or run.uid in life.state.attempts:
                continue
            if not run.names_attempt or run.stranger:
                continue
            if run.given_up_ms < 0:
                run.given_up_ms = now_ms
            elif now_ms - max(run.given_up_ms, reads_ms, _grace_over_ms(life, attempt)) > ZOMBIE_MS:
                yield f"{run} goes on, the hub has it as {attempt}"


def _grace_over_ms(life: HubLife, attempt: Attempt) -> int:
    """Until when somebody else's worker may let what it was asked to stop go on.

    One that was cancelled with a grace and taken back before that was over is asked again, with none. dray's own agents
    take the shorter one; others need not, and what they were given first they may use up.
    """
    worker = life.state.workers.get(attempt.worker)
    if worker is None or not worker.base or not attempt.cancel:
        return 0
    return attempt.cancel_ms - life.shift_ms + round(1000 * attempt.grace_s)

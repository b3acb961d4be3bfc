"""What must always hold. Checked after steps in simulation and on demand live (`dray doctor`).

Each check derives a number a second way and compares: a cache that drifted, a task in two places or in none, a
held resource that nobody holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.counts.agreement import workload_problems
from dray.core.lifecycle.holding import groups
from dray.core.lifecycle.holding.lanes import lane_at
from dray.core.lifecycle.holding.rollouts import shape_of
from dray.core.lifecycle.state.lines import RANGE, CrowdKey
from dray.core.lifecycle.state.parties import Gate, Holding, QuotaGate, cost_of
from dray.core.lifecycle.state.state import State, Using
from dray.core.model.records.ledger import Receipt
from dray.core.model.records.records import Attempt, Job, JobState, Task
from dray.core.model.specs.dependency import read_need
from dray.core.model.specs.resources import WHOLE


def problems(state: State) -> list[str]:
    """Every invariant that does not hold, in words; empty when all is well."""
    checks = (
        *(_tasks, _jobs, _attempts, _followers, _columns, _capacity),
        *(_backlog, _waits, _parties, _gates, _receipts, _resuming, _using, workload_problems),
    )
    return [problem for check in checks for problem in check(state)]


def job_problems(state: State, job_id: str) -> list[str]:
    """The invariants of one job and its tasks: what a step has touched can be checked after every step."""
    job = state.jobs.get(job_id)
    if job is None:
        return []
    tasks = [task for index in range(job.total) if (task := state.tasks.get((job_id, index))) is not None]
    return list(_job(state, job, tasks))


def _tasks(state: State) -> Iterator[str]:
    for (job_id, index), task in state.tasks.items():
        name = f"task {job_id}/{index}"
        places = [bool(task.current), task.queued, task.state.final, task.again_ms > 0]
        if sum(places) != 1:
            where = (
                f"current={task.current!r} queued={task.queued} state={task.state} again_ms={task.again_ms}"
            )
            yield f"{name} is in {sum(places)} places: {where}"
        if task.current:
            attempt = state.attempts.get(task.current)
            ended = attempt is None or not attempt.phase.live
            if ended and (attempt is None or not state.jobs[job_id].gang):
                yield f"{name} names {task.current} as current, which is not live"
        if task.queued != (index in state.requeued_of.get(job_id, ())):
            yield f"{name}: queued={task.queued} disagrees with the list of tasks queued again"
        if job_id not in state.jobs:
            yield f"{name} has no job"


def _waits(state: State) -> Iterator[str]:
    """Whoever waits has a mark of since when; one that is left over is of a job that is charged in this turn."""
    waits = state.waits
    for job in state.jobs.values():
        marked = job.id in waits.of and job.id not in waits.due
        if marked != bool(job.waiting):
            yield f"job {job.id} has {job.waiting} tasks waiting, {'a' if marked else 'no'} mark says since when"
    for job_id in waits.of:
        if job_id not in state.jobs:
            yield f"a mark says since when job {job_id} waits, which is not here"


def _jobs(state: State) -> Iterator[str]:
    by_job: dict[str, list[Task]] = {}
    for task in state.tasks.values():
        by_job.setdefault(task.job_id, []).append(task)
    for job in state.jobs.values():
        yield from _job(state, job, by_job.get(job.id, []))


def _job(state: State, job: Job, tasks: list[Task]) -> Iterator[str]:
    running = sum(1 for task in tasks if task.state is JobState.RUNNING)
    live = sum(1 for uid in state.live_of.get(job.id, ()) if not state.attempts[uid].behind)
    held = sum(1 for task in tasks if task.current)
    if job.calls:
        lanes = [state.attempts[uid] for uid in state.live_of.get(job.id, ())]
        running = sum(1 for lane in lanes if lane.calls and lane.accepted_at_ms)
        held = sum(1 for lane in lanes for number in (lane.calls or {}).values() if number > 0)
        yield from _lanes(state, job, lanes)
    if job.running != running:
        yield f"job {job.id} counts {job.running} running tasks, there are {running}"
    if job.live != live:
        yield f"job {job.id} counts {job.live} live attempts, there are {live}"
    again = len(state.requeued_of.get(job.id, ()))
    if job.requeued != again:
        yield f"job {job.id} counts {job.requeued} tasks queued again, there are {again}"
    resting = sum(1 for task in tasks if task.again_ms)
    if job.resting != resting or (resting and not job.service):
        yield f"job {job.id} counts {job.resting} replicas that rest, there are {resting}"
    if job.waiting + held + resting + job.ended != job.total:
        parts = f"{job.waiting} waiting + {held} held + {resting} resting + {job.ended} ended"
        yield f"job {job.id}: {parts} is not {job.total} tasks"
    if job.state.final != (job.ended == job.total and not job.open):
        yield f"job {job.id} is {job.state} with {job.ended} of {job.total} tasks ended"
    if job.limit and job.live > job.limit and not job.cancelled:
        yield f"job {job.id} has {job.live} live attempts, its cap is {job.limit}"
    if job.gang and not job.state.final:
        for first in range(0, job.total, job.group_size):
            yield from _group(state, job, first)


def _lanes(state: State, job: Job, lanes: list[Attempt]) -> Iterator[str]:
    """A call is in one lane at most; one that is there for another time than the first has a record that says so."""
    seen: dict[int, str] = {}
    for lane in lanes:
        for index, number in (lane.calls or {}).items():
            name = f"call {job.id}/{index} in lane {lane.uid}"
            if not 0 <= index < job.cursor:
                yield f"{name} was never taken out of the line: {job.cursor} were"
            task = state.tasks.get((job.id, index))
            if number < 0:
                if task is not None and not task.state.final:
                    yield f"{name} was cancelled and its record says {task.state}"
                continue
            if index in seen:
                yield f"{name} is in lane {seen[index]} too"
            seen[index] = lane.uid
            if (task is None) != (number == 1) or (task is not None and task.current != lane.uid):
                yield f"{name} is there for the {number}. time and its record says {task}"
            if task is not None and task.attempts != number:
                yield f"{name} is there for the {number}. time, its record counts {task.attempts}"


def _group(state: State, job: Job, index: int) -> Iterator[str]:
    """A group is placed, started, queued again and ended whole; a generation is concluded as soon as it is over."""
    tasks, members = groups.tasks_of(state, job, index), groups.members(state, job, index)
    name, size = f"group {index // job.group_size} of gang {job.id}", job.group_size
    for what, count in (
        ("placed", len(members)),
        ("queued again", sum(task.queued for task in tasks)),
        ("resting", sum(task.again_ms > 0 for task in tasks)),
    ):
        if count not in (0, size):
            yield f"{name} has {count} of {size} members {what}"
    if len({(one.restarts, one.ends_ms, one.looping, one.revision, one.leaving_ms) for one in tasks}) > 1:
        yield f"{name} counts for its members apart: {tasks}"
    if len({member.generation for member in members}) > 1:
        yield f"{name} has members of several generations: {members}"
    if any(member.generation > job.generation for member in members):
        yield f"{name} is ahead of generation {job.generation} of its job: {members}"
    if len({member.worker for member in members}) < len(members):
        yield f"{name} has two members on one worker"
    gone = sum(1 for member in members if member.go)
    if gone not in (0, len(members)):
        yield f"{name}: {gone} of {len(members)} members may start"
    broken = tasks[0].broken if tasks and not tasks[0].state.final else ""
    if not gone and not broken and any(member.started for member in members):
        yield f"{name} has a member that started while others may not"
    if members and not any(member.phase.live for member in members):
        yield f"{name} is over and its generation was not concluded"
    if broken and any(member.phase.live and not member.cancel for member in members):
        yield f"{name} is broken ({broken}) and a member was not asked to stop"
    if broken and not members:
        yield f"{name} is broken ({broken}) and has no members"


def _attempts(state: State) -> Iterator[str]:
    current: dict[tuple[str, int], str] = {}
    for uid, attempt in state.attempts.items():
        held = uid in state.held.get(attempt.worker, ())
        if held != (attempt.phase.live and not attempt.behind):
            yield f"attempt {uid} is {attempt.phase} and {'held' if held else 'not held'} by worker {attempt.worker}"
        if attempt.lane != (attempt.calls is not None) or attempt.lane != state.jobs[attempt.job_id].calls:
            yield f"attempt {uid} is a lane by half: index {attempt.index}, calls {attempt.calls}"
        if attempt.lane:
            if attempt.calls and not attempt.phase.live:
                yield f"lane {uid} is {attempt.phase} and still has calls {sorted(attempt.calls)}"
            continue
        task = state.tasks.get((attempt.job_id, attempt.index))
        job = state.jobs[attempt.job_id]
        if job.service and attempt.phase.live and attempt.shape != shape_of(state, job, attempt.revision):
            yield f"attempt {uid} of revision {attempt.revision} holds shape {attempt.shape}, not that of its spec"
        if task is not None and task.current == uid:
            key = (attempt.job_id, attempt.index)
            if key in current:
                yield f"task {key} has two current attempts: {current[key]} and {uid}"
            current[key] = uid
        elif attempt.phase.live and not attempt.cancel:
            yield f"attempt {uid} is {attempt.phase}, nobody's current attempt, and was not asked to stop"


def _followers(state: State) -> Iterator[str]:
    """Whoever stands behind another is the only one there, and of the same job, worker and ask."""
    behind = {uid: attempt.behind for uid, attempt in state.attempts.items() if attempt.behind}
    known = {uid: ahead for ahead, uid in state.followers.items()}
    if behind != known or len(known) != len(state.followers):
        yield f"attempts stand behind others as {behind}, and are known to as {known}"
    for uid, ahead in behind.items():
        attempt, other = state.attempts[uid], state.attempts.get(ahead)
        if other is None or not other.phase.live or not attempt.phase.live:
            yield f"attempt {uid} ({attempt.phase}) stands behind {ahead}, which is {other and other.phase}"
        elif (attempt.job_id, attempt.worker, state.ask(attempt), attempt.devices) != (
            *(other.job_id, other.worker, state.ask(other)),
            other.devices,
        ):
            yield f"attempt {uid} stands behind {ahead} and could not take its place: {attempt}, {other}"


def _columns(state: State) -> Iterator[str]:
    for worker_id, row in state.columns.row_of.items():
        held = [state.attempts[uid] for uid in state.held.get(worker_id, ())]
        asks = [state.ask(attempt) for attempt in held]
        going = [state.ask(attempt) for attempt in held if not attempt.yielded]
        sums = {
            "used_cpu": sum(ask.cpu_milli for ask in going),
            "used_mem": sum(ask.memory_bytes for ask in asks),
            "batch_live": sum(1 for ask in going if ask.pool == "batch"),
            "service_live": sum(1 for ask in going if ask.pool == "service"),
        }
        for name, value in sums.items():
            held_there = state.columns.get(name, row)
            if held_there != value:
                yield f"worker {worker_id}: column {name} is {held_there}, its attempts sum to {value}"
        cards: dict[int, int] = {}
        for attempt, ask in zip(held, asks, strict=True):
            for index in attempt.devices:
                cards[index] = cards.get(index, 0) + ask.gpu_milli
        if cards != state.columns.card_used[row]:
            yield f"worker {worker_id}: cards in use are {state.columns.card_used[row]}, its attempts hold {cards}"
        idle = [WHOLE - cards.get(card.index, 0) if card.healthy else 0 for card in state.columns.cards[row]]
        if state.columns.device_free[row].tolist()[: len(idle)] != idle:
            yield f"worker {worker_id}: columns of idle cards disagree with {idle}"
        named: dict[str, int] = {}
        for name, amount in (pair for ask in asks for pair in ask.resources if pair[1]):
            named[name] = named.get(name, 0) + amount
        if named != state.columns.named_used[row]:
            yield f"worker {worker_id}: named resources in use are {state.columns.named_used[row]}, held are {named}"


def _capacity(state: State) -> Iterator[str]:
    for worker_id, row in state.columns.row_of.items():
        for index, used in state.columns.card_used[row].items():
            if used > WHOLE:
                yield f"worker {worker_id}: card {index} is held {used} of {WHOLE}"


def _dependents(state: State, job: Job) -> Iterator[str]:
    for need in map(read_need, job.after):
        other = state.jobs.get(need.job_id)
        if other is None or other.state.final:
            yield f"job {job.id} waits for {need.job_id}, which has ended"
        if job.id not in state.dependents.get(need.job_id, ()):
            yield f"job {job.id} waits for {need.job_id} and would not hear of its end"
        if need.task >= 0 and job.id not in state.task_waiters.get(need.job_id, {}).get(need.task, ()):
            yield f"job {job.id} waits for task {need.task} of {need.job_id} and would not hear of its end"
        if other is not None and need.task >= 0 and _has_ended(state, other, need.task):
            yield f"job {job.id} waits for task {need.task} of {need.job_id}, which has ended"


def _using(state: State) -> Iterator[str]:
    groups: dict[Using, dict[str, None]] = {}
    for job in state.jobs.values():
        if job.uses:
            groups.setdefault((job.user, job.uses), {})[job.id] = None
        elif job.unserved:
            yield f"job {job.id} waits for a service and uses none"
    if groups != state.using:
        yield f"who uses which services is {state.using}, by the jobs it is {groups}"
    for group, members in groups.items():
        if len({state.jobs[job_id].unserved for job_id in members}) > 1:
            yield f"jobs that use {group} do not agree on whether they are served"


def _has_ended(state: State, job: Job, index: int) -> bool:
    task = state.tasks.get((job.id, index))
    if task is not None:
        return task.state.final
    return index < job.cursor and (not job.calls or lane_at(state, job, index) is None)


def _backlog(state: State) -> Iterator[str]:
    entries = {
        (entry.job_id, entry.position)
        for key, bucket in state.backlog.buckets.items()
        for entry in bucket.entries[bucket.head :]
        if (job := state.jobs.get(entry.job_id)) is not None
        and state.line_of(job) == key
        and state.place_of(job, entry.position) == (entry.ahead, entry.order)
    }
    depth: dict[str, int] = {}
    for job in state.jobs.values():
        depth[job.queue] = depth.get(job.queue, 0) + job.waiting
        if job.barred:
            yield from _dependents(state, job)
            continue
        if job.untouched and (job.id, RANGE) not in entries:
            yield f"job {job.id} has {job.untouched} waiting tasks and no place in the line"
        for index in state.requeued_of.get(job.id, ()):
            if (job.id, index) not in entries:
                yield f"task {job.id}/{index} is queued again and has no place in the line"
    for queue, number in state.backlog.depth.items():
        if depth.get(queue, 0) != number:
            yield f"queue {queue} counts {number} waiting tasks, its jobs have {depth.get(queue, 0)}"
    for shape in state.backlog.of_shape:
        if (shape in state.backlog.awake) == (shape in state.backlog.parked):
            yield f"shape {shape} is neither awake nor parked, or both"
    crowds = {key: crowd for of_shape in state.backlog.of_shape.values() for key, crowd in of_shape.items()}
    for gate, lines in state.backlog.behind.items():
        if gate not in state.parties.gates:
            yield f"{len(lines)} lines wait for {gate}, and there is no such gate"
        for line in lines:
            if (crowds[line].gate if isinstance(line, CrowdKey) else state.backlog.gated.get(line)) != gate:
                yield f"{line} stands behind {gate} and is not held back by it"
    standing = sum(len(lines) for lines in state.backlog.behind.values())
    shut = len(state.backlog.gated) + sum(bool(crowd.gate) for crowd in crowds.values())
    if standing != shut:
        yield f"{shut} lines and crowds are held back, {standing} stand behind gates"
    members = [line for crowd in crowds.values() for line in crowd.lines]
    if sorted(members) != sorted(state.backlog.buckets) or not state.backlog.gated.keys() <= set(members):
        yield f"lines {sorted(state.backlog.buckets)} are not those of the crowds, {sorted(members)}"
    ungated = sum(not state.backlog.is_gated(line) for line in members)
    if state.backlog.open_lines != ungated:
        yield f"{state.backlog.open_lines} lines are counted as open, {ungated} are"


def _parties(state: State) -> Iterator[str]:
    """What parties, queues and users hold is the sum over live attempts."""
    live = [0] * len(state.parties.all)
    sums: dict[tuple[str, str], Holding] = {}
    charge_ms = round(state.policy.fair_share.entry_charge_s * 1000)
    for uids in state.held.values():
        for uid in uids:
            attempt = state.attempts[uid]
            job = state.jobs[attempt.job_id]
            live[job.party] += 1
            for whose in (("queue", job.queue), ("user", job.user)):
                cost = cost_of(state.policy, state.ask(attempt))
                sums.setdefault(whose, Holding()).add(cost, attempt.assigned_ms - charge_ms)
    for party, number in zip(state.parties.all, live, strict=True):
        if party.live != number:
            yield f"{party.user} in {party.queue} counts {party.live} live attempts, there are {number}"
    for kind, holdings in (("queue", state.parties.queues), ("user", state.parties.users)):
        for name, holding in holdings.items():
            derived = sums.get((kind, name), Holding())
            if (holding.cost, holding.cost_starts) != (derived.cost, derived.cost_starts):
                sums_to = f"{derived.cost} since {derived.cost_starts}"
                yield f"{kind} {name} holds {holding.cost} since {holding.cost_starts}, not {sums_to}"


def _gates(state: State) -> Iterator[str]:
    """What a gate counts is the sum over the live attempts that passed it."""
    sums: dict[str, list[int]] = {key: [0, 0, 0] for key in state.parties.gates}
    for uids in state.held.values():
        for uid in uids:
            attempt = state.attempts[uid]
            ask = state.ask(attempt)
            for gate in state.parties.all[state.jobs[attempt.job_id].party].gates:
                milli = gate.measure(ask)
                found = sums[gate.key]
                found[0] += 1
                found[1] += milli
                found[2] += milli * max(attempt.assigned_ms, _since_ms(gate))
    for key, gate in state.parties.gates.items():
        live, milli, starts = sums[key]
        if (gate.live, gate.gpu_milli) != (live, milli):
            yield f"{key} counts {gate.live} tasks and {gate.gpu_milli} milli-GPUs, there are {live} and {milli}"
        if isinstance(gate, QuotaGate) and gate.per_ms and gate.starts != starts:
            yield f"{key} counts beginnings of {gate.starts}, its attempts sum to {starts}"


def _since_ms(gate: Gate) -> int:
    return gate.period * gate.per_ms if isinstance(gate, QuotaGate) and gate.per_ms else 0


def _resuming(state: State) -> Iterator[str]:
    """Whoever wants to go on has yielded, lives, and is counted on its worker."""
    counts: dict[str, int] = {}
    for uid in state.resuming:
        attempt = state.attempts.get(uid)
        if attempt is None or not attempt.phase.live or not attempt.yielded:
            yield f"attempt {uid} waits to go on and has not yielded"
        else:
            counts[attempt.worker] = counts.get(attempt.worker, 0) + 1
    for worker_id, presence in state.presence.items():
        if presence.resuming != counts.get(worker_id, 0):
            yield f"worker {worker_id} counts {presence.resuming} that wait to go on, not {counts.get(worker_id, 0)}"


def _receipts(state: State) -> Iterator[str]:
    """Room is kept for whoever waits, once, and for nobody else."""
    open_ones = {
        record.id for record in state.ledger.values() if isinstance(record, Receipt) and record.is_open
    }
    if open_ones != {receipt.id for receipt in state.receipts.values()}:
        yield f"receipts {sorted(open_ones)} are open, kept in mind are {sorted(state.receipts)}"
    moving = {
        record.id
        for record in state.ledger.values()
        if isinstance(record, Receipt) and record.status == "open" and record.is_move
    }
    if moving != set(state.moving):
        yield f"moves {sorted(moving)} are under way, kept in mind are {sorted(state.moving)}"
    named = [(victim.job_id, victim.index) for one in state.moving.values() for victim in one.victims]
    for key in (*state.origins, *(key for key, move in state.moves.items() if move.receipt)):
        if key not in named:
            yield f"room is kept for {key}, which is not being moved"
    for job_id, receipt in state.receipts.items():
        job = state.jobs.get(job_id)
        if job is None or not job.waiting or job.barred:
            yield f"receipt {receipt.id} keeps room for job {job_id}, which does not wait"

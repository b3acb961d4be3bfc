"""Whether kept room stays kept and victims are chosen as the rules say: reservations, receipts, preemptions.

Every sum is made anew from the attempts that a worker holds; of the hub's own reckoning only the promise is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from dray.core.lifecycle.state.state import NEVER, Reservation, State
from dray.core.model.records.ledger import Receipt, Victim
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.ports import LEASED
from dray.core.model.specs.resources import WHOLE, Ask, Asks
from dray.core.model.specs.spec import unpack_spec
from dray.core.model.units import GB
from dray.core.scheduling.capacity.remaining import Rooms
from dray.core.scheduling.claims.moving_room import claim_moves
from dray.core.scheduling.turns.gates import Gates
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.watches.offers import OfferWatch
from dray.sim.faults.watches.policy import gpus_of
from dray.sim.faults.world.world import World

# Hub, policy, job, since when it waits, its queue and what it asks for: an edit of these two gives a promise up.
Promise = tuple[int, bytes, str, int, str, Asks]
Part = tuple[Ask, tuple[int, ...]]


class Others(NamedTuple):
    """Who else comes to a worker, and in whose place."""

    leaving: dict[str, None]
    parts: tuple[Part, ...]


class RoomWatch:
    """Watches one site through all its hubs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, None] = {}
        self._hits: list[tuple[int, str, str]] = []
        self._moves: list[tuple[int, str, int]] = []
        self._pairs: dict[tuple[str, str], tuple[int, int]] = {}
        self._promises: dict[Promise, Reservation] = {}
        self._kept: frozenset[tuple[object, ...]] = frozenset()
        self._offers = OfferWatch()

    def rewind(self, state: State) -> None:
        """The hub was restored from a backup: it does not know what came after, and draws the numbers of receipts anew.

        Those it still has were judged when they were made: their victims may be long gone.
        """
        self._seen = {record.id: None for record in state.ledger.values() if isinstance(record, Receipt)}
        self._hits.clear()
        self._moves.clear()
        self._pairs.clear()

    def committed(self, life: HubLife, fresh: list[Attempt]) -> None:
        """Judge where a turn has started work, and whom it has stopped for whom."""
        state = life.state
        self._offers.look(state)
        # Here too: a turn whose request is put back is not looked at before the next, which may undo what stood there.
        self._release_promises(life)
        for attempt in fresh:
            self._check_capacity(state, attempt)
            self._check_reserved(state, attempt)
            self._check_receipts(state, attempt)
            self._check_moves(state, attempt)
            self._check_victims_first(state, attempt)
        self._check_served(state, fresh)
        for job_id, index in state.touched.tasks:
            self._check_place(state, job_id, index)
        for kind, key in state.touched.ledger:
            record = state.ledger.get((kind, key))
            if isinstance(record, Receipt) and record.id not in self._seen:
                self._seen[record.id] = None
                if (
                    record.now_ms == state.now_ms
                ):  # else one of a backup's, which was judged when it was decided
                    self._check_preemption(state, record, fresh)

    # --- room ---------------------------------------------------------------------------------------------------------

    def _check_capacity(self, state: State, attempt: Attempt) -> None:
        """A worker that gets a new task has what its tasks hold together."""
        held = [state.attempts[uid] for uid in state.held[attempt.worker]]
        if lack := _lacks(state, attempt.worker, held, state.ask(attempt), attempt.devices):
            self._world.fail(
                f"attempt {attempt.uid} is too much for {attempt.worker}: {lack}, held are {held}"
            )

    def _check_reserved(self, state: State, attempt: Attempt) -> None:
        """Work that outlasts a promised start leaves the promised room alone."""
        limit_ms = _longest_ms(state, state.jobs[attempt.job_id])
        for kept in state.reservations.values():
            job = state.jobs.get(kept.job_id)
            waits = job is not None and job.waiting and job.waiting_since_ms == kept.since_ms
            in_time = limit_ms and attempt.assigned_ms + limit_ms <= kept.start_ms
            if not waits or job is None or in_time or attempt.job_id == kept.job_id:
                continue
            for _, row, variant, devices in kept.spots:
                worker = state.columns.worker_of[row]
                if worker == attempt.worker and not self._offers.is_gone(kept, worker):
                    held = [state.attempts[uid] for uid in state.held[worker]]
                    # A promise may have been made before one of these had begun, and counts on its limit from then on.
                    lasting = [one for one in held if _foreseen_ms(state, one) > kept.start_ms]
                    others = _expected(state, worker, kept.start_ms, job.id)
                    part = state.asks(job.shape)[variant], devices
                    self._check_beside(state, attempt, lasting, part, others, kept)

    def _check_served(self, state: State, fresh: list[Attempt]) -> None:
        """A promise is kept once: nothing is kept any longer for a job that was given a place in this turn."""
        served = {attempt.job_id for attempt in fresh}
        # It may wait on since this very millisecond: what it is promised from here on is another promise.
        self._promises = {key: kept for key, kept in self._promises.items() if key[2] not in served}
        for kept in state.reservations.values():
            if kept.job_id in served:
                self._world.fail(f"{kept.job_id} has just been given a place, and room is kept still: {kept}")

    def _check_receipts(self, state: State, attempt: Attempt) -> None:
        """Room that victims leave is their preemptor's."""
        for receipt in state.receipts.values():
            job = state.jobs.get(receipt.job_id)
            if job is None or attempt.job_id == receipt.job_id:
                continue
            leaving = {victim.uid for victim in receipt.victims}
            for worker, devices in zip(receipt.workers, receipt.devices, strict=True):
                if worker == attempt.worker and not self._offers.is_gone(receipt.id, worker):
                    if self._offers.is_crowded(receipt.id, worker) and _moves_to(receipt, attempt):
                        continue  # the room of who is moved comes first, and there may not be enough for both now
                    held = [state.attempts[uid] for uid in state.held[worker] if uid not in leaving]
                    others = _expected(state, worker, state.now_ms, job.id)
                    part = state.asks(job.shape)[receipt.variant], devices
                    self._check_beside(state, attempt, held, part, others, receipt)

    def _check_moves(self, state: State, attempt: Attempt) -> None:
        """Room that a task moves to is its own: whoever starts beside it leaves it that."""
        for (job_id, index), move in state.moves.items():
            job, task = state.jobs.get(job_id), state.tasks.get((job_id, index))
            waits = task is not None and task.last_uid == move.uid and (task.queued or task.current)
            if job is None or not waits or job.barred or move.worker != attempt.worker:
                continue
            if self._offers.is_gone(move, move.worker):
                continue
            # Another may leave this place for it: until that one is gone not all of it is there, and a newcomer may
            # have what neither of the two needs.
            held = [state.attempts[uid] for uid in state.held[move.worker] if uid not in _leaving(state)]
            before, ask = [one for one in held if one.uid != attempt.uid], state.asks(job.shape)[move.variant]
            fitted = not self._moved_lacks(state, before, ask, move.worker)
            if fitted and self._moved_lacks(state, held, ask, move.worker):
                self._world.fail(
                    f"attempt {attempt.uid} takes the room that {job_id}/{index} moves to: {move}"
                )

    def _moved_lacks(self, state: State, held: list[Attempt], ask: Ask, worker_id: str) -> str:
        """What a worker has too little of for these and another task of this ask, on whichever cards."""
        lack = _lacks(state, worker_id, held, ask, (), more=True)
        if lack or not ask.gpus:
            return lack
        used = Counter[int]()
        for one in held:
            used.update(dict.fromkeys(one.devices, state.ask(one).gpu_milli))
        cards = [card.index for card in state.columns.cards[state.columns.row_of[worker_id]] if card.healthy]
        idle = [index for index in cards if used[index] + ask.gpu_milli <= WHOLE]
        return "" if len(idle) >= ask.gpus else f"{len(idle)} cards of {ask.gpus}"

    def _check_beside(
        self,
        state: State,
        attempt: Attempt,
        held: list[Attempt],
        part: Part,
        others: Others,
        kept: Reservation | Receipt,
    ) -> None:
        """Of what a new attempt takes, enough must be left for whoever the room is kept for, beside all others for whom
        room is kept there.
        """
        mine, (ask, devices) = state.ask(attempt), part
        held = [one for one in held if one.uid not in others.leaving]
        only = Ask(
            pool=ask.pool if ask.pool == mine.pool else "",
            cpu_milli=ask.cpu_milli if mine.cpu_milli else 0,
            memory_bytes=ask.memory_bytes if mine.memory_bytes else 0,
            gpus=ask.gpus,
            gpu_milli=ask.gpu_milli,
            resources=tuple(pair for pair in ask.resources if pair[0] in dict(mine.resources)),
        )
        shared = tuple(index for index in devices if index in attempt.devices)
        if lack := _lacks(state, attempt.worker, held, only, shared, True, others.parts):
            self._world.fail(f"attempt {attempt.uid} takes kept room, {lack}: {kept}")

    def _check_victims_first(self, state: State, attempt: Attempt) -> None:
        """A task that was stopped for another goes before all others of its line."""
        job = state.jobs[attempt.job_id]
        line = state.line_of(job)
        if state.policy.queue(job.queue).order == "srsf":
            return
        # A lane is always a first try; what it was opened for need not be, and may have been stopped for another.
        calls = [state.tasks.get((job.id, index)) for index in attempt.calls or ()]
        again = attempt.no > 1 or any(call is not None and call.attempts > 1 for call in calls)
        if again or job.id in {kept.job_id for kept in state.reservations.values()}:
            return
        for (job_id, index), task in state.tasks.items():
            other = state.jobs[job_id]
            if not task.queued or job_id == job.id or other.barred or state.line_of(other) != line:
                continue
            last = state.attempts.get(task.last_uid)
            # A call goes to a lane that its job has: none need be opened for it.
            capped = (other.limit and other.live >= other.limit) or (other.calls and other.live)
            if (
                last is not None
                and last.phase is Phase.PREEMPTED
                and last.cancel == "preempted"
                and not capped
            ):
                self._world.fail(
                    f"{attempt.job_id} starts before {job_id}/{index}, which was stopped for another"
                )

    def _check_place(self, state: State, job_id: str, index: int) -> None:
        """A task that was stopped for another stands before all in its line that were not.

        By shortest service it does not: it was stopped because more of it is left.
        """
        task, job = state.tasks.get((job_id, index)), state.jobs.get(job_id)
        if task is None or job is None or not task.queued or job.barred:
            return
        if state.policy.queue(job.queue).order == "srsf":
            return
        if job.calls and not task.ahead:
            return  # it had come back from its lane before that was stopped
        last = state.attempts.get(task.last_uid)
        if last is None or last.phase is not Phase.PREEMPTED or last.cancel != "preempted":
            return
        for entry in state.backlog.entries(state.line_of(job)):
            if (entry.job_id, entry.position) == (job_id, index) and entry.ahead < 0:
                return
        self._world.fail(f"task {job_id}/{index} was stopped for another and does not head its band")

    # --- preemption ---------------------------------------------------------------------------------------------------

    def _check_preemption(self, state: State, receipt: Receipt, fresh: list[Attempt]) -> None:
        policy, job = state.policy.preemption, state.jobs.get(receipt.job_id)
        if job is None or receipt.status != "open":
            return
        for victim in receipt.victims:
            attempt, other = state.attempts[victim.uid], state.jobs[victim.job_id]
            ran_ms = receipt.now_ms - attempt.started_ms if attempt.started else 0
            if ran_ms < policy.min_run_s * 1000:
                self._world.fail(f"{victim} had not run for {policy.min_run_s} s when {receipt} stopped it")
            if unpack_spec(other.spec).at_most_once:
                self._world.fail(f"{victim} may start once only, and {receipt} stopped it")
            if victim.to:
                self._check_mover(state, receipt, victim, job)
                continue
            self._check_below(state, receipt, job, attempt, other)
            self._check_cycle(receipt, victim)
        if receipt.rule == "fair_share":
            self._check_shares(state, receipt, job, fresh)
        self._check_limits(state, receipt)

    def _check_mover(self, state: State, receipt: Receipt, victim: Victim, job: Job) -> None:
        """Who is moved is a peer on its own, has room where it goes, and is not moved over and over."""
        policy, other = state.policy.preemption, state.jobs[victim.job_id]
        if other.gang or other.queue != job.queue or other.priority > job.priority:
            self._world.fail(f"{victim} is no peer of {job.id}, and was moved: {receipt}")
        leaving = {one.uid for one in receipt.victims}
        row = state.columns.row_of.get(victim.to)
        if row is None or not state.columns.get("open", row):
            self._world.fail(f"{victim} is moved to a worker that is not there: {receipt}")
            return
        held = [state.attempts[uid] for uid in state.held.get(victim.to, ()) if uid not in leaving]
        if lack := self._moved_lacks(state, held, state.asks(other.shape)[victim.to_variant], victim.to):
            self._world.fail(f"{victim} is moved to where it has no room, {lack}: {receipt}")
        since_ms = receipt.now_ms - round(policy.limits.window_s * 1000)
        recent = [move for move in self._moves if move[0] >= since_ms]
        if len(recent) >= policy.moves:
            self._world.fail(f"{victim} is one move too many, {policy.moves} are allowed: {receipt}")
        if (victim.job_id, victim.index) in [move[1:] for move in recent]:
            self._world.fail(f"{victim} was moved before within the window: {receipt}")
        self._moves.append((receipt.now_ms, victim.job_id, victim.index))
        self._world.counts["moved"] += 1

    def _check_below(self, state: State, receipt: Receipt, job: Job, attempt: Attempt, other: Job) -> None:
        if receipt.rule in ("priority", "pressure"):
            below = other.priority < job.priority
        elif receipt.rule == "srsf":
            task = state.tasks.get((attempt.job_id, attempt.index))
            used_ms = task.used_ms if task is not None else 0
            ran_ms = receipt.now_ms - attempt.started_ms if attempt.started else 0
            alone = (job.gang and not job.service) or not job.numbered
            first = state.tasks.get((job.id, 0)) if alone else None
            mine = _service(job, state.asks(job.shape)[0], first.used_ms if first is not None else 0)
            below = other.queue == job.queue and _service(other, state.ask(attempt), used_ms + ran_ms) > mine
        else:
            below = other.queue == job.queue and other.user != job.user
        if not below:
            self._world.fail(f"{attempt.uid} of {other.id} does not sit below {job.id}: {receipt}")

    def _check_shares(self, state: State, receipt: Receipt, job: Job, fresh: list[Attempt]) -> None:
        """Each victim's user still has at least as much as the preemptor's once all of them are gone.

        At the preemptor's turn, that is: a pass may start work for either afterwards, as the next pass may.
        """
        uids = [attempt.uid for attempt in sorted(fresh, key=lambda attempt: attempt.fence)]
        others = [
            one for one in state.receipts.values() if one.now_ms == receipt.now_ms and one.id != receipt.id
        ]
        # Whom the same pass has stopped for others before counts for nobody any more.
        stopped = [victim.uid for one in others for victim in one.victims if not victim.to]
        found = [
            self._find_unfair(state, receipt, job, [*gone, *uids[place:]])
            for gone in ([], stopped)
            for place in range(len(uids) + 1)
        ]
        if all(found):
            self._world.fail(f"{found[-1]}: {receipt}")

    def _find_unfair(self, state: State, receipt: Receipt, job: Job, later: list[str]) -> str:
        """Whose share would be too small, were these not started yet."""
        weights = state.policy.fair_share.weights
        ask = state.asks(job.shape)[0]
        wanted = _cost(state, ask) * ask.nodes
        mine = (self._holds(state, job.user, later) + wanted) / weights.get(job.user, 1.0)
        stopped = [victim for victim in receipt.victims if not victim.to]
        gone = [victim.uid for victim in stopped] + later
        for user in {victim.user for victim in stopped}:
            left = self._holds(state, user, gone) / weights.get(user, 1.0)
            if left < mine:
                return f"{user} is left with {left}, {job.user} has {mine}"
        return ""

    def _holds(self, state: State, user: str, without: Iterable[str]) -> float:
        return sum(
            _cost(state, state.ask(state.attempts[uid]))
            for job_id, uids in state.live_of.items()
            if state.jobs[job_id].user == user
            for uid in uids
            if uid not in without and not state.attempts[uid].behind
        )

    def _check_cycle(self, receipt: Receipt, victim: Victim) -> None:
        """Of two jobs only one ever stops the other, while their priorities stay what they are."""
        bands = (receipt.priority, victim.priority)
        before = self._pairs.get((victim.job_id, receipt.job_id))
        if receipt.rule in ("priority", "pressure"):
            if before == (victim.priority, receipt.priority):
                self._world.fail(f"{receipt.job_id} and {victim.job_id} stop each other: {receipt}")
            self._pairs[receipt.job_id, victim.job_id] = bands

    def _check_limits(self, state: State, receipt: Receipt) -> None:
        limits = state.policy.preemption.limits
        self._hits += [(receipt.now_ms, victim.job_id, victim.user) for victim in receipt.victims]
        recent = [hit for hit in self._hits if hit[0] >= receipt.now_ms - round(limits.window_s * 1000)]
        for victim in receipt.victims:
            of_job = sum(1 for _, job_id, _ in recent if job_id == victim.job_id)
            of_user = sum(1 for _, _, user in recent if user == victim.user)
            if of_job > limits.per_job or of_user > limits.per_user or len(recent) > limits.cluster:
                self._world.fail(f"{victim} is hit beyond {limits}: {of_job}, {of_user}, {len(recent)}")

    # --- promises -----------------------------------------------------------------------------------------------------

    def turned(self, life: HubLife) -> list[str]:
        """A promised start is never moved back, unless a worker it was promised on went away, or a rule stepped in."""
        state = life.state
        self._offers.look(state)  # a turn that only keeps room commits nothing
        record = state.ledger.get(("policy", ""))
        regime = getattr(record, "policy", b"")
        found: list[str] = []
        promises: dict[Promise, Reservation] = {}
        for slot, kept in state.reservations.items():
            job = state.jobs.get(kept.job_id)
            if job is None:
                continue  # ended and let go: the next pass lets go of its reservation too
            if slot not in (job.queue, f"{job.queue} {job.user}"):
                found.append(f"{kept} is kept as {slot}, and its job waits in {job.queue}")
            if kept.start_ms > kept.promised_ms:
                found.append(f"{kept} is later than it was promised")
            key = (life.number, regime, job.id, kept.since_ms, job.queue, state.asks(job.shape))
            before = self._promises.pop(key, kept)
            if kept.promised_ms > before.promised_ms and self._binds(state, before):
                found.append(f"{kept} was promised for {before.promised_ms} before")
            promises[key] = kept
        # One that was let go for no good reason may not come back later than it was.
        mine = {key: kept for key, kept in self._promises.items() if key[:2] == (life.number, regime)}
        self._promises = mine
        self._release_promises(life)
        self._promises |= promises
        return found

    def _release_promises(self, life: HubLife) -> None:
        # Those of another hub go with it: they speak of the rows of its own table.
        state = life.state
        self._promises = {
            key: kept
            for key, kept in self._promises.items()
            if key[0] == life.number and self._binds(state, kept) and _is_as_promised(state, key)
        }

    def find_idle(self, life: HubLife) -> list[str]:
        """Room that is kept for somebody, and there, is taken: whoever it is kept for starts in the same turn."""
        state = life.state
        kept = [(one.job_id, [spot[1:3] for spot in one.spots]) for one in state.reservations.values()]
        for receipt in state.receipts.values():
            rows = [state.columns.row_of[name] for name in receipt.workers if name in state.columns.row_of]
            kept.append((receipt.job_id, [(row, receipt.variant) for row in rows]))
        if not kept or life.conductor.cut:
            return []
        taken = Counter(row for _, spots in kept for row, _ in spots)
        rooms, gates = Rooms(state), Gates(state)
        claim_moves(state, rooms)
        found = []
        for job_id, spots in kept:
            job = state.jobs.get(job_id)
            if job is None or not job.waiting or job.barred or (job.limit and job.live >= job.limit):
                continue
            asks = state.asks(job.shape)
            fitting = [row for row, variant in spots if rooms.fit(row, asks[variant]) is not None]
            alone = all(taken[row] == 1 for row, _ in spots)
            if alone and len(fitting) == asks[0].nodes and gates.room_for(job)[0] > 0:
                found.append(f"room is kept for {job_id}, and there, and it was left waiting")
        return found

    def is_changed(self, state: State) -> bool:
        """Whether anything is kept for others than a turn before: then somebody else may have gained room."""
        kept = {(one.job_id, *(spot[1] for spot in one.spots)) for one in state.reservations.values()}
        now = frozenset(kept | {(receipt.id,) for receipt in state.receipts.values()})
        before, self._kept = self._kept, now
        return not before <= now

    def _binds(self, state: State, kept: Reservation) -> bool:
        job = state.jobs.get(kept.job_id)
        if job is None or job.barred or not job.waiting or job.waiting_since_ms != kept.since_ms:
            return False
        ruled_out = (job.limit and job.live >= job.limit) or state.backlog.is_gated(state.line_of(job))
        rows = [row for _, row, _, _ in kept.spots]
        gone = any(self._offers.is_gone(kept, state.columns.worker_of[row]) for row in rows)
        return not ruled_out and not gone and all(state.columns.get("open", row) for row in rows)

    def find_impossible(self, life: HubLife) -> list[str]:
        """Nothing is kept on a worker that is there and could not hold it were it empty."""
        state = life.state
        kept = [
            (state.columns.worker_of[row], state.jobs.get(one.job_id), variant, str(one))
            for one in state.reservations.values()
            for _, row, variant, _ in one.spots
        ]
        kept += [
            (worker, state.jobs.get(receipt.job_id), receipt.variant, str(receipt))
            for receipt in state.receipts.values()
            for worker in receipt.workers
        ]
        kept += [
            (move.worker, state.jobs.get(key[0]), move.variant, f"{key} {move}")
            for key, move in state.moves.items()
        ]
        found = []
        for worker, job, variant, told in kept:
            row = state.columns.row_of.get(worker)
            if job is None or row is None or not state.columns.get("open", row):
                continue
            asks = state.asks(job.shape)
            if variant < len(asks) and (lack := self._moved_lacks(state, [], asks[variant], worker)):
                found.append(f"room is kept on {worker}, which has {lack}: {told}")
        return found


def _is_as_promised(state: State, key: Promise) -> bool:
    job = state.jobs[key[2]]
    return (job.queue, state.asks(job.shape)) == key[4:]


def _moves_to(receipt: Receipt, attempt: Attempt) -> bool:
    """Whether an attempt is that of a victim who was moved to where it is."""
    place = attempt.job_id, attempt.index, attempt.worker
    return any((victim.job_id, victim.index, victim.to) == place for victim in receipt.victims)


def _lacks(
    state: State,
    worker_id: str,
    held: list[Attempt],
    ask: Ask,
    devices: tuple[int, ...],
    more: bool = False,
    others: tuple[Part, ...] = (),
) -> str:
    """What a worker has too little of for these attempts (and, with `more`, another ask), of all that is asked for.

    `others`: who else comes, with which cards.
    """
    worker, slots = state.workers[worker_id], state.presence[worker_id].slots
    coming = [one for one, _ in others] + ([ask] if more else [])
    asks = [state.ask(attempt) for attempt in held] + coming
    # Whoever yielded has given its slot and cores up.
    going = [state.ask(attempt) for attempt in held if not attempt.yielded] + coming
    cpu, memory = sum(one.cpu_milli for one in going), sum(one.memory_bytes for one in asks)
    if ask.cpu_milli and cpu > round(worker.capability.cpu_count * 1000):
        return f"{cpu} millicores of {worker.capability.cpu_count} cores"
    if ask.memory_bytes and memory > round(worker.capability.memory_gb * GB):
        return f"{memory} bytes of {worker.capability.memory_gb} GB"
    total = {"batch": slots.batch_total, "service": slots.service_total}.get(ask.pool, 0)
    taken = sum(1 for one in going if one.pool == ask.pool)
    if taken > total > 0:
        return f"{taken} {ask.pool} tasks of {total}"
    for name, _ in ask.resources:
        amount = sum(dict(one.resources).get(name, 0) for one in asks)
        # Each worker has every port once, and of its range as many as it said.
        total = worker.resources.get(name, int(name.startswith("port ")))
        if name == LEASED:
            total = worker.ports if worker.ports >= 0 else amount
        if amount > total:
            return f"{amount} {name} of {total}"
    for card in devices:
        share = sum(state.ask(one).gpu_milli for one in held if card in one.devices)
        share += sum(one.gpu_milli for one, cards in others if card in cards)
        share += ask.gpu_milli if more else 0
        if share > WHOLE:
            return f"{share} milli of card {card}"
    return ""


def _expected(state: State, worker: str, start_ms: int, but: str) -> Others:
    """Who comes to a worker in the place of victims and is still there at a start, all of them but one job."""
    leaving: dict[str, None] = {}
    parts: list[Part] = []
    for receipt in state.receipts.values():
        job = state.jobs.get(receipt.job_id)
        if job is None or job.id == but:
            continue
        longest_ms = _longest_ms(state, job)
        if longest_ms and state.now_ms + longest_ms <= start_ms:
            continue
        for name, devices in zip(receipt.workers, receipt.devices, strict=True):
            if name == worker:
                leaving.update(dict.fromkeys(victim.uid for victim in receipt.victims))
                parts.append((state.asks(job.shape)[receipt.variant], devices))
    return Others(leaving, tuple(parts))


def _leaving(state: State) -> set[str]:
    """Who was asked to leave its place to another."""
    return {uid for uid, attempt in state.attempts.items() if attempt.cancel == "preempted"}


def _end_ms(state: State, attempt: Attempt) -> int:
    limit_ms = _limit_ms(state, attempt)
    # Who is asked to stop gets no more time by it than its limit gave it.
    if attempt.phase is Phase.STOPPING:
        return min(limit_ms, attempt.cancel_ms + round(attempt.grace_s * 1000))
    return limit_ms


def _foreseen_ms(state: State, attempt: Attempt) -> int:
    """Until when a pass of this turn had to expect it: lanes are topped up after the pass."""
    topped_up = attempt.calls is not None and attempt.assigned_ms < attempt.fed_ms == state.now_ms
    if topped_up and attempt.limit_ms and attempt.phase is not Phase.STOPPING:
        return attempt.assigned_ms + state.rules.slice_ms + attempt.limit_ms - _delay_ms(attempt)
    return _end_ms(state, attempt) - _delay_ms(attempt)


def _delay_ms(attempt: Attempt) -> int:
    return max(0, attempt.started_ms - attempt.assigned_ms) if attempt.started_ms else 0


def _limit_ms(state: State, attempt: Attempt) -> int:
    if attempt.calls is not None and attempt.limit_ms:
        fed_ms = max(attempt.fed_ms, attempt.assigned_ms + state.rules.slice_ms)
        return fed_ms + attempt.limit_ms * max(1, len(attempt.calls))
    return (attempt.started_ms or attempt.assigned_ms) + attempt.limit_ms if attempt.limit_ms else NEVER


def _longest_ms(state: State, job: Job) -> int:
    """How long what is placed for a job now may stay; 0: for ever. A lane is fed for a while before its last call."""
    return job.limit_ms and job.limit_ms + (state.rules.slice_ms if job.calls else 0)


def _service(job: Job, ask: Ask, used_ms: int) -> int:
    left_ms = (job.expected_ms or job.limit_ms or NEVER) - used_ms
    return max(1, left_ms) * max(1, gpus_of(ask)) * ask.nodes


def _cost(state: State, ask: Ask) -> int:
    return max(1000, ask.cpu_milli) + round(gpus_of(ask) * state.policy.fair_share.gpu_cost)

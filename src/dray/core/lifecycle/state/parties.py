"""Whom work belongs to, as far as rules tell it apart, and what each party holds now.

A party is (queue, user, marks); marks name the plugin, the template and the labels that some rule speaks of, and a
workload that bounds what starts of it. A gate is one rule for one principal: a quota, a pace, a cap, a workload's
switch, width and purse. Everything here is derived from the policy and the live
attempts, except what tokens a pace has left: that is a signal, full again after a restart. Usage that must outlive
its attempts is kept in meters of the ledger. The surprising rule: nothing is counted per job, so a million jobs of
one user cost one party.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dray.core.lifecycle.state.lines import BucketKey, CrowdKey
from dray.core.model.labels import holds
from dray.core.model.policies.policy import EACH, PRINCIPALS, WHOLE_CLUSTER, Cap, Pace, Policy, Quota
from dray.core.model.records.ledger import LedgerKey, LedgerRecord, Meter
from dray.core.model.records.records import Job
from dray.core.model.records.workload import MICRO, WorkloadRecord
from dray.core.model.specs.resources import Ask
from dray.core.model.specs.spec import unpack_spec

Ledger = Mapping[LedgerKey, LedgerRecord]
PartyKey = tuple[str, str, tuple[str, ...]]
ENDLESS = 1 << 40
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
LOOK_MS = 5_000


class GateKey(NamedTuple):
    """Which rule a gate is about (quota, pace, cap), what kind of principal, and which; `mark` tells rules apart."""

    rule: str
    kind: str
    name: str
    mark: str = ""

    def __str__(self) -> str:
        return " ".join(self[:3] if not self.mark else self)

    @classmethod
    def of_meter(cls, text: str) -> GateKey | None:
        """The quota that a meter of the ledger belongs to; None where it is another's."""
        words = text.split(" ")
        if words[0] != "quota" or len(words) < 4:
            return None
        return cls(words[0], words[1], " ".join(words[2:-1]), words[-1])


class Gate:
    """One rule for one principal, and what its work holds now. `key` is what reasons, wake-ups and meters call it."""

    def __init__(self, whom: GateKey, rule: Quota | Pace | Cap | Tally) -> None:
        self.whom, self.key, self.rule = whom, str(whom), rule
        self.live = 0
        self.gpu_milli = 0

    def measure(self, ask: Ask) -> int:
        """How much of what it counts one task takes: milli-GPUs, unless it is about something else."""
        return gpus_of(ask)

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        """How many more tasks of this measure may start; `taken` is what the pass has given out already."""
        raise NotImplementedError

    def opens_ms(self, now_ms: int) -> int:
        """When time alone opens it again; 0 where only an end of other work does."""
        return 0

    def hold(self, sign: int, gpu_milli: int, assigned_ms: int, now_ms: int) -> int:
        """Follow an attempt that begins or ceases to hold; gives what its end adds to the gate's meter."""
        self.live += sign
        self.gpu_milli += sign * gpu_milli
        return 0

    def start(self, now_ms: int) -> None:
        """Follow a start, as opposed to what is read back after a restart."""


class QuotaGate(Gate):
    """GPUs at once, and GPU-hours per period: the part that ended is in a meter, the part that runs is a sum here."""

    rule: Quota

    def __init__(self, whom: GateKey, rule: Quota, ledger: Ledger) -> None:
        super().__init__(whom, rule)
        self.limit_milli = round(rule.gpus * 1000) if rule.gpus >= 0 else ENDLESS
        budget = rule.gpu_hours
        self.per_ms = round(budget.per_s * 1000) if budget else 0
        self.soft_ms = round(budget.soft * HOUR_MS * 1000) if budget and budget.soft else 0
        self.hard_ms = round(budget.hard * HOUR_MS * 1000) if budget and budget.hard else 0
        self._ledger = ledger
        self.starts = 0
        self.period = -1

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        if not gpu_milli:
            return ENDLESS
        if self.hard_ms and self.used_ms(now_ms) >= self.hard_ms:
            return 0
        return max(0, self.limit_milli - self.gpu_milli - taken_milli) // gpu_milli

    def opens_ms(self, now_ms: int) -> int:
        over = self.hard_ms and self.used_ms(now_ms) >= self.hard_ms
        return (now_ms // self.per_ms + 1) * self.per_ms if over else 0

    def used_ms(self, now_ms: int) -> int:
        """Milli-GPU milliseconds used in the present period, what still runs included."""
        if not self.per_ms:
            return 0
        period, starts = self._turned_over(now_ms)
        meter = self._ledger.get(("meter", self.key))
        ended = meter.gpu_ms if isinstance(meter, Meter) and meter.period == period else 0
        return ended + self.gpu_milli * now_ms - starts

    def is_late(self, now_ms: int) -> bool:
        """Whether its work goes behind everybody else's."""
        return bool(self.soft_ms) and self.used_ms(now_ms) >= self.soft_ms

    def hold(self, sign: int, gpu_milli: int, assigned_ms: int, now_ms: int) -> int:
        charge = 0
        if self.per_ms and gpu_milli:
            # A beginning turns it over to its own period alone: who reads rows knows a later time than the turns that
            # are folded on them, whose ends belong to the periods that they came in.
            self.period, self.starts = self._turned_over(now_ms if sign < 0 else assigned_ms)
            begin_ms = max(assigned_ms, self.period * self.per_ms)
            self.starts += sign * gpu_milli * begin_ms
            charge = gpu_milli * max(0, now_ms - begin_ms) if sign < 0 else 0
        super().hold(sign, gpu_milli, assigned_ms, now_ms)
        return charge

    def meter_after(self, charge: int, now_ms: int) -> Meter:
        """Its meter with a charge of the present period added."""
        period = now_ms // self.per_ms
        known = self._ledger.get(("meter", self.key))
        before = known.gpu_ms if isinstance(known, Meter) and known.period == period else 0
        return Meter(since_ms=now_ms, period=period, gpu_ms=before + charge)

    def _turned_over(self, now_ms: int) -> tuple[int, int]:
        """The period at a moment, and the sum of beginnings in it."""
        period = now_ms // self.per_ms
        if period <= self.period:
            return self.period, self.starts
        # What began earlier counts from the period's first moment: its sum of beginnings is exactly that.
        return period, self.gpu_milli * period * self.per_ms


class AmountGate(Gate):
    """So much of something at once: cores, memory, or tasks. What it counts is in `gpu_milli`, in its own unit."""

    rule: Quota

    def __init__(self, whom: GateKey, rule: Quota) -> None:
        super().__init__(whom, rule)
        self._measure, self.unit, limit = AMOUNTS[whom.rule]
        self.limit = limit(rule)

    def measure(self, ask: Ask) -> int:
        return self._measure(ask)

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        if not gpu_milli:
            return ENDLESS
        return max(0, self.limit - self.gpu_milli - taken_milli) // gpu_milli


class Amount(NamedTuple):
    """What a task takes of it, what it is called, and how much of it a rule allows."""

    measure: Callable[[Ask], int]
    unit: str
    limit: Callable[[Quota], int]


AMOUNTS = {
    "cpus": Amount(lambda ask: ask.cpu_milli, "cores", lambda quota: round(quota.cpus * 1000)),
    "memory": Amount(lambda ask: ask.memory_bytes, "memory", lambda quota: quota.memory),
    "tasks": Amount(lambda ask: 1, "tasks", lambda quota: quota.tasks),
}


class PaceGate(Gate):
    """A token bucket on starts."""

    rule: Pace

    def __init__(self, whom: GateKey, rule: Pace, before: PaceGate | None = None) -> None:
        super().__init__(whom, rule)
        self._most_ms = rule.burst * self._token_ms
        self.tokens_ms: int = before.tokens_ms if before else self._most_ms
        self.since_ms: int = before.since_ms if before else 0

    @property
    def _token_ms(self) -> int:
        return max(1, round(MINUTE_MS / self.rule.per_minute))

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        return max(0, self.tokens_at(now_ms) // self._token_ms - taken)

    def opens_ms(self, now_ms: int) -> int:
        tokens_ms = self.tokens_at(now_ms)
        # The next token, also where one is there already: a gang may wait for several.
        missing_ms = self._token_ms - tokens_ms
        return now_ms + (missing_ms if missing_ms > 0 else self._token_ms - tokens_ms % self._token_ms)

    def start(self, now_ms: int) -> None:
        self.tokens_ms = self.tokens_at(now_ms)
        self.since_ms = max(self.since_ms, now_ms)
        self.tokens_ms -= self._token_ms

    def tokens_at(self, now_ms: int) -> int:
        """What has come in by a moment, as the time that it took."""
        if now_ms <= self.since_ms:
            return self.tokens_ms
        return min(self._most_ms, self.tokens_ms + now_ms - self.since_ms)


class CapGate(Gate):
    """So many at once."""

    rule: Cap

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        return max(0, self.rule.most - self.live - taken)


class Tally:
    """What is counted of one workload beside its record: what its attempts hold now, and of which jobs in memory which
    counts are in the record already. `apart`: its jobs have parties of their own, since it bounds what starts, or did.
    `look_ms`: when its purse is looked at next.
    """

    __slots__ = ("apart", "gpu_milli", "jobs", "live", "look_ms", "price", "price_starts", "record", "starts")

    def __init__(self, record: WorkloadRecord) -> None:
        self.record = record
        self.jobs: dict[str, tuple[int, ...]] = {}
        self.reset()

    def reset(self) -> None:
        """Nothing is held; whoever holds something is told of anew."""
        self.live = self.gpu_milli = self.starts = self.price = self.price_starts = self.look_ms = 0
        self.apart = self.bounds

    @property
    def bounds(self) -> bool:
        """Whether its tasks pass gates of its own as it stands."""
        return self.record.terms.bounds_starts or self.record.is_off

    def hold(self, sign: int, gpu_milli: int, price: int, since_ms: int) -> None:
        """Follow an attempt that begins or ceases to hold."""
        self.live += sign
        self.gpu_milli += sign * gpu_milli
        self.starts += sign * gpu_milli * since_ms
        self.price += sign * price
        self.price_starts += sign * price * since_ms

    def used_ms(self, now_ms: int) -> int:
        """Milli-GPU milliseconds used, what still runs included."""
        return self.record.used_ms + self.gpu_milli * now_ms - self.starts

    def paid(self, now_ms: int) -> int:
        """What that has cost, in millionths."""
        return self.record.paid + max(0, self.price * now_ms - self.price_starts) // HOUR_MS

    def is_empty(self, now_ms: int) -> bool:
        """Whether its purse is."""
        return self.record.is_spent_by(self.used_ms(now_ms), self.paid(now_ms))

    def is_shut(self, now_ms: int) -> bool:
        """Whether nothing of it may start."""
        budget = self.record.terms.budget
        return self.record.is_off or (budget.bounds and self.is_empty(now_ms))

    def empties_ms(self, now_ms: int) -> int:
        """When its purse is empty if all goes on as it does; 0 where it has none, or nothing is taken out."""
        budget, moments = self.record.terms.budget, []
        if budget.gpu_hours and self.gpu_milli:
            left = round(budget.gpu_hours * HOUR_MS * 1000) - self.used_ms(now_ms)
            moments.append(-(-left // self.gpu_milli))
        if budget.money and self.price:
            left = round(budget.money * MICRO) - self.paid(now_ms)
            moments.append(-(-left * HOUR_MS // self.price))
        if self.is_empty(now_ms):
            moments.append(0)
        return now_ms + max(0, min(moments)) if moments else 0


class SwitchGate(Gate):
    """Shut while a workload is a draft, paused or cancelled."""

    rule: Tally

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        return 0 if self.rule.record.is_off else ENDLESS


class WidthGate(Gate):
    """So many tasks of a workload at once."""

    rule: Tally

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        width = self.rule.record.terms.width
        return max(0, width - self.live - taken) if width else ENDLESS


class PurseGate(Gate):
    """Shut once the purse of a workload is empty, where that is to keep its tasks from starting."""

    rule: Tally

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        return 0 if self.rule.record.terms.budget.bounds and self.rule.is_empty(now_ms) else ENDLESS


class SkewGate(Gate):
    """Holds back whoever found room only where more of a workload would be too much; passes find that out.

    Looked at again now and then: whether it is still so hangs on what becomes of others, and on workers that come.
    """

    rule: Tally

    def room(self, gpu_milli: int, taken: int, taken_milli: int, now_ms: int) -> int:
        return ENDLESS

    def opens_ms(self, now_ms: int) -> int:
        return now_ms + LOOK_MS


WORKLOAD_GATES = {"switch": SwitchGate, "width": WidthGate, "purse": PurseGate, "skew": SkewGate}


class Holding:
    """What a queue or a user holds now: the sum of costs, and of costs times their beginnings. `users`: how many
    attempts those have who hold something of a queue.
    """

    __slots__ = ("cost", "cost_starts", "users")

    def __init__(self) -> None:
        self.cost = self.cost_starts = 0
        self.users: dict[str, int] = {}

    def add(self, cost: int, begin_ms: int) -> None:
        self.cost += cost
        self.cost_starts += cost * begin_ms

    def used(self, now_ms: int) -> int:
        """Cost-milliseconds of what is held, up to now."""
        return self.cost * now_ms - self.cost_starts


class Party:
    """One owner of work: what it holds, and the gates that its work passes."""

    def __init__(
        self,
        key: PartyKey,
        policy: Policy,
        gates: tuple[Gate, ...],
        of_queue: Holding,
        of_user: Holding,
    ) -> None:
        self.queue, self.user, self.marks = key
        self.rules = policy.queue(self.queue)
        self.entry_charge_ms = policy.fair_share.entry_charge_ms
        self.usage_key = f"usage {self.user}"
        self.gates, self.of_queue, self.of_user = gates, of_queue, of_user
        self.budgets = tuple(gate for gate in gates if isinstance(gate, QuotaGate) and gate.soft_ms)
        self.live = 0

    def count(self, sign: int, cost: int, begin_ms: int) -> None:
        """Follow an attempt that begins or ceases to hold, for its queue and its user too."""
        self.live += sign
        cost *= sign
        starts = cost * begin_ms
        queue, user = self.of_queue, self.of_user
        queue.cost += cost
        queue.cost_starts += starts
        user.cost += cost
        user.cost_starts += starts
        if left := queue.users.get(self.user, 0) + sign:
            queue.users[self.user] = left
        else:
            del queue.users[self.user]

    def is_late(self, now_ms: int) -> bool:
        """Whether a soft budget is used up."""
        return any(gate.is_late(now_ms) for gate in self.budgets)


class Parties:
    """All of them, numbered; made anew when the policy changes.

    `eased`: users who may have used less than the last pass knew; `recounted`: how often something was counted anew.
    """

    def __init__(self) -> None:
        self.all: list[Party] = []
        self.gates: dict[str, Gate] = {}
        self.queues: dict[str, Holding] = {}
        self.users: dict[str, Holding] = {}
        self.eased: dict[str, None] = {}
        self.recounted = 0
        self._index: dict[PartyKey, int] = {}
        self._labels: tuple[str, ...] = ()
        self._kinds: tuple[str, ...] = ()
        self._before: dict[str, PaceGate] = {}
        self.workloads: dict[str, Tally] = {}

    def begin(self, policy: Policy) -> None:
        """Start over under a policy; whoever has work is taken in again by `take`. A pace that stays has its tokens."""
        self._before = {key: gate for key, gate in self.gates.items() if isinstance(gate, PaceGate)}
        self.all.clear()
        self.gates.clear()
        self.queues.clear()
        self.users.clear()
        self._index.clear()
        for tally in self.workloads.values():
            tally.reset()
        labels = [pace.label for pace in policy.pacing.starts if pace.label]
        self._labels = tuple(sorted({*labels, *(cap.label for cap in policy.pacing.running)}))
        kinds = {kind for kind, _ in (quota.whom for quota in policy.quotas)}
        self._kinds = tuple(kind for kind in ("plugin", "template") if kind in kinds)

    def take(self, policy: Policy, job: Job, ledger: Ledger) -> int:
        """The number of a job's party."""
        key = (job.queue, job.user, self._marks(job))
        number = self._index.get(key)
        if number is None:
            number = self._index[key] = len(self.all)
            of_queue = self.queues.setdefault(job.queue, Holding())
            of_user = self.users.setdefault(job.user, Holding())
            gates = tuple(self._gates_of(policy, key, ledger))
            self.all.append(Party(key, policy, gates, of_queue, of_user))
        return number

    def crowd_of(self, line: BucketKey) -> CrowdKey:
        """The crowd that a line belongs to."""
        party = self.all[line.party]
        return CrowdKey(party.queue, party.marks, line.shape)

    def mark(self) -> tuple[int, int, int, int]:
        """How many there are of everything, for `forget_since`."""
        return len(self.all), len(self.gates), len(self.queues), len(self.users)

    def forget_since(self, mark: tuple[int, int, int, int]) -> None:
        """Undo what was taken in since a mark: a dry run leaves nothing behind. Dicts remember their order."""
        for party in self.all[mark[0] :]:
            del self._index[party.queue, party.user, party.marks]
        del self.all[mark[0] :]
        known: tuple[dict[str, Any], ...] = (self.gates, self.queues, self.users)
        for kept, size in zip(known, mark[1:], strict=True):
            while len(kept) > size:
                kept.popitem()

    def _marks(self, job: Job) -> tuple[str, ...]:
        marks = [f"{kind} {name}" for kind in self._kinds if (name := getattr(job, kind))]
        if self._labels:
            given = unpack_spec(job.spec).labels
            marks += [f"label {label}" for label in self._labels if holds(label, given)]
        if job.workload and (tally := self.workloads.get(job.workload)) is not None and tally.apart:
            marks.append(f"workload {job.workload}")
        return tuple(marks)

    def _gates_of(self, policy: Policy, key: PartyKey, ledger: Ledger) -> Iterator[Gate]:
        queue, user, marks = key
        mine = {("queue", queue), ("user", user), ("cluster", WHOLE_CLUSTER)} | {
            tuple(mark.split(" ", 1)) for mark in marks
        }
        names = dict.fromkeys(kind for kind, _ in sorted(mine))
        own = {(kind, getattr(quota, kind)) for quota in policy.quotas for kind in PRINCIPALS}
        for quota in policy.quotas:
            for kind, wanted in [(kind, getattr(quota, kind)) for kind in PRINCIPALS]:
                if wanted and kind in names:
                    for name in _named(mine, own, kind, wanted):
                        yield from self._of_quota(quota_key(kind, name, wanted), quota, ledger)
        own = {("user", pace.user) for pace in policy.pacing.starts}
        own |= {("queue", pace.queue) for pace in policy.pacing.starts}
        for number, pace in enumerate(policy.pacing.starts):
            for kind, wanted in (("user", pace.user), ("queue", pace.queue), ("label", pace.label)):
                if wanted:
                    for name in _named(mine, own, kind, wanted):
                        yield self._pace_gate(GateKey("pace", kind, name, str(number)), pace)
        for cap in policy.pacing.running:
            if ("label", cap.label) in mine:
                gate = CapGate(GateKey("cap", "label", cap.label), cap)
                yield self.gates.setdefault(gate.key, gate)
        for kind, name in (mark.split(" ", 1) for mark in marks[-1:]):
            if kind == "workload":
                for rule, make in WORKLOAD_GATES.items():
                    own_gate = make(GateKey(rule, kind, name), self.workloads[name])
                    yield self.gates.setdefault(own_gate.key, own_gate)

    def _of_quota(self, whom: GateKey, quota: Quota, ledger: Ledger) -> Iterator[Gate]:
        """The gates of one quota: its cards and budget together, each other bound by itself."""
        if quota.gpus >= 0 or quota.gpu_hours is not None:
            yield self._quota_gate(whom, quota, ledger)
        for name in AMOUNTS:
            if getattr(quota, name) >= 0:
                gate = AmountGate(whom._replace(rule=name), quota)
                yield self.gates.setdefault(gate.key, gate)

    def _pace_gate(self, whom: GateKey, pace: Pace) -> Gate:
        key = str(whom)
        gate = self.gates.get(key)
        if gate is None:
            before = self._before.get(key)
            gate = self.gates[key] = PaceGate(whom, pace, before if before and before.rule == pace else None)
        return gate

    def _quota_gate(self, whom: GateKey, quota: Quota, ledger: Ledger) -> QuotaGate:
        key = str(whom)
        gate = self.gates.get(key)
        if not isinstance(gate, QuotaGate):
            gate = self.gates[key] = QuotaGate(whom, quota, ledger)
        return gate


def quota_key(kind: str, name: str, wanted: str) -> GateKey:
    """The key of a quota's gate; `wanted` is whom the rule names, or that it is for each."""
    return GateKey("quota", kind, name, "each" if wanted == EACH else "own")


def _named(mine: set[tuple[str, ...]], own: set[tuple[str, str]], kind: str, wanted: str) -> list[str]:
    """Whom of a party a rule is about; a rule for a name goes before the one for each."""
    found = sorted(pair[1] for pair in mine if pair[0] == kind)
    if wanted == EACH:
        return [name for name in found if (kind, name) not in own]
    return [name for name in found if name == wanted]


def gpus_of(ask: Ask) -> int:
    """The milli-GPUs of one task."""
    return ask.gpus * ask.gpu_milli


def cost_of(policy: Policy, ask: Ask) -> int:
    """What a task weighs in shares: millicores, a GPU counting as several cores."""
    cores = max(1000, ask.cpu_milli)
    return cores + round(gpus_of(ask) * policy.fair_share.gpu_cost) if ask.gpus else cores


def usage_of(policy: Policy, ledger: Ledger, users: Mapping[str, Holding], user: str, now_ms: int) -> float:
    """Fair share's measure of a user: what has ended halves with time, what runs counts in full."""
    holding = users.get(user)
    return decayed(policy, ledger, user, now_ms) + (holding.used(now_ms) if holding else 0)


def decayed(policy: Policy, ledger: Ledger, user: str, now_ms: int) -> float:
    """What is left of a user's ended work."""
    meter = ledger.get(("meter", f"usage {user}"))
    if not isinstance(meter, Meter):
        return 0.0
    halvings = max(0, now_ms - meter.since_ms) / (policy.fair_share.half_life_s * 1000)
    return float(meter.decayed * 0.5**halvings)

"""What a site has decided about its queue: the policy, one value, replaced whole.

Owns names and defaults; `check` turns a file into it. Times are in seconds as people write them. The surprising
rule: without a `queues` section every queue name is welcome and behaves like the default one; with it only those named.
"""

from __future__ import annotations

import msgspec

from dray.core.model.objectives import Objective
from dray.core.model.policies.alarms import AlarmRule
from dray.core.model.policies.launching import Launch
from dray.core.model.policies.notifications import Notifications
from dray.core.model.policies.rebalancing import RebalancePolicy

ORDERS = ("fifo", "priority", "sjf", "edf", "srsf", "fair_share")
PREEMPTIVE = ("priority", "srsf", "fair_share")
# Ways to place tasks, and the word for one of them as it suits the cluster.
PLACERS = ("greedy", "best_fit", "first_fit", "spread", "fgd", "foresight")
MIN_COST, AUTO = "min_cost", "auto"
STRATEGIES = (*PLACERS, MIN_COST, AUTO)
PREEMPTION_RULES = ("none", "priority", "pressure", "fair_share")
# What may be done about work that idles, the mildest first.
IDLE_STEPS = ("warn", "demote", "stop")
# What users see of each other: nothing, what all others come to as one sum, or what each of them does.
VISIBILITIES = ("own", "sums", "names")
RESOURCE_KINDS = ("gpu", "cpu", "memory")
PRINCIPALS = ("user", "queue", "plugin", "template", "cluster")
WHOLE_CLUSTER = "all"
EACH = "*"
DEFAULT_QUEUE = "default"
HOUR_S, DAY_S = 3600.0, 86400.0


class Queue(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of waiting work. `weight` is its share of what runs while others wait too.

    `ageing_s`: waiting that long counts as one more point of priority (0: no ageing). `protect_after_s`: a task that
    has waited longer gets a reservation, and only work that ends before it may pass (0: nobody is protected).
    `objective`: what matters among workers for its jobs, where they do not say so themselves.
    """

    order: str = "fifo"
    weight: float = 1
    ageing_s: float = HOUR_S
    protect_after_s: float = 600
    objective: Objective | None = None


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """GPU-hours per period. Over `soft` its work goes behind everybody else's, over `hard` it waits; 0: no bound."""

    soft: float = 0
    hard: float = 0
    per_s: float = 7 * DAY_S


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one user, queue, plugin or template may have, or everybody together (`cluster: all`). Exactly one of them is
    named; `*` means each of them by itself. Below 0: no bound.

    At once: `gpus` (a shared card counts by its share), `cpus`, `memory` and `tasks` that run. `jobs`: how many may
    wait and run, beyond which new ones are refused. `priority`: the highest that may be given.
    """

    user: str = ""
    queue: str = ""
    plugin: str = ""
    template: str = ""
    cluster: str = ""
    gpus: float = -1
    cpus: float = -1
    memory: int = -1
    tasks: int = -1
    jobs: int = -1
    priority: int | None = None
    gpu_hours: Budget | None = None

    @property
    def whom(self) -> tuple[str, str]:
        """Whom it is about: the kind of principal, and its name."""
        return next(((kind, name) for kind in PRINCIPALS if (name := getattr(self, kind))), ("", ""))


class Pace(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A token bucket: `per_minute` flow in, `burst` may be saved up. For one queue, user or label (`k=v` or `k`)."""

    queue: str = ""
    user: str = ""
    label: str = ""
    per_minute: float = 60
    burst: int = 1


class Cap(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """At most this many tasks with a label (`k=v`, or `k` with any value) at once."""

    label: str
    most: int


class Pacing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How fast work may come in (per user) and start, and how much of a kind may run at once."""

    submits: tuple[Pace, ...] = ()
    starts: tuple[Pace, ...] = ()
    running: tuple[Cap, ...] = ()


class FairShare(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Usage halves every `half_life_s`; each start is charged `entry_charge_s` at once, so that bursts count early.

    `weights` gives users more or less than the 1 that everybody has; `gpu_cost`: as how many cores one GPU counts.
    """

    half_life_s: float = 7 * DAY_S
    entry_charge_s: float = 60
    weights: dict[str, float] = {}
    gpu_cost: float = 8

    @property
    def entry_charge_ms(self) -> int:
        return round(self.entry_charge_s * 1000)


class Weights(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How much each scorer counts; every scorer gives 0..1 and the sum decides."""

    leftover: float = 1
    fragmentation: float = 0
    gpu_avoidance: float = 10
    warmth: float = 0.5
    reliability: float = 1
    cost: float = 0
    performance: float = 0
    card_size: float = 2
    prefer: float = 2
    spread: float = 0
    latency: float = 0
    cheapest_in_time: float = 0


class PlacementPolicy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where tasks go among the workers that fit. `spread_label`: keep a job's tasks apart by this worker label.

    `strategy: auto` goes by rules: which of the others suits the workers and the work that there are.
    """

    strategy: str = "greedy"
    weights: Weights = Weights()
    spread_label: str = ""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How often preemption may happen within `window_s`: to one job, to one user's work, in the whole cluster."""

    per_job: int = 3
    per_user: int = 20
    cluster: int = 100
    window_s: float = HOUR_S


class PreemptionPolicy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who may be stopped for whom. `kinds` says per scarce resource which rule holds; others follow `strategy`.

    `pressure`: only while at least `pressure_share` of that resource is held. `fair_share`: only work of a user who
    has `fair_margin` times the preemptor's share. `wait_s`: a task asks for victims only after waiting that long.
    `moves`: so many tasks within the limits' window may be moved aside, to where they start again at once, for one that
    finds no room otherwise; each of them once (0: nobody is moved). `services`: batch work may have services
    stopped too.
    """

    strategy: str = "priority"
    kinds: dict[str, str] = {}
    by_tier: bool = False
    min_run_s: float = 60
    wait_s: float = 0
    pressure_share: float = 0.9
    fair_margin: float = 1.5
    limits: Limits = Limits()
    moves: int = 0
    services: bool = False

    def rule_for(self, kind: str) -> str:
        """The rule for a scarce resource kind."""
        return self.kinds.get(kind, self.strategy)


class IdlePolicy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happens to work that holds cards and leaves all of them idle for so long; 0: nothing. The first `grace_s` of
    an attempt do not count.
    """

    grace_s: float = 600
    warn_s: float = 0
    demote_s: float = 0
    stop_s: float = 0

    @property
    def acts(self) -> bool:
        """Whether anything ever follows."""
        return bool(self.warn_s or self.demote_s or self.stop_s)

    def limit_s(self, step: str) -> float:
        """After how long a step is taken; 0: never."""
        return {"warn": self.warn_s, "demote": self.demote_s, "stop": self.stop_s}[step]


class Provider(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a worker comes from (its label `provider`), and what it costs there: an hour of a card by its type, or of a
    whole worker, and a GB that leaves it. `spot`: its machines may be taken away at any time. `launch`: how more of
    them are started, and when.
    """

    price_per_hour: float = 0
    price_per_gpu_hour: dict[str, float] = {}
    egress_per_gb: float = 0
    spot: bool = False
    launch: Launch | None = None


class TemplateRule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who may use a template: these users, or everybody where none is named."""

    users: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All of it. `visibility`: what users see of what others hold, wait for and fail at; admins see everything."""

    queues: dict[str, Queue] = {}
    quotas: tuple[Quota, ...] = ()
    pacing: Pacing = Pacing()
    fair_share: FairShare = FairShare()
    placement: PlacementPolicy = PlacementPolicy()
    preemption: PreemptionPolicy = PreemptionPolicy()
    providers: dict[str, Provider] = {}
    notifications: Notifications = Notifications()
    alarms: tuple[AlarmRule, ...] = ()
    idle: IdlePolicy = IdlePolicy()
    templates: dict[str, TemplateRule] = {}
    visibility: str = "sums"
    rebalance: RebalancePolicy = RebalancePolicy()

    def queue(self, name: str) -> Queue:
        """The rules of a queue; one that is not listed behaves like the default one."""
        return self.queues.get(name) or self.queues.get(DEFAULT_QUEUE) or _PLAIN

    @property
    def preempts(self) -> bool:
        """Whether any work may be stopped, or moved aside, for other work."""
        if self.preemption.moves:
            return True
        rules = (self.preemption.strategy, *self.preemption.kinds.values())
        orders = [queue.order for queue in self.queues.values()]
        return any(rule != "none" for rule in rules) and any(order in PREEMPTIVE for order in orders)

    def admits(self, name: str) -> bool:
        """Whether work may be submitted to a queue of this name."""
        return not self.queues or name in self.queues or name == DEFAULT_QUEUE


_PLAIN = Queue()
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Policy)


def pack_policy(policy: Policy) -> bytes:
    """Encode a policy so that equal ones have equal bytes."""
    return _encoder.encode(policy)


def unpack_policy(packed: bytes) -> Policy:
    """Undo `pack_policy`; no bytes mean the default policy."""
    return _decoder.decode(packed) if packed else Policy()

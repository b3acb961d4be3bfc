"""Documents of the HTTP API about the cluster as a whole: how it stands, stood and will."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dray.wire.schemas.reasons import VerdictDocument


class ClusterTotals(msgspec.Struct):
    """Sums over workers that are here; `held` in thousandths of a GPU, `cpu` of a core."""

    gpus: int
    held: int
    cpu: int
    cpu_used: int
    tasks: int
    idle: Annotated[int, Meta(description="cards that are held and were idle for ten minutes")]
    waiting: int
    free_gpus: Annotated[int, Meta(description="whole cards that are free on workers that take work")]
    asked_gpus: Annotated[
        int, Meta(description="the least number that a waiting task asks for on one worker")
    ]
    pieces: Annotated[int, Meta(description="free ones on workers with fewer than that")]


class ClusterColumns(msgspec.Struct):
    """One entry for each worker in every column. `kind`, `state`, `user`, `queue` and `group` are places in the lists
    beside them; `free_s`: in how many seconds all that it runs is over by its limits (-1: nobody knows); `used`:
    how busy its held cards are, of 1,000 (-1: nobody could look); `user` and `queue`: of what holds most cards.
    """

    id: list[str]
    kind: list[int]
    state: list[int]
    gpus: list[int]
    held: list[int]
    cpu: list[int]
    cpu_used: list[int]
    tasks: list[int]
    free_s: list[int]
    used: list[int]
    idle: list[int]
    user: list[int]
    queue: list[int]
    group: list[int] = []


class Cluster(msgspec.Struct):
    """All workers in columns. `id`: where `GET /live` goes on from."""

    id: str
    headline: str
    workers: Annotated[dict[str, int], Meta(description="how many there are in each state")]
    totals: ClusterTotals
    states: list[str]
    kinds: list[str]
    users: list[str]
    queues: list[str]
    groups: list[str]
    columns: ClusterColumns


class CardHolder(msgspec.Struct):
    """Who holds a card. Of others no task is named, and their name is told by the policy's `visibility`."""

    user: str = ""
    task_id: str = ""
    job_name: str = ""
    queue: str = ""
    held_milli: int = 1000
    since: str | None = None
    until: Annotated[str | None, Meta(description="by when its time limit ends it")] = None
    used: Annotated[float | None, Meta(description="the busy share of its time, lately")] = None
    memory_bytes: int | None = None
    idle_s: float | None = None


class Card(msgspec.Struct):
    """One card of a worker."""

    index: int
    model: str = ""
    vram_bytes: int = 0
    healthy: bool = True
    held_milli: int = 0
    holders: list[CardHolder] = []


class JobCounts(msgspec.Struct):
    """How many jobs there are. `ended`: by the state in which they ended; `more`: there are more than were counted."""

    headline: str
    live: Annotated[dict[str, int], Meta(description="pending, running, held")]
    ended: dict[str, int]
    more: bool = False
    next_start_s: Annotated[float | None, Meta(description="when the next of those that wait starts")] = None


class History(msgspec.Struct, rename={"since": "from", "until": "to"}):
    """How the cluster stood. A value stands for `step_s` from its moment in `at`, and is null where no hub looked."""

    since: str
    until: str
    step_s: float
    at: list[str]
    series: dict[str, list[float | None]]
    failures: Annotated[dict[str, int], Meta(description="ends that were no success, by exit class")]


class FailureVerdict(msgspec.Struct):
    """Why something did not succeed, in a word."""

    kind: str
    title: str


class FailureExample(msgspec.Struct):
    """The newest of a group."""

    job_id: str
    task_id: str
    attempt: int
    name: str
    worker: str
    ended_at: str
    exit_code: int | None = None
    verdict: VerdictDocument | None = None
    last: Annotated[list[str], Meta(description="the last lines that it printed")] = []


class FailureGroup(msgspec.Struct):
    """Failures that have one cause, as far as can be told. `fault`: the program, a limit, the machine, the policy or a
    person; `bins`: how many in each of equal parts of the time.
    """

    count: int
    fault: str
    verdict: FailureVerdict
    exit_class: str
    error: Annotated[str, Meta(description="without what differs between them: numbers, ids, folders")]
    bins: list[int]
    jobs: int
    names: list[str]
    workers: dict[str, int]
    more_workers: int
    users: dict[str, int]
    example: FailureExample | None = None


class Failures(msgspec.Struct, rename={"since": "from", "until": "to"}):
    """What failed, the most frequent first. `others`: how many tries of others failed, by what `visibility` shows."""

    since: str
    until: str
    headline: str
    count: int
    cut: Annotated[bool, Meta(description="there were more than were looked at, the newest")]
    groups: list[FailureGroup]
    left_out: int
    others: dict[str, int] = {}


class TimelineRow(msgspec.Struct):
    """A worker and its bars, each `[card, begin, end, state, user, job, task, name]`: the card by its index, -1 for
    work that holds none; moments in milliseconds of wall time, an end of 0 is one that nobody knows. States: how tries
    ended (`succeeded`, `failed`, `killed`, `preempted`, `lost`), `runs`, `kept` for somebody, `foreseen`. Of others no
    job is named (-1: no task).
    """

    worker: str
    kind: str
    cards: int
    bars: list[tuple[int, int, int, str, str, str, int, str]]


class Timeline(msgspec.Struct, rename={"since": "from", "until": "to"}):
    """Who had, has and gets which card when, on a page of workers."""

    since: str
    until: str
    now_ms: int
    headline: str
    rows: list[TimelineRow]
    cut: Annotated[bool, Meta(description="there were more bars than one answer holds")] = False
    next_cursor: str | None = None


class UserRow(msgspec.Struct):
    """One user, or all `others` together. `share`: of the weights of those who have work; `times_share`: how often that
    they hold; `used`: core-milliseconds, decayed, as fair share measures them; `stopped`, `lost_s`: for others within a
    day.
    """

    user: str
    users: int
    weight: float | None
    share: float
    times_share: float | None
    running: int
    gpus_held: float
    used: float
    waiting: int
    oldest_wait_s: float | None
    starts_per_min_1h: float
    wait_p50_s: float | None
    wait_p90_s: float | None
    stopped: int
    lost_s: float


class UserList(msgspec.Struct):
    """Who holds what, and who waits how long."""

    headline: str
    users: list[UserRow]
    left_out: int = 0


class EventPage(msgspec.Struct):
    """Events in the order in which they happened, each with its `id`, `at` and `type`. `cut`: the log begins later than
    was asked for.
    """

    events: list[dict[str, Any]]
    cut: bool
    next_cursor: str | None = None


class Load(msgspec.Struct):
    """One try, a value for each moment in `at`; null where nobody could look."""

    attempt: int
    task: int
    worker: str
    at: list[str]
    cores: Annotated[list[float | None], Meta(description="how many it kept busy since the moment before")]
    max_rss_bytes: list[int]
    gpu_share: Annotated[list[float | None], Meta(description="how busy its cards were")]
    gpu_bytes: list[int | None]


class LoadList(msgspec.Struct):
    """What running tries of a job have used within an hour."""

    loads: list[Load]
    left_out: int = 0


class DemandAhead(msgspec.Struct):
    """Cards wanted at once so many hours ahead: of ten values eight lay between `p10` and `p90`."""

    in_h: int
    cards: float
    p10: float
    p90: float
    error: Annotated[
        float | None, Meta(description="how far such forecasts were off in the past week, in the mean")
    ] = None


class DemandOf(msgspec.Struct):
    """The demand of one kind of ask: so many cards a task, of which model; `all` together first."""

    kind: str
    now: float
    ahead: list[DemandAhead]


class Demand(msgspec.Struct):
    """What is to be expected. `known_h`: from how many hours; `cut`: only the last of very many jobs were looked at."""

    at: str
    known_h: int
    cut: bool
    kinds: list[DemandOf]
    assumes: str


class Advice(msgspec.Struct):
    """One piece of advice, with the flag of `dray submit` that follows it."""

    about: str
    message: str
    flag: str = ""
    value: str = ""


class AskedFor(msgspec.Struct):
    """What each task of a job asks for."""

    memory_bytes: int
    cores: float
    gpus: int


class HasUsed(msgspec.Struct):
    """What its attempts have used; null where nobody could look."""

    ran_s: float
    max_rss_bytes: int
    cores: float | None = None
    gpu_busy: float | None = None


class JobAdvice(msgspec.Struct):
    """What a job could do better. `runs`: by how many runs of its name its time is judged."""

    job_id: str
    name: str
    state: str
    waits: str
    asked: AskedFor
    used: HasUsed
    runs: int
    advice: list[Advice]


class OutcomeOf(msgspec.Struct):
    """What one strategy comes to: `cost` is what the policy's weights say against the places, the less the better."""

    strategy: str
    placed: int
    cost: float
    workers: int
    seconds: float
    trouble: str = ""


class Comparison(msgspec.Struct):
    """The first `tasks` in line by several strategies. Nothing was placed."""

    at: str
    tasks: int
    outcomes: list[OutcomeOf]

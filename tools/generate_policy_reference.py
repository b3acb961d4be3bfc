"""docs/reference/policy.md: every key of a policy, its default and its meaning, from the structs that hold them.

Names and defaults are read from `dray.core.model.policies.policy`. Meanings stand here; a key without one stops the
generator, so that none is added in silence.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.cli.base.policy_text import spell_value
from dray.core.model.objectives import Objective
from dray.core.model.policies import alarms, launching
from dray.core.model.policies import notifications as telling
from dray.core.model.policies import policy as rules
from dray.core.model.policies.rebalancing import RebalancePolicy

EXAMPLE = """\
queues:
  default:
  production:
    order: priority
    weight: 3
  research:
    order: fair_share
    protect_after_s: 30m

quotas:
  - user: "*"
    gpus: 8
  - queue: research
    gpu_hours: {soft: 400, hard: 500, per_s: 7d}

pacing:
  submits:
    - user: "*"
      per_minute: 120
      burst: 50
  running:
    - label: license=matlab
      most: 4

fair_share:
  half_life_s: 7d
  weights: {ada: 2}

preemption:
  strategy: priority
  kinds: {cpu: none}

providers:
  cloud:
    price_per_gpu_hour: {A100: 1.8, H100: 3.2}
    spot: true
"""
INTRODUCTION = f"""# The policy

What a site has decided about its queues, in one YAML file. The hub reads `policy.yaml` in its home when it starts;
`dray config apply FILE` replaces the policy of a running hub, and that outlives restarts until `policy.yaml` itself is
changed. A file is taken whole or not at all: what it does not say is the default, and every problem is told at once,
with its line. `dray config show` prints each value in force and where it came from.

```yaml
{EXAMPLE}```

Times are seconds, or text such as `90s`, `15m`, `2h`, `7d`. `*` stands for each user, queue, plugin or template by
itself; an entry for a name goes before the one for each.

A policy is refused, and nothing changes, while jobs wait or run in a queue that it no longer lists, or when a quota is
below what runs already. `dray config apply --force` lets such a quota hold: what runs goes on, nothing new starts.
"""


class Section(NamedTuple):
    """One table: where its keys stand, what holds them, and what each means."""

    title: str
    about: str
    kind: type[msgspec.Struct]
    meanings: dict[str, str]


SECTIONS = (
    Section(
        "visibility",
        "A single word: what users see of what others hold, wait for and fail at. Jobs of others are nobody's to see, "
        "whatever it is; admins see everything.",
        rules.Policy,
        {
            "visibility": "`own`: nothing; `sums`: what all others come to together; `names`: what each of them does"
        },
    ),
    Section(
        "queues.NAME",
        "Without this section every queue name is welcome and behaves like `default`. With it jobs go to the queues it "
        "names, and to `default`; a job for any other is refused. A name is an id: letters, digits, `.`, `_` and `-`.",
        rules.Queue,
        {
            "order": f"who comes first: {', '.join(f'`{name}`' for name in rules.ORDERS)}; by `edf` what can no longer "
            "meet its deadline, by the run time that it expects, goes behind all that can",
            "weight": "its share of what runs while others wait too; above 0",
            "ageing_s": "waiting that long counts as one more point of priority; 0: no ageing",
            "protect_after_s": "a task that waited longer gets a reservation, and only work that ends before it may "
            "pass; a tenth of it where somebody else holds more than twice his share of a `fair_share` queue; "
            "0: nobody is protected",
            "objective": "what matters among workers for its jobs, see below; what a job says itself goes before it",
        },
    ),
    Section(
        "queues.NAME.objective",
        "In place of the weights of the same names; what is left out stays with those. A job says the same as its "
        "[`objective`](../howto/choose-by-money.md).",
        Objective,
        {
            "cost": "how much it counts what a job costs",
            "performance": "how much it counts how fast it runs",
            "reliability": "how much it counts that it ends well",
            "latency": "how much it counts how soon it begins",
            "cheapest_in_time": "the least money among workers on which it ends before its deadline, else the fastest",
            "egress_gb": "so many GB a task sends out of where it runs",
        },
    ),
    Section(
        "quotas[]",
        "A list. Each entry names exactly one of `user`, `queue`, `plugin`, `template`, `cluster`, and bounds at least "
        "one thing.",
        rules.Quota,
        {
            "user": "whom it is about: a user, or `*`",
            "queue": "or a queue, or `*`",
            "plugin": "or a plugin, or `*`",
            "template": "or a template in all its versions, or `*`",
            "cluster": "or everybody together: `all`",
            "gpus": "cards held at once, a shared card by its share; 0: none at all",
            "cpus": "cores held at once",
            "memory": "memory held at once, such as `512G`; what asks for none is not counted",
            "tasks": "tasks that run at once",
            "jobs": "jobs that wait or run; more are refused",
            "priority": "the highest priority that may be given; a job with a higher one is refused",
            "gpu_hours": "GPU-hours per period, see below",
        },
    ),
    Section(
        "quotas[].gpu_hours",
        "",
        rules.Budget,
        {
            "soft": "over it, work goes behind everybody else's; 0: no such bound",
            "hard": "over it, work waits for the next period; 0: no such bound; not below `soft`",
            "per_s": "the period; above 0",
        },
    ),
    Section(
        "pacing",
        "",
        rules.Pacing,
        {
            "submits": "a list of paces: how fast jobs may come in; over it a submit is refused with 429 and "
            "`Retry-After`, and clients wait by themselves",
            "starts": "a list of paces: how fast tasks may start",
            "running": "a list of caps: how many tasks with a label may run at once",
        },
    ),
    Section(
        "pacing.submits[], pacing.starts[]",
        "A token bucket for exactly one of `queue`, `user` and `label`. A submit takes a token per job, all or none; "
        "one that is larger than the burst goes through when the bucket is full, and the next waits the longer.",
        rules.Pace,
        {
            "queue": "for the jobs of a queue, or `*`",
            "user": "or those of a user, or `*`",
            "label": "or those with a label, `NAME=VALUE`, or `NAME` with any value",
            "per_minute": "tokens that flow in; above 0",
            "burst": "tokens that may be saved up; 1 or more",
        },
    ),
    Section(
        "pacing.running[]",
        "",
        rules.Cap,
        {
            "label": "`NAME=VALUE`, or `NAME` with any value; required",
            "most": "tasks at once; required",
        },
    ),
    Section(
        "fair_share",
        "Read by queues whose order is `fair_share`, and by preemption where its rule is.",
        rules.FairShare,
        {
            "half_life_s": "usage counts half after this time; above 0",
            "entry_charge_s": "charged at each start at once, so that bursts count early",
            "weights": "a user's share, by name; 1 for who is not named; above 0",
            "gpu_cost": "as how many cores one GPU counts",
        },
    ),
    Section(
        "placement",
        "",
        rules.PlacementPolicy,
        {
            "strategy": f"how workers are chosen: {', '.join(f'`{name}`' for name in rules.STRATEGIES)}",
            "weights": "how much each scorer counts, see below",
            "spread_label": "keep a job's tasks apart by this worker label",
        },
    ),
    Section(
        "placement.weights",
        "Every scorer gives 0 to 1; the weighted sum decides. 0 or more each.",
        rules.Weights,
        {
            "leftover": "prefer the worker with the least room to spare, so that large holes stay whole",
            "fragmentation": "prefer what leaves cards usable for the shapes that come here",
            "gpu_avoidance": "keep tasks without a GPU off workers with one",
            "warmth": "prefer where the snapshot or runner already is",
            "reliability": "avoid workers with recent failures, and providers that lose or spoil much",
            "cost": "prefer where the job costs less from its beginning to its end: price times run time there",
            "performance": "prefer where this kind of job has run faster",
            "card_size": "prefer the smallest cards that have the VRAM asked for",
            "prefer": "the job's own `prefer`",
            "spread": "keep a job's tasks apart by `spread_label`",
            "latency": "prefer providers at which work begins soon after it was given out",
            "cheapest_in_time": "prefer the least money among workers on which the job ends before its deadline, else "
            "the fastest; 20 outweighs all that counts by default",
        },
    ),
    Section(
        "preemption",
        "",
        rules.PreemptionPolicy,
        {
            "strategy": f"who may be stopped for whom: {', '.join(f'`{name}`' for name in rules.PREEMPTION_RULES)}",
            "kinds": f"another rule where this is scarce: {', '.join(f'`{name}`' for name in rules.RESOURCE_KINDS)}",
            "by_tier": "a higher tier alone may preempt",
            "min_run_s": "nothing is stopped before it has run this long",
            "wait_s": "a task asks for victims only after waiting this long",
            "pressure_share": "rule `pressure`: only while at least this share of the resource is held; 0 to 1",
            "fair_margin": "rule `fair_share`: only work of a user with this many times the preemptor's share",
            "limits": "how often it may happen, see below",
            "moves": "how many tasks may be moved aside within `limits.window_s`, each of them once; 0: none",
            "services": "batch work may have [services](../howto/run-services.md) stopped or moved as well",
        },
    ),
    Section(
        "preemption.limits",
        "",
        rules.Limits,
        {
            "per_job": "to one job",
            "per_user": "to one user's work",
            "cluster": "in the whole cluster",
            "window_s": "within this time; above 0",
        },
    ),
    Section(
        "providers.NAME",
        "Where workers come from: the value of their label `provider`.",
        rules.Provider,
        {
            "price_per_hour": "what an hour of a whole worker costs; a task pays for its part of the cards, or else of "
            "the cores",
            "price_per_gpu_hour": "what an hour of one card costs, by its type; a type that is left out costs as much "
            "as the dearest that is named",
            "egress_per_gb": "what a GB costs that leaves it, for jobs that say how much they send out",
            "spot": "its machines may be taken away at any time",
            "launch": "how more of its workers are started, and when",
        },
    ),
    Section(
        "providers.NAME.launch",
        "A launcher: it starts workers of this provider when work has waited, by exactly one of `slurm`, `kubernetes`, "
        "`ssh` and `command`. The provider's name must then be an id, since it names the workers. "
        "[On top of Slurm](../howto/on-top-of-slurm.md), [on Kubernetes](../howto/on-kubernetes.md).",
        launching.Launch,
        {
            "offers": "what each of its workers has: what waits is matched with it",
            "slurm": "by `sbatch`, `scancel` and `squeue`, which the hub's machine has",
            "kubernetes": "as Jobs of a cluster; takes `dray[kubernetes]`",
            "ssh": "on machines that the hub's account reaches by ssh, one worker on each",
            "command": "by a program and its arguments, run on the hub in the hub's own account, never by a shell. Its "
            "first line of output is the machine's handle; the script that starts the agent is on its input, "
            "its command line in `DRAY_JOIN`. "
            + ", ".join(f"`{{{key}}}`" for key in launching.KEYS)
            + " stand for what they say",
            "end": "the command that ends a machine; goes with `command`",
            "list": "lists machines, a line each: id of the launch, handle, anything else. Without it "
            "a hub that was ended in the midst of a start waits until `start_s` is over",
            "min": "so many are kept, whatever waits",
            "most": "no more than so many at once",
            "wait_s": "work must have waited so long, with no other way open",
            "idle_s": "a worker that idles for so long goes",
            "life_s": "a worker ends so long after it joined; it is given only what ends before. 0: it may stay",
            "start_s": "who has not joined so long after being asked for has failed; time in a site's own line counts",
            "per_hour": "so many are asked for within an hour at most",
            "budget_per_day": "no more are asked for once its workers have cost so much since midnight (UTC), by the "
            "provider's prices; 0: no limit",
            "command_s": "a command of the site that takes longer is ended",
            "hub": "address at which its workers find the hub; by default the hub's own",
            "program": "dray itself, as it is called on the machine",
        },
    ),
    Section(
        "providers.NAME.launch.offers",
        "Say less than a worker has, never more: work would be started for that fits nowhere.",
        launching.Offered,
        {
            "cpus": "cores",
            "memory": "bytes, or text such as `64G`",
            "gpus": "cards",
            "gpu_type": "their type, such as `A100`",
            "vram": "memory of each card",
            "backend": "`nvidia` where there are cards, else `cpu`",
            "slots": "tasks at once; as many as cores",
            "labels": "labels that its workers are given",
            "resources": "amounts by name that they offer",
        },
    ),
    Section(
        "providers.NAME.launch.slurm",
        "Words for `sbatch`, beside those that follow from the offer.",
        launching.SlurmSite,
        {"partition": "partition", "account": "account", "args": "further words, as they are, the last ones"},
    ),
    Section(
        "providers.NAME.launch.kubernetes",
        "",
        launching.KubernetesSite,
        {
            "image": "an image with dray in it",
            "namespace": "where Jobs are made",
            "context": "of the kubeconfig of the hub's account; by default the current one, or the pod's own account",
            "service_account": "of its pods",
        },
    ),
    Section(
        "providers.NAME.launch.ssh",
        "",
        launching.SshSite,
        {"hosts": "names of machines", "args": "words for `ssh`, such as `-i` and a key"},
    ),
    Section(
        "templates.NAME",
        "Who may use a [template](../howto/templates.md). One that is not named here is everybody's.",
        rules.TemplateRule,
        {"users": "these users and nobody else; none named: everybody"},
    ),
    Section(
        "idle",
        "What happens to work that holds GPUs and leaves all of them idle. A worker that cannot look at its cards says "
        "nothing, and nothing happens there. [How to use it](../howto/find-waste.md).",
        rules.IdlePolicy,
        {
            "grace_s": "so long after its start nothing counts: data is loaded, code is compiled",
            "warn_s": "after so long its owner is told: event `idle` of `notifications`; 0: never",
            "demote_s": "after so long it is the first to be stopped for work of higher priority; 0: never",
            "stop_s": "after so long it is stopped for good, with the verdict `idle GPUs`; 0: never",
        },
    ),
    Section(
        "rebalance",
        "Whether work that runs is moved to where it gains. [When moving pays](../explain/moving.md), "
        "[how to bring work home](../howto/bring-work-home.md).",
        RebalancePolicy,
        {
            "mode": "`off`; `advise`: `dray rebalance plan` tells what would be moved, when it is asked; `on`: it is "
            "moved by itself",
            "strategies": "for which gains: a list of `performance` (faster cards) and `cost` (idle room that costs "
            "less); none named: for all of them",
            "window_s": "within it each task is moved once, and no more than the following",
            "moves": "so many tasks in all",
            "per_user": "so many of one user",
            "per_workload": "so many of one workload",
            "in_flight": "the share of the cards that work which may be on the move at once; a single move always may",
            "min_run_s": "what has run for less stays",
            "quiet_hours": "a list of spans such as `22:00-06:00` (UTC) in which nobody is moved",
            "high": "the share of what there is to gain above which it acts, on three looks in a row, now and foreseen",
            "low": "the share below which it may act again",
        },
    ),
    Section(
        "alarms[]",
        "A list: when something is wrong. `dray alarms` and `dray status` show what is raised; `notifications.rules` "
        "tell of it (`alarm`, `cleared`). Kinds: "
        + "; ".join(f"`{name}`, {about}" for name, about in alarms.KINDS.items())
        + ".",
        alarms.AlarmRule,
        {
            "kind": "what is measured",
            "above": "raised once the measure was above this for `for_s`; of times also `15m`, `2h`",
            "below": "over once it was at or below this for `for_s`; the same as `above` where it is not given",
            "for_s": "how long it must last either way",
            "queue": "`queue_wait`: this queue alone; each by default",
            "window_s": "`failed_share`: looked at so far back; above 0",
            "least": "`failed_share`: so many attempts must have ended",
        },
    ),
    Section(
        "notifications",
        "Who is told of what. [How to use it](../howto/notifications.md).",
        telling.Notifications,
        {
            "receivers": "who can be told something, by name",
            "rules": "who is told of what, a list",
            "jobs": "what jobs may ask for themselves",
            "smtp": "the server that takes mail",
        },
    ),
    Section(
        "notifications.receivers.NAME",
        "Exactly one of the first three.",
        telling.Receiver,
        {
            "webhook": "address that is posted to",
            "mail": "list of mail addresses; takes `notifications.smtp`",
            "command": "program and arguments, run on the hub in the hub's own account, with the event on its standard "
            "input",
            "secret": "file in `secrets/` of the hub's home with the key of the webhook's signature",
        },
    ),
    Section(
        "notifications.rules[]",
        "",
        telling.NotifyRule,
        {
            "on": f"events: {', '.join(f'`{name}`' for name in telling.EVENTS)}",
            "to": "names of receivers",
            "user": "only of this user's jobs",
            "queue": "only of jobs of this queue",
            "label": "only of jobs with this label, `k=v` or `k`",
        },
    ),
    Section(
        "notifications.jobs",
        "What jobs may ask for by `notify` and `notify_to`.",
        telling.JobNotifications,
        {
            "to": "receivers that are told where a job names nobody",
            "webhooks": "addresses that a job may name: `public`, those of the internet by https, or `none`",
            "networks": "networks beside those, such as `10.1.0.0/16`, also without TLS",
            "mail_domains": "domains whose mail addresses a job may name",
            "secret": "file in `secrets/` with the key that webhooks of jobs are signed with",
        },
    ),
    Section(
        "notifications.smtp",
        "",
        telling.Smtp,
        {
            "host": "mail server",
            "port": "its port",
            "sender": "address that mail comes from",
            "tls": "`starttls`, `tls` from the first byte, or `none`",
            "user": "account to log in with",
            "secret": "file in `secrets/` with its password",
        },
    ),
)


def write_policy_page() -> str:
    """docs/reference/policy.md."""
    parts = [INTRODUCTION]
    for section in SECTIONS:
        parts.append(f"## {section.title}\n")
        if section.about:
            parts.append(f"{textwrap.fill(section.about, 120)}\n")
        known = section.kind.__struct_fields__
        if section.kind is rules.Policy:
            known = tuple(section.meanings)
        if set(known) != set(section.meanings):
            raise SystemExit(f"{section.title}: keys {known}, meanings {tuple(section.meanings)}")
        rows = [(f"`{name}`", _default(section.kind, name), section.meanings[name]) for name in known]
        parts.append(_table(("key", "default", "meaning"), rows))
    return "\n".join(parts)


def _default(kind: type[msgspec.Struct], name: str) -> str:
    field = next(field for field in msgspec.structs.fields(kind) if field.name == name)
    if field.required:
        return "–"
    value: Any = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    nothing = value in ("", None, (), {}) or (name == "gpus" and value < 0)
    if nothing or isinstance(value, msgspec.Struct):
        return "–"
    return f"`{spell_value(name, value)}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(re.sub(r"\|", r"\\|", cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"

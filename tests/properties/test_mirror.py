"""Random lives of a small cluster, mirrored: what is written step by step is what a fresh look at the rows gives."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.hub.mirror.view import Feeder, mirroring, read_view, until
from tests.properties.world import STEPS, World
from tests.valkey import Valkey

from dray.core.lifecycle.state.events import Clock
from dray.hub.engine.projection import build_projection
from dray.hub.mirror.groups import Group
from dray.hub.mirror.shadow import Shadow
from dray.hub.store.base import Projection

NUMBERS = st.integers(0, 63)
STEPS_LIVED = 350


class Written(World):
    """Also hands out what it writes, as a hub does."""

    def __init__(self) -> None:
        super().__init__()
        self.projections: list[Projection] = []
        self.wrote = 0

    def write_rows(self, _: int = 0, __: int = 0) -> None:
        self.wrote += 1
        clock = Clock(self.state.now_ms, self.state.now_ms)
        self.projections.append(build_projection(self.state, self.state.touched, self.wrote, clock))
        super().write_rows()


class Held:
    """What Redis would hold of a group, kept by its changes alone."""

    def __init__(self) -> None:
        self.collections: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def take(self, group: Group) -> None:
        first, second = self.collections.setdefault(group.names.stats, ({}, {}))
        for part in group.take_parts():
            for changes, kept in zip(part.changes, (first, second), strict=True):
                for member, value in changes.items():
                    if value is None:
                        kept.pop(member, None)
                    else:
                        kept[member] = value


def make_fresh(shadow: Shadow, world: Written) -> Shadow:
    """A shadow of the rows as they are: of live jobs, those that still hold a worker, and live attempts."""
    fresh, rows = Shadow("dray"), world.rows
    live = [attempt for attempt in rows.attempts.values() if attempt.phase.live]
    held = {attempt.job_id for attempt in live}
    jobs = [job for job in rows.jobs.values() if not job.state.final or job.id in held]
    fresh.begin_load()
    fresh.load([*jobs, *live, *rows.workers.values()], 0.0)
    fresh.end_load()
    for queue in shadow.lines:
        fresh.line(queue)
    return fresh


def collect(shadow: Shadow) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    found: dict[str, tuple[dict[Any, Any], dict[Any, Any]]] = {}
    found |= {shadow.site.names.stats: (dict(shadow.workers), dict.fromkeys(shadow.lines, ""))}
    members = shadow.collect(list(shadow.entries), frozenset(shadow.lines))
    for queue, line in shadow.lines.items():
        pair = [members.get((queue, place), []) for place in (0, 1)]
        scores = [dict(zip(flat[1::2], flat[::2], strict=True)) for flat in pair]
        found[line.group.names.stats] = (scores[0], scores[1])
    return found


class Mirrored(RuleBasedStateMachine):
    """The steps of the world in any order; rows are folded as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.world, self.shadow, self.held = Written(), Shadow("dray"), Held()
        self.shadow.site.whole = False

    @rule(name=st.sampled_from(STEPS), a=NUMBERS, b=NUMBERS)
    def step(self, name: str, a: int, b: int) -> None:
        getattr(self.world, name)(a, b)
        self.fold()

    def fold(self) -> None:
        for rows in self.world.projections:
            jobs = [row.job for row in rows.jobs]
            attempts = [row.attempt for row in rows.attempts]
            for job in jobs:
                self.shadow.line(job.queue).group.whole = False
            self.shadow.fold(jobs, attempts, rows.workers, rows.gone_workers, 0.0)
            self.shadow.release([job.id for job in jobs] + [attempt.job_id for attempt in attempts])
        self.world.projections.clear()
        for group in self.shadow.groups:
            self.held.take(group)

    def teardown(self) -> None:
        self.world.write_rows()
        self.fold()
        fresh = make_fresh(self.shadow, self.world)
        assert self.held.collections == collect(fresh)
        assert self.shadow.entries.keys() == fresh.entries.keys()
        for queue, line in self.shadow.lines.items():
            told = self.shadow.tell_stats(line.group)
            assert told == fresh.tell_stats(fresh.lines[queue].group)
            assert told[1] == tuple(len(kept) for kept in self.held.collections[line.group.names.stats])


TestMirrored = Mirrored.TestCase
TestMirrored.settings = settings(stateful_step_count=40)


async def test_lives_on_a_server(valkey: Valkey) -> None:
    """The same through a real mirror: key for key what another one makes of the rows at the end."""
    client = valkey.client()
    for seed in (1, 2, 3):
        client.flushall()
        world, numbers, feeder = Written(), random.Random(seed), Feeder()
        async with mirroring(feeder, valkey.url) as mirror:
            await until(lambda mirror=mirror: mirror.gauge.state == "writes")
            for _ in range(STEPS_LIVED):
                getattr(world, numbers.choice(STEPS))(numbers.randrange(64), numbers.randrange(64))
                if numbers.randrange(60) == 0:
                    client.flushall()
                elif numbers.randrange(60) == 0:
                    client.delete("dray:{q:default}:waiting", "dray:{q:default}:stats")
                for rows in world.projections:
                    feeder.hand_in(rows)
                world.projections.clear()
            world.write_rows()
            feeder.hand_in(world.projections.pop())
            writer = mirror._writer
            assert writer is not None
            await until(lambda writer=writer, feeder=feeder: writer.seq == feeder.seq and writer.is_settled)
            # What was flushed last may not have been noticed yet.
            numbers_of = [group.names.stats for group in writer._shadow.groups]
            await until(
                lambda writer=writer, keys=numbers_of: client.exists(*keys) == len(keys) and writer.is_settled
            )
            async with mirroring(feeder, valkey.url, prefix="fresh") as other:
                await until(lambda other=other: other._writer is not None and other._writer.is_settled)
            ours, theirs = split_view(read_view([client]), "dray"), split_view(read_view([client]), "fresh")
        over = {key for key in ours.keys() - theirs.keys() if key.startswith("{j:")}
        live = {f"{{j:{job.id}}}" for job in world.rows.jobs.values() if not job.state.final}
        assert {key: value for key, value in ours.items() if key not in over} == theirs
        assert not over & live
        assert live <= theirs.keys()


def split_view(view: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The keys under one prefix, without queues that are empty: whoever looks for the first time knows of none."""
    found = {
        key.removeprefix(f"{prefix}:"): value for key, value in view.items() if key.startswith(f"{prefix}:")
    }
    found["{site}:queues"] = {
        queue for queue in found["{site}:queues"] if set(found[f"{{q:{queue}}}:stats"].values()) != {"0"}
    }
    found["{site}:stats"].pop("queues")
    return {
        key: value
        for key, value in found.items()
        if not (key.endswith(":stats") and set(value.values()) == {"0"})
    }

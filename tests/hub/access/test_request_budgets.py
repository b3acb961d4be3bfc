"""What one caller may have under way: the others never wait for it, and what is too much is refused with a time."""

from __future__ import annotations

import asyncio

import pytest

from dray.errors import Overloaded
from dray.hub.access.request_budgets import (
    BURST,
    HEAVY_AT_ONCE,
    HEAVY_QUEUED,
    KEPT_CALLERS,
    SMALL_AT_ONCE,
    UNITS_PER_S,
    Budgets,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def fill(budgets: Budgets, token: str, more: int = 0) -> list[asyncio.Task[None]]:
    """Take all places of a caller; `more` wait behind them."""
    for _ in range(HEAVY_AT_ONCE):
        await budgets.enter(token)
    waiting = [asyncio.ensure_future(budgets.enter(token)) for _ in range(more)]
    await asyncio.sleep(0)
    return waiting


async def test_those_behind_go_in_their_order_and_others_at_once() -> None:
    budgets = Budgets()
    first, second = await fill(budgets, "a", 2)
    async with asyncio.timeout(60):
        await budgets.enter("b")
    assert not first.done()
    budgets.leave("a", 1)
    await first
    assert not second.done()
    budgets.leave("a", 1)
    await second


async def test_a_queue_has_an_end() -> None:
    budgets = Budgets()
    waiting = await fill(budgets, "a", HEAVY_QUEUED)
    with pytest.raises(Overloaded, match="under way") as refused:
        await budgets.enter("a")
    assert refused.value.retry_after_s > 0
    patient = [asyncio.ensure_future(budgets.enter("a", patient=True)) for _ in range(HEAVY_QUEUED)]
    await asyncio.sleep(0)
    for task in waiting:
        budgets.leave("a", 0)
        await task
    late = asyncio.ensure_future(budgets.enter("a"))
    for task in patient:
        budgets.leave("a", 0)
        await task
    budgets.leave("a", 0)
    await late


async def test_whoever_gives_up_waiting_leaves_its_place() -> None:
    budgets = Budgets()
    gone, stays = await fill(budgets, "a", 2)
    budgets.leave("a", 0)  # calls up the first, which gives up at the same moment
    gone.cancel()
    await asyncio.wait([gone])
    async with asyncio.timeout(60):
        await stays
    budgets.leave("a", 0)
    budgets.leave("a", 0)
    await fill(budgets, "a")


async def test_a_debt_is_paid_before_the_next_one_and_refuses_those_who_wait() -> None:
    clock = Clock()
    budgets = Budgets(clock=clock)
    waiting = await fill(budgets, "a", 1)
    budgets.leave("a", BURST + UNITS_PER_S)
    with pytest.raises(Overloaded, match="in a while"):
        await waiting[0]
    with pytest.raises(Overloaded) as refused:
        await budgets.enter("a")
    assert refused.value.retry_after_s == pytest.approx(1, abs=0.01)
    clock.now += 1.1
    await budgets.enter("a")
    budgets.leave("a", 0)
    await budgets.enter("b")


async def test_small_questions_of_a_caller_go_some_at_a_time() -> None:
    budgets = Budgets()
    for _ in range(SMALL_AT_ONCE):
        await budgets.enter_small("a")
    behind = asyncio.ensure_future(budgets.enter_small("a"))
    await budgets.enter_small("b")
    assert not behind.done()
    budgets.leave_small("a")
    await behind


async def test_answers_that_stay_open_are_counted_by_caller_and_in_all() -> None:
    budgets = Budgets(streams=8)
    for _ in range(4):
        budgets.open_stream("a")
    with pytest.raises(Overloaded, match="holds 4 answers open"):
        budgets.open_stream("a")
    for token in "bbbc":
        budgets.open_stream(token)
    with pytest.raises(Overloaded):
        budgets.open_stream("d")
    budgets.close_stream("a")
    budgets.open_stream("d")


async def test_callers_that_are_idle_are_forgotten() -> None:
    clock = Clock()
    budgets = Budgets(clock=clock)
    await budgets.enter("busy")
    for number in range(3 * KEPT_CALLERS):
        await budgets.enter(f"t{number}")
        budgets.leave(f"t{number}", 1)
        clock.now += 1
    assert len(budgets._callers) <= KEPT_CALLERS
    budgets.leave("busy", 0)

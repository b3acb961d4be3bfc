"""`hub.workload`: a campaign of calls and commands in one program, and the program that goes on with it."""

from __future__ import annotations

import asyncio

import pytest

import dray
from dray.errors import Closed, DrayError


def double(number):
    return 2 * number


def test_a_campaign_of_a_program(hub: dray.Hub) -> None:
    with hub.workload("numbers", width=2, budget={"gpu_hours": 5}) as campaign:
        assert list(campaign.map(double, [1, 2, 3])) == [2, 4, 6]
        campaign.pause()
        job = campaign.submit(["true"])
        assert "paused" in job.why()["summary"]
        campaign.start()
        assert job.wait(30).state == dray.JobState.SUCCEEDED
        assert hub.workload("numbers", width=3).status()["width"] == 3
    ended = campaign.wait(30)
    assert (ended["state"], ended["tasks"]["succeeded"]) == ("succeeded", 4)
    with pytest.raises((Closed, DrayError)):
        campaign.submit(["true"])
    with pytest.raises(ValueError, match="mine"), hub.workload("open") as unfinished:
        raise ValueError("mine")
    assert unfinished.state == "running"
    with pytest.raises(TimeoutError, match="it is running"):
        unfinished.wait(0.1)
    assert unfinished.cancel()["state"] == "cancelled"


def test_the_same_from_inside_a_loop(hub: dray.Hub) -> None:
    async def campaign() -> dict[str, object]:
        async with dray.AsyncHub(hub.config) as here, await here.workload("looped") as workload:
            job = await workload.submit(["true"])
            await job.wait(30)
        return await workload.wait(30)

    assert asyncio.run(campaign())["state"] == "succeeded"

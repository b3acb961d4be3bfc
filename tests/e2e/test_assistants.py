"""A program that works for people, over the Model Context Protocol: the SDK's own client against a real hub."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.e2e.cluster import DRAY, Cluster

mcp = pytest.importorskip("mcp", reason="the SDK of the protocol is not installed")
from mcp import Client, StdioServerParameters  # noqa: E402 - only found after the line above

CHANGING = {"submit", "cancel", "hold", "release"}
# Nothing else of this environment may lead the command to another hub.
KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


def command(site: Cluster, *flags: str, token: str = "", hub: str = "") -> StdioServerParameters:
    given = {name: os.environ[name] for name in KEPT if name in os.environ}
    given |= {"DRAY_HUB": hub or site.url, "DRAY_TOKEN": token or site.token}
    return StdioServerParameters(command=DRAY[0], args=[*DRAY[1:], "mcp", *flags], env=given)


def talk(server: StdioServerParameters, say: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Client(server) as client:
            await say(client)

    asyncio.run(run())


async def ask(client: Any, tool: str, **given: Any) -> Any:
    """Use a tool; the client holds its answer against the schema that was told."""
    answer = await client.call_tool(tool, given)
    assert not answer.is_error, answer.content[0].text
    assert json.loads(answer.content[0].text) == answer.structured_content
    return answer.structured_content


async def refused(client: Any, tool: str, **given: Any) -> str:
    answer = await client.call_tool(tool, given)
    assert answer.is_error
    return str(answer.content[0].text)


def test_an_agent_submits_follows_explains_and_stops_work(site: Cluster) -> None:
    async def say(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() >= CHANGING | {
            "plan",
            "why",
            "job_status",
            "logs",
            "tasks",
            "results",
            "queue_state",
        }
        assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == CHANGING
        assert all(tool.output_schema and "dry_run" in tool.input_schema["properties"]
                   for name, tool in tools.items() if name in CHANGING)  # fmt: skip

        job = {"command": ["sh", "-c", "echo hello; exit 3"], "name": "greet", "cpus": 1}
        tried = await ask(client, "submit", **job)
        assert (tried["dry_run"], tried["id"], tried["plan"]["starts_now"]) == (True, "", True)
        assert (await ask(client, "list_jobs", name="greet"))["jobs"] == [], "a dry run submits nothing"
        made = await ask(client, "submit", **job, dry_run=False, key="once")
        again = await ask(client, "submit", **job, dry_run=False, key="once")
        assert made["id"] == again["id"] != ""
        ended = await ask(client, "job_status", id=made["id"], wait_s=60)
        while ended["state"] in ("pending", "running"):
            ended = await ask(client, "job_status", id=made["id"], wait_s=60)
        assert (ended["state"], ended["exit_code"], ended["verdict"]["title"] != "") == ("failed", 3, True)
        assert (await ask(client, "logs", id=made["id"], tail=5))["text"] == "hello\n"
        results = await ask(client, "results", id=made["id"])
        assert (results["state"], len(results["unsuccessful"]), results["text"]) == ("failed", 1, "hello\n")

        wide = await ask(client, "submit", command=["true"], gpus=64, id="wide", dry_run=False)
        assert wide["id"] == "wide"
        why = await ask(client, "why", id="wide")
        assert (why["state"], why["ever"]) == ("pending", True)
        assert "GPU" in why["summary"]
        held = await ask(client, "hold", ids=["wide"])
        assert (held["dry_run"], held["count"]) == (True, 1)
        assert not (await ask(client, "job_status", id="wide"))["held"]
        await ask(client, "hold", ids=["wide"], dry_run=False)
        assert (await ask(client, "job_status", id="wide"))["held"]
        await ask(client, "release", ids=["wide"], dry_run=False)
        await ask(client, "cancel", ids=["wide"], dry_run=False)
        assert (await ask(client, "job_status", id="wide", wait_s=30))["state"] == "killed"
        array = await ask(
            client, "submit", command=["sh", "-c", "exit $((DRAY_INDEX % 2))"], array="0-3", dry_run=False
        )
        while (await ask(client, "job_status", id=array["id"], wait_s=60))["state"] in ("pending", "running"):
            pass
        page = await ask(client, "tasks", id=array["id"], limit=2)
        assert (len(page["tasks"]), page["next_cursor"]) == (2, "2")
        assert [one["name"] for one in (await ask(client, "queue_state"))["queues"]] == ["default"]
        assert (await ask(client, "rank_providers", command=["true"]))["choices"][0][
            "hours_from"
        ] == "assumed"

        assert "not_found" in await refused(client, "why", id="nobody")
        assert "'comand' is no argument of plan" in await refused(client, "plan", comand=["true"])
        assert "needs command" in await refused(client, "submit", name="x")
        lost = await refused(client, "cancle", ids=["x"])
        assert "there is no tool 'cancle'" in lost
        assert "did you mean 'cancel'?" in lost
        assert "mem" in await refused(client, "plan", command=["true"], mem="a lot")
        assert "dry_run must be" in await refused(client, "cancel", ids=["wide"], dry_run="no")
        assert "objective" in await refused(client, "plan", command=["true"], objective="cost=nan")

    talk(command(site), say)


def test_who_may_only_read_is_offered_nothing_else(site: Cluster) -> None:
    reader = site.call("POST", "/tokens", {"scopes": ["read"], "user": "bob"}).json["token"]
    hidden = site.submit("sleep", "0")

    async def say(client: Any) -> None:
        assert CHANGING.isdisjoint(tool.name for tool in (await client.list_tools()).tools)
        assert "scope submit" in await refused(client, "submit", command=["true"], dry_run=False)
        assert "not_found" in await refused(client, "logs", id=hidden), "of others' jobs nothing is told"
        assert (await ask(client, "plan", command=["true"]))["tasks"] == 1

    talk(command(site, token=reader), say)

    async def careful(client: Any) -> None:
        assert CHANGING.isdisjoint(tool.name for tool in (await client.list_tools()).tools)
        assert "--read-only" in await refused(client, "cancel", ids=[hidden], dry_run=False)

    talk(command(site, "--read-only"), careful)


def test_a_hub_that_is_away_and_a_missing_sdk_are_told(site: Cluster) -> None:
    async def say(client: Any) -> None:
        assert CHANGING.isdisjoint(tool.name for tool in (await client.list_tools()).tools)
        assert "hub" in await refused(client, "queue_state")

    talk(command(site, hub="http://127.0.0.1:9"), say)
    code = "import sys; sys.modules['mcp'] = None; from dray.cli.main import main; sys.exit(main(['mcp']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install 'dray[mcp]'" in done.stderr, done.stdout) == (1, True, "")

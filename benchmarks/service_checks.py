"""What checks of many services cost their agent: 500 with one over HTTP every 5 s; the same requests by a bare
program beside.
"""

from __future__ import annotations

import asyncio
import time

import uvloop

from benchmarks.cluster import Cluster, cpu_seconds, raise_file_limit, running_cluster, wait_until
from benchmarks.figures import Bar, Figure
from benchmarks.progress import tell
from benchmarks.small_service import ASK, COMMAND

NAME = "checked"
EVERY_S = 5.0
LIMIT_S = 600.0
FLOOR = "the same requests by a bare program"


def measure(quick: bool) -> dict[str, Figure]:
    count, span_s = (20, 6.0) if quick else (500, 60.0)
    raise_file_limit()
    with running_cluster() as cluster:
        agent = cluster.start_agent(2, "bench", "--service-slots", str(count))
        ports = _serve(cluster, count)
        # Until it is settled each is checked more often.
        time.sleep(EVERY_S)
        share = _share(agent, span_s)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            floor = runner.run(_ask_all(ports, count / EVERY_S, span_s / 4))
        cluster.request("POST", f"/services/{NAME}/stop", {"grace_s": 0})
        wait_until(lambda: not cluster.services_in_use("bench"), LIMIT_S, "their end")
    tell(f"{count} services: {share:.1f} % of a core; {floor:.1f} % by a bare program")
    return {
        "agent_share": Figure(
            f"{count} services with a check over HTTP every {EVERY_S:g} s on one agent, its share of a core",
            "%",
            share,
            floors={FLOOR: floor},
            bars=[Bar(at_most=30.0)],
            note=f"over {span_s:g} s; the services themselves and their supervisor are not counted",
        )
    }


def _serve(cluster: Cluster, count: int) -> list[int]:
    check = {"http": "/", "interval_s": EVERY_S}
    spec = {"id": NAME, "command": COMMAND, "type": "service", "replicas": count, "ports": ["http"]}
    cluster.request("POST", "/jobs", {**spec, "min_cpu_cores": 0, "health_check": check})

    def ready() -> list[int]:
        found = cluster.request("GET", f"/services/{NAME}/endpoints")["endpoints"]
        return [one["ports"]["http"] for one in found]

    wait_until(lambda: len(ready()) == count, LIMIT_S, f"{count} ready replicas")
    return ready()


def _share(pid: int, span_s: float) -> float:
    began, before = time.perf_counter(), cpu_seconds(pid)
    time.sleep(span_s)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began) * 100


async def _ask_all(ports: list[int], rate: float, span_s: float) -> float:
    """The share of a core that as many requests take here, spread as evenly as the checks are."""
    loop = asyncio.get_running_loop()
    began, before, waiting = loop.time(), time.process_time(), set[asyncio.Task[None]]()
    for number in range(int(rate * span_s)):
        task = asyncio.ensure_future(_ask(ports[number % len(ports)]))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        await asyncio.sleep(max(0.0, began + (number + 1) / rate - loop.time()))
    await asyncio.gather(*waiting)
    return (time.process_time() - before) / (loop.time() - began) * 100


async def _ask(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASK)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:200].decode())

"""Workers as Jobs of a Kubernetes cluster, by its own API: created, deleted, listed by their labels.

The token lies in a Secret beside the Job and in neither's spec. A Job's name is its launch's, so that making it a
second time makes nothing. Needs lightkube, an extra; only this module knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Secret
from lightkube.types import CascadeType

from dray.core.model.policies.launching import KubernetesSite, Launch
from dray.hub.launchers.base import PREFIX, Machine, Order, SiteFault

LAUNCHER, LAUNCH = "dray.launcher", "dray.launch"
KEPT_S = 300
THERE, GONE = 409, 404


class Words(NamedTuple):
    """What an agent is started with: its command, and its token apart from that."""

    command: list[str]
    token: str


class Kubernetes:
    """One launcher's cluster."""

    def __init__(self, name: str, launch: Launch) -> None:
        assert launch.kubernetes is not None
        self._name, self._launch, self._site = name, launch, launch.kubernetes
        self._client: AsyncClient | None = None

    async def start(self, order: Order) -> str:
        words = take_token(order.join)
        await self._ask(lambda client: client.create(secret_of(order, words.token)), THERE)
        await self._ask(lambda client: client.create(job_of(order, words.command, self._site)), THERE)
        return name_of(order.id)

    async def end(self, launch_id: str, handle: str) -> None:
        name = handle or name_of(launch_id)
        await self._ask(lambda client: client.delete(Job, name, cascade=CascadeType.BACKGROUND), GONE)
        await self._ask(lambda client: client.delete(Secret, name), GONE)

    async def machines(self) -> list[Machine] | None:
        async def look(client: AsyncClient) -> list[Any]:
            return [job async for job in client.list(Job, labels={LAUNCHER: self._name})]

        return list(read_jobs(await self._ask(look)))

    async def _ask(self, call: Callable[[AsyncClient], Any], fine: int = 0) -> Any:
        """Ask the cluster; an answer of this status is as good as done."""
        try:
            async with asyncio.timeout(self._launch.command_s):
                if self._client is None:
                    self._client = await asyncio.to_thread(open_client, self._site)
                return await call(self._client)
        except TimeoutError:
            raise SiteFault(
                f"Kubernetes did not answer within {self._launch.command_s:g} s", unsure=True
            ) from None
        except ApiError as fault:
            if fault.status.code == fine:
                return None
            raise SiteFault(f"Kubernetes refused ({fault.status.code}): {fault.status.message}") from None
        except (ConfigError, OSError) as fault:
            raise SiteFault(f"Kubernetes cannot be reached: {fault}") from None
        except httpx2.HTTPError as fault:
            raise SiteFault(f"Kubernetes cannot be reached: {fault!r}", unsure=True) from None


def open_client(site: KubernetesSite) -> AsyncClient:
    """A client by the kubeconfig of the hub's account, or the account of its pod."""
    config = KubeConfig.from_env().get(site.context or None)
    return AsyncClient(config=config, namespace=site.namespace)


def name_of(launch_id: str) -> str:
    """A launch's name as Kubernetes allows it."""
    return PREFIX + launch_id.lower().replace("_", "-").replace(".", "-")


def take_token(join: tuple[str, ...]) -> Words:
    """The words of a join line without the token, and the token."""
    place = join.index("--token")
    return Words([*join[:place], *join[place + 2 :]], join[place + 1])


def secret_of(order: Order, token: str) -> Secret:
    """What keeps the token."""
    return Secret(metadata=_metadata(order), stringData={"token": token}, type="Opaque")


def _metadata(order: Order) -> ObjectMeta:
    return ObjectMeta(name=name_of(order.id), labels={LAUNCHER: order.launcher, LAUNCH: order.id})


def job_of(order: Order, command: list[str], site: KubernetesSite) -> Job:
    """One pod that runs an agent, and is not started again."""
    launch = order.launch
    amounts = amounts_of(launch)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "agent",
                "image": site.image,
                "command": command,
                "env": [
                    {"name": "DRAY_HOME", "value": "/tmp/dray"},
                    {
                        "name": "DRAY_WORKER_TOKEN",
                        "valueFrom": {"secretKeyRef": {"name": name_of(order.id), "key": "token"}},
                    },
                ],
                "resources": {"requests": amounts, "limits": amounts},
            }
        ],
    }
    if site.service_account:
        pod["serviceAccountName"] = site.service_account
    spec: dict[str, Any] = {
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": {"labels": {LAUNCHER: order.launcher, LAUNCH: order.id}}, "spec": pod},
    }
    if launch.life_s:
        spec["activeDeadlineSeconds"] = max(1, round(launch.life_s))
    return Job.from_dict({"metadata": _metadata(order).to_dict(), "spec": spec})


def amounts_of(launch: Launch) -> dict[str, str]:
    """The offer as amounts of a container."""
    offers = launch.offers
    amounts = {"cpu": f"{offers.cpus:g}"}
    if offers.memory:
        amounts["memory"] = str(offers.memory)
    if offers.gpus:
        kind = "amd.com/gpu" if offers.spoken_backend == "vulkan" else "nvidia.com/gpu"
        amounts[kind] = str(offers.gpus)
    return amounts


def read_jobs(jobs: list[Any]) -> Iterator[Machine]:
    """The Jobs that are not over."""
    for job in jobs:
        status, labels = job.status, job.metadata.labels or {}
        if status is not None and (status.succeeded or status.failed):
            continue
        said = "runs" if status is not None and status.active else "waits"
        yield Machine(labels.get(LAUNCH, ""), job.metadata.name, said)

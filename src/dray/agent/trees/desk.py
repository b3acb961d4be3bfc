"""Between the agent and its trees: which attempts wait for one, what is said when it is there, what goes then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from dray.agent.decide.effects import Effect, Launch, Lay
from dray.agent.decide.preparing import lay_of, tree_meta, waits_for_tree
from dray.agent.decide.prewarming import Cool, Prewarming, Warm
from dray.agent.runners.blobs import Blobs
from dray.agent.tasks.accounts import Accounts
from dray.agent.tasks.aside import do_aside
from dray.agent.trees.containers import contain, refuse
from dray.agent.trees.faults import TreeFault
from dray.agent.trees.trees import Told, TreeAsk, Trees
from dray.core.model.specs.asks import CONTAINER, image_of
from dray.wire.messages.hub import PrewarmHint


class TreeWays(NamedTuple):
    """How the agent goes on: `laid` tells its machine, `queue` starts what was kept, `refuse` gives that back."""

    laid: Callable[[str, str, bool], None]
    queue: Callable[[dict[str, Any]], None]
    refuse: Callable[[dict[str, Any]], None]


class TreeDesk:
    """One agent's."""

    def __init__(self, accounts: Accounts, ways: TreeWays, prewarming: Prewarming) -> None:
        self._accounts, self._ways, self._prewarming = accounts, ways, prewarming
        self._trees: Trees | None = None
        # Those that take another's place, and are handed over when their trees are there.
        self._behind: dict[str, dict[str, Any]] = {}
        self._removals: set[asyncio.Future[None]] = set()

    async def open(self, base: Path, blobs: Blobs, most_bytes: int) -> None:
        """Find what earlier agents have left."""
        trees = Trees(base, blobs, most_bytes, Told(self._laid, self._warmed, self._changed))
        await do_aside(trees.open, self._accounts.are_foreign)
        self._trees = trees

    def close(self) -> None:
        if self._trees is not None:
            self._trees.close()

    def places(self, launch: Launch) -> tuple[str, str]:
        """Where the tree of an attempt and its environment will be; empty where it asks for none."""
        spec, account = launch.spec, self._accounts.of(launch.spec.user_id)
        if self._trees is None or account is None:
            return "", ""
        built = self._trees.environments.place(spec.environment, account) if spec.environment else ""
        return self._trees.path(launch.uid) if spec.snapshot_id else "", built

    def keeps(self, launch: Launch, task: dict[str, Any]) -> bool:
        """Lay out what an attempt asks for. Whether its task is kept here until then."""
        if not waits_for_tree(launch.spec):
            return False
        if launch.behind:
            self._behind[launch.uid] = task
        self._contain(launch, task)
        self.lay(lay_of(launch.uid, tree_meta(launch.spec)))
        return bool(launch.behind)

    def _contain(self, launch: Launch, task: dict[str, Any]) -> None:
        """A task that names an image starts in a container; where it cannot, laying its tree out says so."""
        account, image = self._accounts.of(launch.spec.user_id), image_of(launch.spec.environment)
        containers = None if self._trees is None else self._trees.environments.containers
        if not launch.spec.environment.startswith(CONTAINER):
            return
        if not image or account is None or containers is None or containers.tool is None:
            task.update(refuse(task, "no container can be made here"))
            return
        try:
            task.update(contain(containers.tool, image, task, account))
        except ValueError as fault:
            task.update(refuse(task, str(fault)))
        else:
            containers.note(launch.uid, account)

    def lay(self, lay: Lay) -> None:
        """Begin to lay a tree out."""
        account = self._accounts.of(lay.user)
        self._prewarm(self._prewarming.began(lay.uid, lay.environment))
        if self._trees is None or account is None:
            fault = TreeFault("this worker cannot lay snapshots out: its log says why", ours=True)
            asyncio.get_running_loop().call_soon(self._laid, lay.uid, fault)
        else:
            self._trees.begin(TreeAsk(lay.uid, lay.snapshot_id, lay.sha, account, lay.environment))

    def hinted(self, hint: PrewarmHint, now_ms: int) -> list[Effect]:
        """A task may soon need something here."""
        self._prewarm(self._prewarming.hinted(hint))
        return []

    def _warmed(self, step: Warm) -> None:
        self._prewarm(self._prewarming.warmed(step))

    def _changed(self, have: tuple[str, ...]) -> None:
        self._prewarming.have = have

    def _prewarm(self, steps: list[Warm | Cool]) -> None:
        for step in steps:
            if isinstance(step, Warm):
                account = self._accounts.of(step.user)
                if self._trees is None or account is None:
                    asyncio.get_running_loop().call_soon(self._warmed, step)
                else:
                    self._trees.warm(step, account)
            elif self._trees is not None:
                self._trees.cool()

    def _laid(self, uid: str, fault: TreeFault | None) -> None:
        self._prewarm(self._prewarming.ended(uid))
        task = self._behind.pop(uid, None)
        if task is None:
            self._ways.laid(uid, str(fault or ""), fault is not None and fault.ours)
        elif fault is None:
            self._ways.queue(task)
        else:
            self._ways.refuse({"ev": "refused", "uid": uid, "error": str(fault), "elsewhere": fault.ours})

    def clear_away(self, event: dict[str, Any]) -> None:
        """What ended attempts ran in goes; after a start, what nobody runs in."""
        if self._trees is None:
            return
        if event.get("ev") == "state":
            live = [item for item in event["attempts"] if item["phase"] != "exited"]
            self._trees.keep_only({item["uid"] for item in live})
            self._remove_containers({item["uid"] for item in live})
            for item in live:
                tree = (item.get("meta") or {}).get("tree") or {}
                if (account := self._accounts.of(tree.get("user", ""))) is not None:
                    self._trees.use(item["uid"], tree.get("environment", ""), account)
        for item in event["items"] if event.get("ev") == "exited" else ():
            self._trees.drop(item["uid"])
            self._prewarm(self._prewarming.ended(item["uid"]))
            self._remove_containers(gone=item["uid"])

    def _remove_containers(self, live: Collection[str] = (), gone: str = "") -> None:
        """What its supervisor could not take away any more goes by our hand."""
        assert self._trees is not None
        containers = self._trees.environments.containers
        for uid in [gone] if gone else containers.left(live):
            if containers.has(uid):
                removal = asyncio.ensure_future(do_aside(containers.remove, uid))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)

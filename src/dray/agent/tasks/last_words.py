"""The last words of failed attempts: they often say why, and are gone once the hub has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dray.agent.decide.attempts import Running
from dray.agent.supervisor.records.owned_files import Place
from dray.agent.tasks.listeners import find_taken
from dray.agent.tasks.shipping import read_last
from dray.core.model.verdicts import LAST_CHARS

Testify = Callable[[Sequence[int], float, str], Sequence[str]]


def quote_failed(
    event: dict[str, Any], attempts: str, running: Mapping[str, Running], testify: Testify
) -> None:
    """Add it to what the supervisor tells. What the driver of their cards says comes last, since it cannot have been
    survived.
    """
    for item in event.get("items" if event.get("ev") == "exited" else "attempts") or ():
        if item.get("state") == "failed":
            said = read_last(Place(f"{attempts}/{item['uid']}"), LAST_CHARS)
            attempt = running.get(item["uid"])
            if attempt is not None and attempt.devices:
                said = "\n".join([said, *testify(attempt.devices, attempt.started_at, said)])
            item["last"] = said
            if attempt is not None and not attempt.stopping and (port := find_taken(attempt.ports)):
                item["exit_class"] = "lost"
                item["error"] = f"another program has taken its port {port} ({item.get('error')})"

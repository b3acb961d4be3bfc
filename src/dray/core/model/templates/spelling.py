"""The keys of a template's spec: those of a job file that need no clock and no shell to be read."""

from __future__ import annotations

from dray.core.model.specs import asks as shared
from dray.core.model.specs.asks import Reader, listed, read_queue_timeout, read_time

READERS: dict[str, Reader] = {
    **shared.READERS,
    "time": read_time,
    "queue_timeout": read_queue_timeout,
    "after": listed("after"),
}
FIELD_OF = {**shared.FIELD_OF, "time": "max_runtime_s", "queue_timeout": "scheduling_timeout_s"}

"""Small documents for tests, complete enough to be accepted; whatever a test cares about it names itself."""

from __future__ import annotations

from typing import Any


def make_spec(*command: str, **fields: Any) -> dict[str, Any]:
    """A job that runs `command` (default: `true`) on one core."""
    return {"command": list(command or ("true",)), "cpu_milli": 1000, **fields}


def make_capability(
    cpus: float = 4,
    memory_gb: float = 16,
    gpus: int = 0,
    gpu_type: str = "A100",
    vram_gb: float = 80,
    backend: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """What a worker offers; `vram_gb` is that of one card."""
    cards = {"gpu_count": gpus, "gpu_type": gpu_type, "vram_gb": vram_gb * gpus} if gpus else {}
    backend = backend or ("nvidia" if gpus else "cpu")
    machine = {"cpu_count": cpus, "memory_gb": memory_gb, "hostname": "mock"}
    return {"gpu_backend": backend, **machine, **cards, **fields}


def make_slots(
    batch: int = 1, service: int = 0, batch_in_use: int = 0, service_in_use: int = 0
) -> dict[str, int]:
    """How many tasks a worker runs at once."""
    return {
        "batch_total": batch,
        "batch_in_use": batch_in_use,
        "service_total": service,
        "service_in_use": service_in_use,
    }

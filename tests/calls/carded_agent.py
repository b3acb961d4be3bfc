"""An agent that has a card in name: this machine may have none, and everything else about it is real."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from dray.agent import app
from dray.agent.detect import Detected, detect
from dray.core.model.capability import Device, GpuInfo


def detect_card(*given: Any) -> Detected:
    found = detect(*given)
    capability = msgspec.structs.replace(
        found.capability,
        gpu_backend="nvidia",
        gpu_count=1,
        gpu_type="A100",
        vram_gb=80.0,
        cpu_count=4,
        gpu_info=GpuInfo(gpu_type="NVIDIA A100-SXM4-80GB", count=1),
    )
    card = Device(index=0, uuid="GPU-0", model="A100", vram_bytes=80 * 10**9, healthy=True)
    return msgspec.structs.replace(found, capability=capability, devices=[card])


if __name__ == "__main__":
    from dray.cli.main import main

    vars(app)["detect"] = detect_card  # the one thing that is not real here
    sys.exit(main(["worker", "start", *sys.argv[1:]]))

"""What a drawn world is made of: specs, offers, policies, terms of workloads."""

from __future__ import annotations

from typing import Any

from dray.core.model.policies.policy import (
    Budget,
    Cap,
    FairShare,
    Pace,
    Pacing,
    PlacementPolicy,
    Policy,
    PreemptionPolicy,
    Queue,
    Quota,
)
from dray.core.model.records.workload import Budget as Purse
from dray.core.model.records.workload import Terms

SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"cpu_milli": 3000, "retries": 1},
    {"max_runtime_s": 10, "job_tier": "training"},
    {"gpu_count": 1, "losses": 0},
    {"gpu_count": 2, "min_vram_gb": 50},
    {"gpu_milli": 400, "retries": 2},
    {"memory_bytes": 6 * 10**9, "scheduling_timeout_s": 60},
    {"array": {"last": 5}, "retries": 1},
    {"array": {"last": 6, "limit": 2}, "losses": 1},
    {"array": {"last": 1, "open": True}, "cpu_milli": 1000},
    {"type": "service", "lost_after_s": 50},
    {"at_most_once": True, "require": ["zone=a"]},
    {"gpu_milli": 300, "array": {"last": 4, "limit": 3}, "scheduling_timeout_s": 200},
    {"command": [], "function": b"f", "array": {"last": 30}, "retries": 1},
    {"command": [], "function": b"g", "array": {"first": 0, "last": 4, "open": True, "limit": 2}},
    {"command": [], "function": b"h", "array": {"last": 9}, "cpu_milli": 1000, "losses": 0},
    {"command": [], "function": b"i", "at_most_once": True},
)
OFFERS: tuple[dict[str, Any], ...] = (
    {"cpus": 4, "memory_gb": 8, "batch": 3},
    {
        "cpus": 8,
        "memory_gb": 16,
        "batch": 4,
        "service": 1,
        "gpus": 2,
        "vram_gb": 80,
        "labels": {"zone": "a", "provider": "x"},
    },
    {"cpus": 2, "memory_gb": 4, "batch": 2, "gpus": 3, "vram_gb": 60, "base": True},
    {
        "cpus": 0,
        "memory_gb": 0,
        "batch": 2,
        "service": 2,
        "base": True,
        "labels": {"zone": "a", "provider": "x"},
    },
)
POLICIES = (
    Policy(),
    Policy(queues={"default": Queue(order="priority", ageing_s=60)}, quotas=(Quota(user="*", gpus=2),)),
    Policy(queues={"default": Queue(order="fair_share")}, fair_share=FairShare(half_life_s=100)),
    Policy(
        queues={"default": Queue(order="sjf")},
        pacing=Pacing(starts=(Pace(user="*", per_minute=30, burst=2),)),
    ),
    Policy(
        queues={"default": Queue(order="srsf"), "night": Queue(order="edf", weight=3)},
        pacing=Pacing(running=(Cap(label="team", most=2),)),
        quotas=(Quota(queue="night", gpu_hours=Budget(soft=0.01, hard=0.02, per_s=300)),),
    ),
    Policy(
        placement=PlacementPolicy(strategy="spread"),
        preemption=PreemptionPolicy(strategy="none", min_run_s=0, moves=5),
    ),
    Policy(
        queues={"default": Queue(order="srsf"), "night": Queue(order="priority", ageing_s=0)},
        preemption=PreemptionPolicy(min_run_s=0, moves=3),
        quotas=(Quota(user="*", gpus=3),),
    ),
    Policy(placement=PlacementPolicy(strategy="auto")),
)
CAMPAIGNS = (
    Terms(),
    Terms(width=2),
    Terms(budget=Purse(gpu_hours=0.002, when_spent="stop"), failures=0.5),
    Terms(budget=Purse(gpu_hours=0.001), queue="night"),
    Terms(budget=Purse(gpu_hours=0.001, money=0.001, when_spent="tell"), width=1),
)

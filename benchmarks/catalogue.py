"""Which benchmarks there are, in the order of the table. Modules are loaded when they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.figures import Figure

Measure = Callable[[bool], dict[str, Figure]]

CATALOGUE = (
    "command_arrays",
    "command_batches",
    "command_latency",
    "exec_latency",
    "service_access",
    "service_start",
    "service_checks",
    "durable_submits",
    "large_array",
    "hub_memory",
    "hub_restart",
    "database_commits",
    "database_submits",
    "database_starts",
    "redis_mirror",
    "hub_takeovers",
    "gateway_fleet",
    "idle_workers",
    "worker_reconnect",
    "start_times",
    "heartbeat_latency",
    "loop_steps",
    "bulk_changes",
    "top_refresh",
    "cluster_views",
    "dashboard",
    "sampling",
    "job_lists",
    "grpc_calls",
    "busy_workers",
    "core_passes",
    "core_curves",
    "batch_placement",
    "many_users",
    "campaigns",
    "policy_stack",
    "explain",
    "snapshots",
    "prewarming",
    "function_calls",
    "function_values",
    "function_sizes",
)


def load_measure(name: str) -> Measure:
    """The `measure(quick)` of one benchmark."""
    measure: Measure = importlib.import_module(f"benchmarks.{name}").measure
    return measure

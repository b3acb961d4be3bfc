"""What the hub counts: in the text that Prometheus reads and in the snapshot that workers get."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dray.hub.answers.metrics import Gauges, Metrics


def parse(metrics):
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_everything_is_in_the_text():
    now = Gauges(
        queue_depth={"default": 3, 'od"d\n': 1}, workers={"ready": 2, "offline": 1}, sessions=4, log_lag=7
    )
    metrics = Metrics(lambda: now)
    metrics.observe_turn(0.003)
    metrics.observe_plan(0.0001)
    metrics.observe_commit(0.4)
    metrics.observe_start_wait(42.0)
    metrics.count_outcome("succeeded")
    metrics.count_outcome("succeeded")
    metrics.count_outcome("lost")
    metrics.count_request("submit_job", 201)
    found = parse(metrics)
    assert found["dray_queue_depth", (("queue", "default"),)] == 3
    assert found["dray_queue_depth", (("queue", 'od"d\n'),)] == 1
    assert found["dray_workers", (("state", "ready"),)] == 2
    assert found["dray_sessions", ()] == 4
    assert found["dray_log_lag", ()] == 7
    assert found["dray_turn_seconds_count", ()] == 1
    assert found["dray_turn_seconds_bucket", (("le", "0.002"),)] == 0
    assert found["dray_turn_seconds_bucket", (("le", "0.005"),)] == 1
    assert found["dray_plan_seconds_count", ()] == 1
    assert found["dray_commit_seconds_sum", ()] == 0.4
    assert found["dray_start_wait_seconds_sum", ()] == 42
    assert found["dray_attempts_total", (("phase", "succeeded"),)] == 2
    assert found["dray_http_requests_total", (("route", "submit_job"), ("status", "201"))] == 1


def test_the_snapshot_holds_plain_numbers_by_name():
    metrics = Metrics(lambda: Gauges(queue_depth={"q": 1}, sessions=2))
    metrics.count_outcome("failed")
    metrics.observe_commit(0.25)
    found = metrics.snapshot()
    assert found['dray_queue_depth{queue="q"}'] == 1.0
    assert found["dray_sessions"] == 2.0
    assert found['dray_attempts_total{phase="failed"}'] == 1.0
    assert (found["dray_commit_seconds_count"], found["dray_commit_seconds_sum"]) == (1.0, 0.25)
    assert all(type(value) is float for value in found.values())
    assert not [name for name in found if "_bucket" in name or "_created" in name]


def test_gauges_are_read_at_each_scrape():
    depth = {"q": 1}
    metrics = Metrics(lambda: Gauges(queue_depth=depth))
    assert metrics.snapshot()['dray_queue_depth{queue="q"}'] == 1
    depth["q"] = 5
    assert metrics.snapshot()['dray_queue_depth{queue="q"}'] == 5


def test_two_hubs_in_one_process_do_not_share():
    one, other = Metrics(Gauges), Metrics(Gauges)
    one.count_outcome("failed")
    assert 'dray_attempts_total{phase="failed"}' not in other.snapshot()

"""A worker that knows the base protocol alone runs services: `healthy` means ready, three times not means restart."""

from __future__ import annotations

from typing import Any

SITES = ("home", "postgres")


def _endpoints(lab: Any, job_id: str) -> list[str]:
    status, answer = lab.hub.ask("GET", f"/api/v1/services/{job_id}/endpoints")
    assert status == 200, answer
    return [one["id"] for one in answer["endpoints"]]


def test_health_decides_who_is_asked_and_who_is_started_again(lab: Any) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker, type="service", health_check={"readiness": "/ready"})["spec"]["id"]
    worker.accept(job_id)
    assert _endpoints(lab, job_id) == [], "nobody has said yet that it is ready"

    def say(healthy: bool) -> None:
        worker.send("service_health", {"task_id": job_id, "healthy": healthy, "message": "looked"})
        worker.expect("ack")

    say(healthy=True)
    assert _endpoints(lab, job_id) == [job_id]
    say(healthy=False)
    assert _endpoints(lab, job_id) == []
    say(healthy=False)
    say(healthy=False)
    assert worker.expect("job_cancel")["reason"] == "unhealthy"
    worker.finish(job_id, "killed", 143)
    status, shown = lab.hub.ask("GET", f"/api/v1/services/{job_id}")
    assert status == 200, shown
    assert shown["replica_list"][0]["last_error"] == "restarted: looked"
    worker.ready()
    assert worker.expect("job_assign", 60)["spec"]["id"] == job_id, "after its rest it is given out again"
    lab.cancel(job_id)

"""A call that fits on no machine does not wait for ever: it ends as unschedulable, and says why meanwhile."""

from __future__ import annotations

import dray


def impossible() -> None:
    """Never runs."""


def main() -> None:
    with dray.connect() as hub:
        job = hub.submit(impossible, resources={"cpu": 1000}, scheduling_timeout_seconds=2)
        print("waits:", job.why()["summary"])
        status = hub.wait(job)
        assert status.state == dray.JobState.UNSCHEDULABLE
        assert status["state"] == status.state
        print("ended:", status.state.value)
        try:
            job.result()
        except dray.CallFailed as failure:
            print("result() raises:", failure)


if __name__ == "__main__":
    main()

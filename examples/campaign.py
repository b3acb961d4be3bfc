"""A campaign: calls and commands under one name, two at a time, paused and gone on with, and its end."""

import dray


def loss(rate: float) -> float:
    return round((rate - 0.3) ** 2, 3)


with dray.connect() as hub:
    with hub.workload("campaign-example", width=2, budget={"gpu_hours": 10}) as campaign:
        losses = list(campaign.map(loss, [0.1, 0.2, 0.3, 0.4], progress=False))
        print("best loss:", min(losses))
        campaign.pause()
        job = campaign.submit(["true"])
        print("while it is paused:", job.why()["summary"])
        campaign.start()
    ended = campaign.wait(60)
    print(f"{ended['state']}: {ended['tasks']['succeeded']} tasks, {ended['health']['verdict']}")
    campaign.archive()

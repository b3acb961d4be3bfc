"""A cluster that has something to show: made-up machines of two kinds, and real jobs of three people on them.

For pictures, and for tests that look at pages full of things. Jobs are real processes that sleep, print and fail.
"""

from __future__ import annotations

from typing import Any, Self

from tests.e2e.cluster import CALM, DRAY, Cluster, wait_for

H100 = "gpus=8,type=H100,vram=80G,cpus=64,memory=512G"
A100 = "gpus=4,type=A100,vram=80G,cpus=64,memory=256G"
PEOPLE = ("ada", "bob", "cleo")
STAY = ("sh", "-c", "for n in 1 2 3 4 5; do echo epoch $n: loss 0.$((9 - n)); sleep 0.1; done; sleep 100000")
FAILS = ("sh", "-c", "echo loading data; echo 'RuntimeError: CUDA out of memory' >&2; exit 3")


class Stage:
    """Up while it is entered."""

    def __init__(self) -> None:
        self.cluster = Cluster(CALM)
        self.tokens: dict[str, str] = {}
        self.waits = self.failed = self.array = self.runs = ""

    @property
    def url(self) -> str:
        return self.cluster.url

    def code(self) -> str:
        answer = self.cluster.call("POST", "/session/code")
        assert answer.status == 201, answer
        return str(answer.json["code"])

    def __enter__(self) -> Self:
        try:
            self._fill()
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def _fill(self) -> None:
        cluster = self.cluster
        cluster.start_hub()
        cluster.start_agent("lab-1", 2, "", "--service-slots", "4")
        for kind, offer, number in (("h100", H100, 3), ("a100", A100, 3)):
            words = [
                *DRAY,
                "worker",
                "start",
                "--home",
                str(cluster.home),
                "--fake",
                offer,
                "--count",
                str(number),
            ]
            cluster.spawn(words, cluster.folder / f"{kind}.log")
        for name in [f"fake-{kind}-{number}" for kind in ("h100", "a100") for number in (1, 2, 3)]:
            cluster.wait_worker(name)
        for user in PEOPLE:
            asked = {"user": user, "scopes": ["submit"], "shared_account": True}
            self.tokens[user] = cluster.call("POST", "/tokens", asked).json["token"]
        running = [
            self._submit("ada", *STAY, name="llama-sft", gpu_count=8, gpu_type="H100", max_runtime_s=7200),
            self._submit(
                "ada", *STAY, name="sweep-7", gpu_count=1, gpu_type="H100", array={"indices": "0-5"}
            ),
            self._submit("bob", *STAY, name="notebook", gpu_count=2, gpu_type="A100"),
            self._submit("cleo", *STAY, name="eval-suite", gpu_count=4, gpu_type="A100", max_runtime_s=3600),
        ]
        self.runs = running[0]
        for job in running:
            cluster.wait_state(job, "running")
        self.failed = self._submit("bob", *FAILS, name="train-resnet")
        code = ("sh", "-c", "echo shard $DRAY_ARRAY_INDEX; test $((DRAY_ARRAY_INDEX % 20)) != 7")
        self.array = self._submit("cleo", *code, name="tokenise", array={"indices": "0-59"})
        for _ in range(3):
            self._submit("ada", "true", name="smoke-test")
        cluster.wait_state(self.failed)
        cluster.wait_state(self.array)
        self.waits = self._submit("ada", *STAY, name="train-42", gpu_count=8, gpu_type="H100", node_count=2)
        self._submit("bob", *STAY, name="too-wide", gpu_count=16)
        held = self._submit("cleo", "true", name="nightly-report", hold=True)
        assert held
        self._serve()
        cluster.call("POST", "/workers/fake-a100-3/drain", {"reason": "new fan"})
        wait_for(lambda: cluster.job(self.waits)["reason"], "the waiting job has a reason")

    def _serve(self) -> None:
        words = ["sh", "-c", "exec python3 -m http.server --bind 127.0.0.1 $DRAY_PORT"]
        spec = {"name": "docs", "type": "service", "command": words, "ports": ["http"], "replicas": 2}
        answer = self.cluster.call("POST", "/jobs", spec, self.tokens["cleo"])
        assert answer.status == 201, answer

    def _submit(self, user: str, *command: str, **fields: Any) -> str:
        return self.cluster.submit(*command, token=self.tokens[user], **fields)

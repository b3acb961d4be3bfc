"""Templates that come with dray, started for real where their programs are there."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from operator import neg
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.e2e.cluster import Cluster, wait_for
from tests.programs import path_with


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A hub and an agent that takes services too."""
    cluster = Cluster()
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "4")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def folder(site: Cluster) -> Path:
    made = site.folder / "templates"
    made.mkdir(exist_ok=True)
    return made


@pytest.fixture
def services(site: Cluster) -> Iterator[list[str]]:
    """Ids of jobs that are cancelled at the end."""
    started: list[str] = []
    yield started
    for job in started:
        site.dray("cancel", job)


def start(site: Cluster, services: list[str], *words: str) -> str:
    done = site.dray("submit", "--template", *words)
    assert done.code == 0, done.err
    services.append(done.out.strip())
    return services[-1]


def find_url(site: Cluster, job: str, pattern: str) -> str:
    """What a service printed about where it is."""

    def look() -> str:
        found = re.search(pattern, site.dray("logs", job).out)
        return found.group() if found else ""

    return wait_for(look, f"{pattern} in the output of {job}")


def fetch(url: str, body: object = None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=60)
    try:
        sent = None if body is None else json.dumps(body)
        place = f"{parts.path}?{parts.query}"
        connection.request("GET" if sent is None else "POST", place if parts.query else parts.path, sent)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_they_are_listed_and_each_makes_a_job(site: Cluster) -> None:
    listed = site.dray("template", "ls", "-o", "json").json["templates"]
    names = [one["name"] for one in listed if one["built_in"]]
    assert names == ["http-model", "jupyter", "sweep", "tensorboard", "torchrun", "vllm"]
    given = {
        "http-model": "model=m.pkl",
        "sweep": "script=s.py",
        "tensorboard": "logdir=l",
        "vllm": "model=m",
    }
    for name in names:
        words = ["-p", given[name]] if name in given else []
        words += (
            ["-p", "grid=a=1"] if name == "sweep" else ["-p", "script=t.py"] if name == "torchrun" else []
        )
        done = site.dray("template", "render", name, *words, "-o", "json")
        assert done.code == 0, done.err
        assert done.json["template"] == f"{name}@0"


def test_a_stored_one_shadows_a_built_in_one_until_it_is_removed(site: Cluster, folder: Path) -> None:
    mine = folder / "sweep.yaml"
    mine.write_text("name: sweep\nspec: {command: echo mine}\n")
    assert site.dray("template", "rm", "sweep").code == 1
    assert site.dray("template", "add", str(mine)).out == "sweep@1\n"
    assert site.dray("run", "--template", "sweep").out == "mine\n"
    assert site.dray("template", "render", "sweep@0", "-p", "script=s.py", "-p", "grid=a=1").code == 0
    assert "comes with dray holds again" in site.dray("template", "rm", "sweep").out
    assert site.dray("template", "show", "sweep", "-o", "json").json["built_in"] is True


def test_sweep_runs_every_point_of_the_grid_once(site: Cluster, folder: Path) -> None:
    script = folder / "point.py"
    script.write_text("import sys\nprint('point', *sys.argv[1:])\nsys.exit('--b=z' in sys.argv)\n")
    words = ("-p", f"script={script}", "-p", "memory=100m", "-p", "cpus=0.5")
    job = site.dray("submit", "--template", "sweep", *words, "-p", "grid=a=1,2,3 b=x,y", "-p", "tasks=4")
    assert job.code == 0, job.err
    assert site.dray("wait", job.out.strip()).code == 0
    said = [site.dray("logs", f"{job.out.strip()}/{task}").out for task in range(4)]
    points = sorted(line for text in said for line in text.splitlines() if line.startswith("point "))
    assert points == [f"point --a={a} --b={b}" for a in (1, 2, 3) for b in "xy"]
    for number, (grid, problem) in enumerate((("b=x,z", "point --b=z"), ("ab", "is no grid"))):
        name = ("--id", f"bad-{number}")
        bad = site.dray("run", "--template", "sweep", *words, "-p", f"grid={grid}", "-p", "tasks=1", *name)
        logs = site.dray("logs", f"bad-{number}/0")
        assert bad.code == 1
        assert problem in logs.out


def test_http_model_answers_predictions(site: Cluster, folder: Path, services: list[str]) -> None:
    model = folder / "model.pkl"
    model.write_bytes(pickle.dumps(neg))
    job = start(site, services, "http-model", "-p", f"model={model}", "-p", "memory=200m")
    url = find_url(site, job, r"http://127\.0\.0\.1:\d+/predict")
    assert fetch(url, {"inputs": [1, 2.5]}) == (200, b'{"outputs": [-1, -2.5]}')
    assert fetch(url.replace("predict", "healthz"))[0] == 200
    assert fetch(url, {"inputs": ["x"]})[0] == 400
    assert site.dray("show", job, "-o", "json").json["spec"]["type"] == "service"
    gone = site.dray(
        "run", "--template", "http-model", "-p", f"model={folder / 'no.pkl'}", "-p", "memory=200m"
    )
    assert gone.code == 1
    assert "cannot be read as a model" in gone.out


def test_tensorboard_serves_its_page(site: Cluster, folder: Path, services: list[str]) -> None:
    path = path_with("tensorboard", "tensorboard")
    given = ("-p", f"logdir={folder}", "-p", "memory=500m", "--env", f"PATH={path}")
    job = start(site, services, "tensorboard", *given)
    url = find_url(site, job, r"http://(localhost|127\.0\.0\.1):\d+/")
    status, page = fetch(url)
    assert status == 200
    assert b"TensorBoard" in page


def test_jupyter_opens_to_whoever_has_the_token_of_its_output(
    site: Cluster, folder: Path, services: list[str]
) -> None:
    path = path_with("jupyter-lab", "jupyterlab")
    given = ("-p", f"folder={folder}", "-p", "memory=500m", "--env", f"PATH={path}")
    job = start(site, services, "jupyter", *given)
    url = find_url(site, job, r"http://127\.0\.0\.1:[1-9]\d*/lab\?token=[0-9a-f]+")
    assert fetch(url.replace("/lab", "/api/kernels"))[1].strip() == b"[]"
    assert fetch(url.split("lab?")[0] + "api/kernels")[0] == 403


@pytest.mark.parametrize(
    ("template", "given", "said"),
    [
        ("tensorboard", "logdir=x", "pip install tensorboard"),
        ("jupyter", "folder=x", "pip install jupyterlab"),
        ("torchrun", "script=x.py", "pip install torch"),
    ],
)
def test_what_is_missing_is_told(site: Cluster, template: str, given: str, said: str) -> None:
    small = ["-p", "memory=100m", "--env", "PATH=/usr/bin:/bin"]
    small += ["-p", "gpus_per_node=0", "-p", "cpus=1"] if template == "torchrun" else []
    done = site.dray("run", "--template", template, "-p", given, *small)
    assert done.code == 127
    assert said in done.out


def test_vllm_says_what_it_needs_before_it_starts_and_on_the_worker(site: Cluster) -> None:
    waits = site.dray("plan", "--template", "vllm", "-p", "model=m", "-o", "json").json
    assert waits["starts_now"] is False
    # The template's own check, on a machine that has nothing of it.
    rendered = site.dray("template", "render", "vllm", "-p", "model=m", "-o", "json").json["spec"]["command"]
    done = site.dray("run", "--env", "PATH=/usr/bin:/bin", "--", *rendered)
    assert done.code == 127
    assert "pip install vllm" in done.out
    assert "no NVIDIA driver" in done.out
    assert "1 NVIDIA cards are needed, 0 are seen" in done.out

"""The command line of services: by templates, and why one is not ready, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.cluster import CALM, Cluster, wait_for

import dray
from dray.errors import InvalidSpec


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        yield cluster
    finally:
        cluster.close()


def test_templates_make_services_too(site: Cluster) -> None:
    text = "name: echo\nkind: service\nparams:\n  words: {type: string}\nspec:\n  command: [sleep, '1000']\n  cpus: 0\n"
    (site.folder / "echo.yaml").write_text(text + '  env: {WORDS: "${words}"}\n')
    (site.folder / "once.yaml").write_text("name: once\nspec:\n  command: ['true']\n")
    for name in ("echo", "once"):
        assert site.dray("template", "add", f"{name}.yaml").code == 0
    made = site.dray("serve", "--template", "echo", "-p", "words=one two", "-J", "said", "--replicas", "2")
    assert made.code == 0, made.err
    shown: Any = site.call("GET", f"/jobs/{made.out.strip()}").json["spec"]
    assert (shown["type"], shown["replicas"], shown["env"]["WORDS"]) == ("service", 2, "one two")
    with dray.connect(site.url, token=site.token) as hub:
        by_python = hub.serve(template="echo", params={"words": "x"}, name="heard", hold=True)
        assert by_python.status()["spec"]["template"] == "echo@1"
        with pytest.raises(InvalidSpec, match="words"):
            _ = hub.serve(template="echo", params={"words": "a\0b"})
    (site.folder / "job.yaml").write_text("template: echo\nparams: {words: file}\nname: filed\n")
    assert site.dray("serve", "job.yaml").code == 0
    for words, said in (
        (("--template", "once"), "makes a job"),
        (("--template", "none"), "none"),
        (("--template", "echo"), "words"),
        (("--template", "echo", "-p", "words=$(id)"), "words"),
        (("--template", "echo", "-p", "words=${HOME}"), "words"),
        (("--template", "echo", "-p", "words=a\nb"), "words"),
        (("--template", "echo", "-p", "words=x", "-p", "more=1"), "more"),
    ):
        refused = site.dray("serve", *words)
        assert refused.code != 0, words
        assert said in refused.err, (words, refused.err)


def test_why_tells_of_a_service_by_its_name(site: Cluster) -> None:
    given: dict[str, Any] = {"type": "service", "min_cpu_cores": 0}
    site.submit("sh", "-c", "echo no such model >&2; exit 3", name="loops", **given)
    site.submit("sleep", "1000", name="waits", **{**given, "min_cpu_cores": 1e6})
    site.submit("sleep", "1000", name="deaf", health_check={"tcp": True, "interval_s": 0.2}, **given)
    wait_for(lambda: "no such model" in site.dray("why", "loops").out, "its end is told")
    assert "exited with code 3" in site.dray("why", "loops").out
    assert "cannot ever start" in site.dray("why", "waits").out
    wait_for(lambda: "starting on w1" in site.dray("why", "deaf").out, "that it is not ready is told")
    unknown = site.dray("why", "nobody")
    assert (unknown.code, "there is no job 'nobody'" in unknown.err) == (1, True)
    for name in ("loops", "waits", "deaf"):
        assert site.dray("service", "stop", name, "--grace", "0").code == 0

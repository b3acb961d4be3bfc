"""Packages that a job names are there when it starts: built once, shared, and told of in the resolver's words."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from tests.e2e.cluster import Cluster, is_alive, wait_for


def make_wheel(folder: Path, name: str, version: str, body: str) -> Path:
    """A package that no index has, so that a test needs none."""
    info = f"{name}-{version}.dist-info"
    texts = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-tool = {name}:main\n",
    }
    lines = [f"{path},{_sum(text)},{len(text.encode())}" for path, text in texts.items()]
    texts[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    place = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as wheel:
        for path, text in texts.items():
            wheel.writestr(path, text)
    return place


def _sum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def test_a_project_runs_on_a_worker_that_has_none_of_it(site: Cluster, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "zugtier", "1.0", "def main():\n    print('pulled')\n")
    (tmp_path / "main.py").write_text("import zugtier, sys\nzugtier.main()\nprint(sys.prefix)\n")
    lines = f"zugtier @ {wheel.as_uri()}\n"
    (tmp_path / "requirements.txt").write_text(lines)
    (tmp_path / ".drayignore").write_text("*.whl\n")
    job = "snapshot: .\nenvironment: requirements.txt\ncommand: sh -c 'python main.py; zugtier-tool'\n"
    (tmp_path / "job.yaml").write_text(job)
    first = site.dray("submit", "job.yaml", cwd=tmp_path)
    assert first.code == 0, first.err
    ended = site.wait_state(first.out.strip())
    printed = site.logs(ended["id"]).decode().split()
    assert ended["state"] == "succeeded", (ended, printed)
    assert [printed[0], printed[2]] == ["pulled", "pulled"]
    place = Path(printed[1])
    assert place.parent == site.folder / "w1" / "worker" / "snapshots" / "environments" / "own"
    # The second one finds it there.
    made = place.stat().st_ino
    again = site.dray("submit", "--from", first.out.strip(), cwd=tmp_path)
    assert site.wait_state(again.out.strip())["state"] == "succeeded"
    assert (place.stat().st_ino, len(list(place.parent.glob("[!cs]*")))) == (made, 1)
    # Nothing is installed where nobody asks for it.
    plain = site.wait_state(site.submit("sh", "-c", "command -v zugtier-tool"), "failed")
    assert plain["exit_class"] == "code"


def test_what_the_resolver_says_is_told(site: Cluster, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"no-such @ {(tmp_path / 'no-such.whl').as_uri()}\n")
    made = site.dray("submit", "--environment", "requirements.txt", "--", "true", cwd=tmp_path)
    assert made.code == 0, made.err
    job = site.wait_state(made.out.strip(), "failed")
    assert (job["exit_class"], job["exit_code"]) == ("snapshot", 125)
    assert "cannot be built: uv says:" in job["error"]
    assert "no-such" in job["error"]
    missing = site.dray("submit", "--environment", "nowhere.txt", "--", "true", cwd=tmp_path)
    assert (missing.code != 0, "nowhere.txt cannot be read" in missing.err) == (True, True)
    wrong = site.dray("submit", "--environment", "env-1", "--", "true", cwd=tmp_path)
    assert "is none of this hub's" in site.wait_state(wrong.out.strip(), "failed")["error"]


BUILDER = """import os, time, zipfile
def build_wheel(folder, settings=None, metadata=None):
    open({pids!r}, "a").write(f"{{os.getpid()}}\\n")
    while not os.path.exists({flag!r}):
        time.sleep(0.02)
    name = "stuck-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("stuck.py", "")
        for file, text in {texts!r}.items():
            wheel.writestr(f"stuck-1.dist-info/{{file}}", text)
    return name
"""


def test_a_build_goes_with_its_job_and_outlives_its_agent(site: Cluster, tmp_path: Path) -> None:
    # A package that is built on the worker, and whose builder waits until it is told to go on.
    project, pids, flag = tmp_path / "stuck", tmp_path / "pids", tmp_path / "flag"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
        '[project]\nname = "stuck"\nversion = "1"\n'
    )
    texts = {
        "METADATA": "Metadata-Version: 2.1\nName: stuck\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "stuck.py,,\nstuck-1.dist-info/METADATA,,\nstuck-1.dist-info/WHEEL,,\n",
    }
    (project / "slow.py").write_text(BUILDER.format(pids=str(pids), flag=str(flag), texts=texts))
    (tmp_path / "requirements.txt").write_text(f"stuck @ {project.as_uri()}\n")

    def builders(count: int) -> list[int]:
        def seen() -> list[int] | None:
            found = [int(line) for line in pids.read_text().split()] if pids.exists() else []
            return found if len(found) >= count else None

        return wait_for(seen, f"{count} builds have begun") or []

    submit = (
        "submit",
        "--environment",
        "requirements.txt",
        "--",
        "python",
        "-c",
        "import stuck; print('there')",
    )
    made = site.dray(*submit, cwd=tmp_path).out.strip()
    (first,) = builders(1)
    assert site.dray("cancel", made).code == 0
    assert site.wait_state(made)["state"] == "killed"
    wait_for(lambda: not is_alive(first), "the build is gone")
    environments = site.folder / "w1" / "worker" / "snapshots" / "environments" / "own"
    wait_for(lambda: not list(environments.glob("stage-*")), "so is what it left")
    # One agent dies over it, the next one goes on: the attempt was accepted, and nobody is charged.
    made = site.dray(*submit, cwd=tmp_path).out.strip()
    builders(2)
    wait_for(
        lambda: site.job(made)["attempts"][-1]["phase"] == "accepted" or site.job(made)["phase"], "taken on"
    )
    site.agents["w1"].kill()
    site.start_agent("w1", wait=False)
    builders(3)
    flag.touch()
    job = site.wait_state(made, "succeeded")
    assert (job["attempt_count"], job["losses"], site.logs(made)) == (1, 0, b"there\n")

"""A folder travels with a job: packed, sent, laid out, and the very same bytes again later."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, wait_for

LOOK = "find . -mindepth 1 | LC_ALL=C sort; cat pkg/part.txt; wc -c < data.bin; ./run.sh; cat away"


def make_tree(root: Path) -> None:
    """A small project with something of everything that may travel, and of what stays at home."""
    for folder in ("pkg/deep", "empty", ".git", "pkg/__pycache__", "build", "data"):
        (root / folder).mkdir(parents=True)
    texts = {
        "pkg/part.txt": "one\n", "pkg/deep/ünï.txt": "", "run.sh": "#!/bin/sh\necho ran in ${PWD##*/}\n",
        ".gitignore": "build/\n*.log\ndata/*\n", ".drayignore": "!data/kept\nsecret\n",
        ".git/HEAD": "x", "pkg/__pycache__/m.pyc": "x", "build/out": "x", "a.log": "x", "data/kept": "x",
        "data/lost": "x", "secret": "x",
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).write_text(text)
    (root / "run.sh").chmod(0o755)
    (root / "data.bin").write_bytes(os.urandom(1_500_000))
    (root / "away").symlink_to("pkg/part.txt")


def sent_bytes(words: str) -> str:
    found = re.search(r"sent (\S+) in", words)
    assert found is not None, words
    return found[1]


def test_a_folder_travels_and_runs_again_as_it_was(site: Cluster, tmp_path: Path) -> None:
    make_tree(tmp_path)
    first = site.dray("submit", "--snapshot", ".", "-J", "first", "--", "sh", "-c", LOOK, cwd=tmp_path)
    assert first.code == 0, first.err
    job = site.wait_state(first.out.strip())
    printed = site.logs(job["id"]).decode()
    assert job["state"] == "succeeded", (job, printed)
    wanted = (
        "./.drayignore ./.gitignore ./away ./data ./data.bin ./data/kept ./empty ./pkg ./pkg/deep "
        "./pkg/deep/ünï.txt ./pkg/part.txt ./run.sh"
    )
    assert printed.split("\none\n")[0].split("\n") == wanted.split()
    assert "1500000\nran in " in printed
    assert printed.endswith("one\n"), "the link leads where it did"
    tree = site.folder / "w1" / "worker" / "snapshots" / "trees"
    wait_for(lambda: not any(tree.iterdir()), "what it ran in is cleared away")
    # An edit sends what was edited; what was submitted before runs again as it was.
    (tmp_path / "pkg/part.txt").write_text("two\n")
    with (tmp_path / "data.bin").open("r+b") as file:
        file.seek(700_000)
        file.write(b"edited")
    command = ("sh", "-c", "cat part.txt; echo $DRAY_SNAPSHOT")
    second = site.dray("submit", "--snapshot", ".", "--workdir", "pkg", "--", *command, cwd=tmp_path)
    assert sent_bytes(first.err) == "1.43M"
    assert "K" in sent_bytes(second.err), "not all of it"
    job = site.wait_state(second.out.strip(), "succeeded")
    lines = site.logs(job["id"]).decode().split()
    assert (lines[0], Path(lines[1]).parent) == ("two", tree)
    assert sent_bytes(site.dray("submit", "--snapshot", ".", "--", "true", cwd=tmp_path).err) == "0B"
    again = site.dray("submit", "--from", first.out.strip(), cwd=tmp_path)
    assert "snapshot" not in again.err, "nothing is packed anew"
    job = site.wait_state(again.out.strip(), "succeeded")
    assert site.logs(job["id"]).decode().split("\nran")[0] == printed.split("\nran")[0]
    # A file of jobs says the same.
    (tmp_path / "jobs.yaml").write_text("snapshot: .\ncommand: cat pkg/part.txt\n")
    filed = site.dray("submit", "jobs.yaml", cwd=tmp_path)
    assert filed.code == 0, filed.err
    assert site.logs(site.wait_state(filed.out.strip(), "succeeded")["id"]) == b"two\n"
    site.check()


def test_whoever_writes_to_a_tree_harms_no_other(site: Cluster, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("clean\n")
    # As the account that the agent has: modes bind it, or it is root and has copies.
    dirt = "chmod u+w f.txt; echo dirt > f.txt; cat f.txt"
    made = site.dray("submit", "--snapshot", ".", "--", "sh", "-c", dirt, cwd=tmp_path)
    assert site.logs(site.wait_state(made.out.strip(), "succeeded")["id"]) == b"dirt\n"
    made = site.dray("submit", "--snapshot", ".", "--", "cat", "f.txt", cwd=tmp_path)
    assert site.logs(site.wait_state(made.out.strip(), "succeeded")["id"]) == b"clean\n"


def test_what_cannot_travel_is_named(site: Cluster, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "kept").write_text("x")
    (tmp_path / "sub" / "up").symlink_to("../../x")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff")).write_text("x")
    refused = site.dray("submit", "--snapshot", ".", "--", "true", cwd=tmp_path)
    assert refused.code != 0
    for words in (
        "out",
        "leads out of the tree, to '/etc/passwd'",
        "sub/up",
        "'../../x'",
        r"bad-\udcff",
        "no UTF-8",
    ):
        assert words in refused.err
    assert ".drayignore" in refused.err
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".drayignore").write_text("out\nup\nbad-*\n")
    limited = site.dray("submit", "--snapshot", ".", "--snapshot-limit", "1k", "--", "true", cwd=tmp_path)
    assert limited.code == 0, limited.err
    assert "1 sockets, pipes and devices left out" in limited.err
    (tmp_path / "large").write_bytes(bytes(5000))
    limited = site.dray("submit", "--snapshot", ".", "--snapshot-limit", "1k", "--", "true", cwd=tmp_path)
    assert limited.code != 0
    assert "large" in limited.err
    assert "--snapshot-limit" in limited.err


def test_a_wrong_sha_or_id_fails_the_task_and_says_both(site: Cluster, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("x")
    made = site.dray("submit", "--snapshot", ".", "-o", "json", "--", "cat", "f.txt", cwd=tmp_path)
    spec = site.job(made.json["id"])["spec"]
    tree, sha = spec["snapshot_id"], spec["snapshot_sha"]
    wrong = site.wait_state(
        site.submit("true", snapshot_id=tree, snapshot_sha="0" * 64, workdir=""), "failed"
    )
    assert (wrong["exit_class"], wrong["exit_code"]) == ("snapshot", 125)
    assert sha in wrong["error"]
    assert "0" * 64 in wrong["error"]
    strange = site.wait_state(site.submit("true", snapshot_id="v7", workdir=""), "failed")
    assert "'v7' is none of this hub's" in strange["error"]
    absent = site.call("POST", "/jobs", {"command": ["true"], "snapshot_id": f"snap-{'0' * 64}"})
    assert (absent.status, absent.json["error"]["code"]) == (409, "missing_blobs")
    # What belongs to others is not there: neither to run in nor to read, tree by tree and chunk by chunk.
    body = {"user": "eve", "scopes": ["submit", "read"], "shared_account": True}
    eve = site.call("POST", "/tokens", body).json["token"]
    theirs = {"command": ["true"], "snapshot_id": tree}
    assert site.call("POST", "/jobs", theirs, eve).json["error"]["code"] == "missing_blobs"
    assert site.call("POST", f"/snapshots/{tree}/check", None, eve).status == 409
    assert site.call("GET", f"/blobs/{tree.removeprefix('snap-')}", token=eve).status == 404
    assert site.call("POST", f"/snapshots/{tree}/check").json["missing"] == []


def outcomes(site: Cluster) -> dict[str, float]:
    lines = site.call("GET", "/metrics").body.decode().splitlines()
    found = [line.split() for line in lines if line.startswith("dray_prewarm_hints_total{")]
    return {name.split('"')[1]: float(count) for name, count in found}


def test_what_the_next_task_needs_is_there_before_it_starts(site: Cluster, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "large.bin").write_bytes(b"x" * 3_000_000)
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    files = site.folder / "w1" / "worker" / "snapshots" / "files"
    before = outcomes(site)
    first = site.submit("sh", "-c", wait, min_cpu_cores=2, expected_runtime_s=5)
    site.wait_state(first, "running")
    made = site.dray(
        *("submit", "--snapshot", str(tmp_path / "code"), "-c", "2", "--", "sh", "-c", "wc -c < large.bin")
    )
    assert made.code == 0, made.err
    second = made.out.strip()
    wait_for(
        lambda: any(path.stat().st_size == 3_000_000 for path in files.glob("*/*")),
        "the files of the one that waits have come",
    )
    assert site.job(second)["state"] == "pending"
    gate.touch()
    assert site.logs(site.wait_state(second, "succeeded")["id"]) == b"3000000\n"
    after = outcomes(site)
    assert {name: after[name] - before[name] for name in after} == {
        "sent": 1, "used": 1, "wasted": 0, "lost": 0
    }  # fmt: skip
    assert "of use 1/1 (100 %)" in site.dray("top").out


def test_what_has_arrived_before_the_hub_died_is_not_sent_again(site: Cluster, tmp_path: Path) -> None:
    blobs = site.home / "blobs"
    if not blobs.is_dir():
        pytest.skip("files of this site are in its database: nobody sees them arrive")
    for number in range(6):
        (tmp_path / f"{number}.bin").write_bytes(os.urandom(5_000_000))

    def count() -> int:
        return sum(1 for _ in blobs.glob("[0-9a-f][0-9a-f]/*"))

    before = count()
    command = ("submit", "--snapshot", str(tmp_path), "--", "sh", "-c", "cat *.bin | wc -c")
    process, log = site.begin(*command, name="upload")
    wait_for(lambda: count() > before + 4, "some of it has arrived")
    site.kill_hub()
    site.start_hub()
    assert process.wait(60) == 0, log.read_text()
    job = site.wait_state(log.read_text().split()[-1], "succeeded")
    assert site.logs(job["id"]) == b"30000000\n"
    # Damage to what a worker keeps is seen, and made good.
    files = site.folder / "w1" / "worker" / "snapshots" / "files"
    large = [path for path in files.glob("*/*") if path.stat().st_size == 5_000_000]
    large[0].chmod(0o644)
    large[0].write_bytes(b"damaged")
    large[1].unlink()
    again = site.dray("submit", "--from", job["id"])
    assert site.logs(site.wait_state(again.out.strip(), "succeeded")["id"]) == b"30000000\n"
    site.check()


def test_a_snapshot_is_shown_and_got_back(site: Cluster, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    make_tree(tree)
    made = site.dray("submit", "--snapshot", ".", "--", "true", cwd=tree).out.strip()
    shown = site.dray("snapshot", "show", made, "-o", "json").json
    data = (tree / "data.bin").read_bytes()
    assert shown["files"][0] == {
        "path": "data.bin", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "executable": False
    }  # fmt: skip
    assert (shown["links"], shown["empty_folders"]) == ({"away": "pkg/part.txt"}, ["empty"])
    assert "data.bin" in site.dray("snapshot", "show", shown["id"]).out
    again = site.dray("submit", "--from", made).out.strip()
    listed = {one["id"]: one for one in site.dray("snapshot", "ls", "-o", "json").json["snapshots"]}
    assert (listed[shown["id"]]["jobs"], listed[shown["id"]]["newest"]) == (2, again)
    assert listed[shown["id"]]["sha"] == shown["sha"]
    assert again in site.dray("snapshot", "ls", "--jobs", "1").out
    assert site.dray("snapshot", "get", made, "back", cwd=tmp_path).code == 0
    back = tmp_path / "back"
    assert (back / "data.bin").read_bytes() == data
    assert (os.access(back / "run.sh", os.X_OK), os.readlink(back / "away")) == (True, "pkg/part.txt")
    assert sorted(path.name for path in back.iterdir() if path.name in ("a.log", "secret", ".git")) == []
    refused = site.dray("snapshot", "get", made, "back", cwd=tmp_path)
    assert (refused.code != 0, "is not empty" in refused.err) == (True, True)
    without = site.dray("snapshot", "show", site.submit("true"))
    assert "has no snapshot" in without.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as somebody else")
def test_a_task_of_another_account_reaches_no_more_than_its_own_tree(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    cluster.start_agent("w1", 4, "", "--task-user", "nobody")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f.txt").write_text("clean\n")
    (tmp_path / "tool.sh").write_text("#!/bin/sh\nid -un\n")
    (tmp_path / "tool.sh").chmod(0o755)
    attack = """
        ./tool.sh
        if [ -O sub/f.txt ]; then echo own > sub/f.txt; else
            (echo dirt > sub/f.txt) 2> /dev/null && echo written
            chmod u+w sub/f.txt 2> /dev/null && echo chmodded
        fi
        base=${DRAY_SNAPSHOT%/trees/*}
        for folder in $base $base/files $base/stage $base/trees $base/environments; do
            ls $folder > /dev/null 2>&1 && echo listed $folder
            (echo x > $folder/x) 2> /dev/null && echo made $folder
        done
        rm -f sub/f.txt && echo new > sub/f.txt && cat sub/f.txt
        ln -s /etc/hostname sub/away; rm -rf sub; ln -s /etc sub; mkdir deep; chmod 0 deep
        echo end
    """
    made = cluster.dray("submit", "--snapshot", ".", "--", "sh", "-c", attack, cwd=tmp_path)
    assert made.code == 0, made.err
    job = cluster.wait_state(made.out.strip())
    assert cluster.logs(job["id"]).decode().split() == ["nobody", "new", "end"], job
    again = cluster.dray("submit", "--snapshot", ".", "--", "sh", "-c", "cat sub/f.txt; pwd", cwd=tmp_path)
    text, folder = cluster.logs(cluster.wait_state(again.out.strip(), "succeeded")["id"]).decode().split()
    assert text == "clean"
    trees = Path(folder).parent
    wait_for(lambda: not any(trees.iterdir()), "what they ran in is cleared away, and nothing else")
    assert Path("/etc/passwd").exists()
    shutil.rmtree(trees.parent.parent)

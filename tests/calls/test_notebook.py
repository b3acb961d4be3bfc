"""Notebooks: pictures that are kept up to date and cells that run on the cluster, in a real kernel."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

import dray
from dray.client.display.html import draw_hub, draw_job, draw_map, last_lines
from dray.client.display.live import show

ROOT = Path(__file__).resolve().parents[2]
ATTACK = "<script>alert('x')</script>\"><img src=x onerror=y>&"
LIMIT_S = 60


class Kernel:
    """A kernel as a front end knows it."""

    def __init__(self, cluster, folder):
        env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        env |= {"DRAY_HOME": str(cluster.home), "IPYTHONDIR": str(folder)}
        self.manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=str(folder / "k"),
            connection_file=str(folder / "k.json"),
        )
        self.manager.start_kernel(env=env)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.pages = {}
        self.await_ready()

    def await_ready(self):
        """Wait until it answers and is heard: what it publishes before its front end is connected (again) is lost."""
        self.client.wait_for_ready(timeout=LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while True:
            self.client.kernel_info()
            try:
                self.client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                assert time.monotonic() < deadline
            else:
                return

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def start(self, code):
        self.client.execute(code)

    def take(self, until):
        """Hear messages until one is what is waited for; all output on the way."""
        said = []
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT_S)
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                self.pages[content["transient"]["display_id"]] = content["data"].get("text/html", "")
            if kind in ("stream", "error"):
                said.append(content.get("text") or f"{content['ename']}: {content['evalue']}")
            if kind == "execute_result":
                said.append(content["data"]["text/plain"] + "\n")
            if until(kind, content):
                return "".join(said)

    def run(self, code):
        """Run a cell to its end and give what it printed, its error and its value."""
        self.start(code)
        self.take(lambda kind, _: kind == "execute_input")
        return self.take(lambda kind, content: kind == "status" and content["execution_state"] == "idle")

    def run_well(self, code):
        said = self.run(code)
        assert "Error" not in said, said
        return said

    def await_page(self, pattern):
        if not any(re.search(pattern, page, re.DOTALL) for page in self.pages.values()):
            self.take(
                lambda kind, content: (
                    kind in ("display_data", "update_display_data")
                    and bool(re.search(pattern, content["data"].get("text/html", ""), re.DOTALL))
                )
            )


@pytest.fixture(scope="module")
def kernel(cluster):
    # A short path: it holds unix sockets.
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        made = Kernel(cluster, Path(folder))
        try:
            made.run_well("import dray, time\nhub = dray.connect()\n%load_ext dray")
            yield made
        finally:
            made.stop()


def test_pictures_of_jobs_futures_maps_and_the_hub_follow_what_happens(kernel, tmp_path):
    gate = tmp_path / "gate"
    wait = f"while not __import__('os').path.exists({str(gate)!r}): time.sleep(0.01)"
    kernel.run_well(f"def call(x):\n    import time\n    print('seen', x)\n    {wait}\n    return x")
    kernel.run_well("hub")
    kernel.await_page("<b>dray </b>.*1 worker")
    command = f"['sh', '-c', 'echo \"<b>out</b>\"; while ! test -e {gate}; do sleep 0.01; done']"
    kernel.run_well(f"job = hub.submit({command}, name={ATTACK!r}); job")
    kernel.run_well("future = hub.submit(call, 7); future")
    kernel.run_well("runs = hub.map(call, range(3)); runs")
    # Drawn again while nobody runs a cell.
    kernel.await_page("● running.*&lt;b&gt;out&lt;/b&gt;")
    kernel.await_page("call .*● running.*seen 7")
    kernel.await_page(r"map of call\(\).*0 of 3 calls ended")
    gate.touch()
    kernel.await_page("&lt;script&gt;.*● succeeded")
    kernel.await_page("call .*● succeeded")
    kernel.await_page("3 of 3 calls ended")
    kernel.run_well("hub.submit(['sh', '-c', 'exit 3'])")
    kernel.await_page("● failed.*exited with code 3.*next: ")
    kernel.run_well("wide = hub.submit(['true'], cpus=1000); wide")
    kernel.await_page("● pending.*it waits: .*asks for 1000 cores")
    kernel.run_well("wide.cancel()")
    assert not [
        page for page in kernel.pages.values() if re.search("<(?!/?(div|span|b|table|tr|th|td)[ >])", page)
    ]


def test_a_cell_runs_there_with_what_it_reads_and_its_value_comes_back(kernel):
    kernel.run_well("scale = 10\ndef double(x): return x * 2 * scale")
    said = kernel.run_well(
        "%%dray --to found -c 1 --memory=200m\nprint('on', 'the worker')\nleft = 1\ndouble(2) + left"
    )
    assert said == "on the worker\n"
    kernel.await_page("cell.*● succeeded.*on the worker")
    assert kernel.run_well("print(found, 'left' in globals())") == "41 False\n"
    assert kernel.run_well("%%dray\ndouble(scale)") == "200\n"
    assert "ZeroDivisionError: division by zero" in kernel.run("%%dray\nx = 0\n1 / x")
    assert "bogus: is not a keyword of submit" in kernel.run("%%dray --bogus 3\n1")
    assert "'cpus=3' is no option" in kernel.run("%%dray cpus=3\n1")
    assert "SyntaxError" in kernel.run("%%dray\nx =")


def test_an_interrupt_cancels_the_cell_and_the_kernel_goes_on(kernel, hub, wait_until):
    kernel.start("%%dray\nimport time\nprint('begun')\ntime.sleep(600)")
    kernel.take(lambda kind, content: kind == "stream" and "begun" in content["text"])
    kernel.manager.interrupt_kernel()
    said = kernel.take(lambda kind, content: kind == "status" and content["execution_state"] == "idle")
    (job,) = re.findall(r"^cancelled (\w+)", said, re.MULTILINE)
    assert "KeyboardInterrupt" in said
    wait_until(lambda: hub.status(job).state is dray.JobState.KILLED)
    assert kernel.run_well("print('still here')") == "still here\n"


def test_what_a_kernel_had_begun_goes_on_without_it_and_is_found_again(kernel, hub, tmp_path):
    """A restart first interrupts, which would cancel a cell; one that died in the middle of a cell did not."""
    gate = tmp_path / "gate"
    wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    kernel.run_well(f"def call():\n    import os, time\n    {wait}\n    return 41")
    side = kernel.run_well("print(hub.submit(call).id)").strip()
    kernel.manager.restart_kernel()
    kernel.await_ready()
    kernel.run_well("%load_ext dray")
    kernel.start(f"%%dray\nimport os, time\nprint('job', os.environ['DRAY_JOB_ID'])\n{wait}\n42")
    found: list[str] = []

    def is_begun(kind, content):
        found.extend(re.findall(r"job (\w+)", content["text"]) if kind == "stream" else [])
        return bool(found)

    kernel.take(is_begun)
    kernel.manager.signal_kernel(signal.SIGKILL)
    kernel.manager.restart_kernel(now=True)
    kernel.await_ready()
    for job in (side, found[0]):
        assert hub.status(job).state is dray.JobState.RUNNING
    gate.touch()
    kernel.run_well("import dray\nhub = dray.connect()")
    assert (
        kernel.run_well(f"print(hub.job({side!r}).result(), hub.job({found[0]!r}).result())") == "41 [42]\n"
    )


def test_the_cells_of_the_page_work(kernel):
    text = (ROOT / "docs/howto/notebooks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for place, (kind, body) in enumerate(blocks):
        if kind == "python":
            said = kernel.run_well(body)
            shown = (
                blocks[place + 1][1]
                if blocks[place + 1 : place + 2] and blocks[place + 1][0] == "text"
                else ""
            )
            assert said.startswith(shown), body
    assert kernel.pages


def test_nothing_of_a_document_reaches_the_page_unescaped():
    """Whatever texts a document has: each of them is an attack, and none of the pages has a tag that is not ours."""
    verdict = {"title": ATTACK, "evidence": [ATTACK], "step": ATTACK}
    why = {"summary": ATTACK, "fix": ATTACK, "estimate": {"message": ATTACK}}
    job: dict[str, object] = {
        "id": ATTACK,
        "name": ATTACK,
        "state": ATTACK,
        "worker": ATTACK,
        "user": ATTACK,
        "reason": ATTACK,
    }
    job |= {
        "error": ATTACK,
        "verdict": verdict,
        "progress": {"fraction": 0.5, "step": ATTACK, "note": ATTACK},
    }
    totals = {"workers": {"ready": 1}, "slots": {"in_use": 0, "total": 1}, "gpus": {"held": 0, "total": 0}}
    pages = [
        draw_job(job, why, ATTACK),
        draw_job(job | {"state": "pending"}, why),
        draw_map(ATTACK, ATTACK, 0, 2, False, 1.0, why),
        draw_hub(ATTACK, totals, [job]),
    ]
    for page in pages:
        assert "&lt;script&gt;" in page
        assert not re.search("<(?!/?(div|span|b|table|tr|th|td)[ >])", page)
        assert set(re.findall(r"<\w+ ([^>]*)>", page)) == {
            found
            for found in re.findall(r"<\w+ ([^>]*)>", page)
            if re.fullmatch(r'style="[-\w:;,.#% ]*"', found)
        }


def test_output_is_shown_as_a_page_can_show_it():
    assert last_lines("a\n\x1b[31mred\x1b[0m\n10%\r50%\r100%\r\nlast\x07\n") == ["a", "red", "100%", "last"]
    assert last_lines("") == []
    assert len(last_lines("x\n" * 100)) == 8


def test_outside_of_a_notebook_it_is_one_line_and_nothing_is_loaded(hub, capsys):
    job = hub.job("abc")
    show(job)
    assert capsys.readouterr().out == "Job(id='abc')\n"
    check = "import sys, dray, dray.client.faces.hub; sys.exit('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, timeout=60).returncode == 0

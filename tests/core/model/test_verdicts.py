"""Verdicts: what a failure is called, by how it ended and by the words that programs really print."""

from __future__ import annotations

import pytest

from dray.core.model.records.records import Attempt, Phase
from dray.core.model.verdicts import KINDS, Verdict, judge, judge_attempt

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


def attempt(
    phase: Phase = Phase.FAILED, exit_class: str = "", error: str = "", peak_bytes: int = 0
) -> Attempt:
    made = Attempt(uid="1-1", job_id="job", index=0, no=1, fence=1, worker="w1", shape=0, phase=phase)
    made.exit_class, made.error, made.max_rss_bytes = exit_class, error, peak_bytes
    return made


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", "gpu_memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "gpu_memory"),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.78 GiB total",
            "gpu_memory",
        ),
        ("RuntimeError: CUDA error: out of memory", "gpu_memory"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 17.9 GB)", "gpu_memory"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes", "gpu_memory"),
        (
            "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
            "gpu_memory",
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to",
            "gpu_memory",
        ),
        ("RESOURCE_EXHAUSTED: Failed to allocate request for 4.00GiB (4294967296B) on device", "gpu_memory"),
        ("tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node", "gpu_memory"),
        ("OOM when allocating tensor with shape[4096,4096] and type float on /device:GPU:0", "gpu_memory"),
        (
            "failed to allocate 2.00G (2147483648 bytes): CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "gpu_memory",
        ),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "gpu_memory"),
        ("ggml_cuda: cudaMalloc failed: out of memory", "gpu_memory"),
        ("MemoryError", "host_memory"),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array",
            "host_memory",
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host_memory"),
        ("OSError: [Errno 28] No space left on device", "node"),
        ("RuntimeError: No CUDA GPUs? no CUDA-capable device is detected", "node"),
        ("CUDA driver version is insufficient for CUDA runtime version", "node"),
        ("Failed to initialize NVML: Driver/library version mismatch", "node"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "node"),
        ("ModuleNotFoundError: No module named 'torch'", "environment"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "environment"),
        ("python3: can't open file '/w/train.py': [Errno 2] No such file or directory", "environment"),
        ("./run.sh: line 2: nvcc: command not found", "environment"),
        ("ValueError: batch size must be positive", "code"),
        ("the model ran out of patience", "code"),
    ],
)
def test_what_a_program_says_last_is_understood(line: str, kind: str) -> None:
    found = judge("code", "the command exited with code 1", f"{TRACEBACK}{line}\n", exit_code=1)
    assert found.kind == kind
    assert line in found.evidence[0 if kind != "code" else -1]
    assert "the command exited with code 1" in found.evidence


@pytest.mark.parametrize(
    ("exit_class", "kind"),
    [
        ("oom", "host_memory"),
        ("time_limit", "time_limit"),
        ("cancelled", "person"),
        ("lost", "node"),
        ("not_found", "environment"),
        ("workdir", "environment"),
        ("no_account", "environment"),
        ("dependency", "dependency"),
        ("preempted", "preempted"),
        ("unschedulable", "unplaced"),
        ("signal", "code"),
        ("a word of a foreign worker", "code"),
    ],
)
def test_how_it_ended_is_enough_where_nothing_was_printed(exit_class: str, kind: str) -> None:
    assert judge(exit_class, "").kind == kind


def test_the_last_word_counts_and_words_overrule_no_limit() -> None:
    survived = (
        "CUDA out of memory. Trying a smaller batch\nepoch 1\nModuleNotFoundError: No module named 'wandb'"
    )
    assert judge("code", "", survived).kind == "environment"
    assert judge("time_limit", "stopped at its time limit", "CUDA out of memory").kind == "time_limit"


def test_an_attempt_tells_where_it_was_and_how_much_it_used() -> None:
    found = judge_attempt(attempt(exit_class="oom", error="killed for memory", peak_bytes=3 << 30))
    assert found == Verdict(
        "host_memory", ("killed for memory (on w1); its peak was 3G",), KINDS["host_memory"].step
    )
    moved = judge_attempt(attempt(Phase.PREEMPTED, exit_class="cancelled"))
    assert moved is not None
    assert moved.kind == "preempted"
    assert judge_attempt(attempt(Phase.SUCCEEDED, exit_class="ok")) is None
    assert judge_attempt(attempt(Phase.RUNNING)) is None

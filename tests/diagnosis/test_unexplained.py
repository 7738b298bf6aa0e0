"""A failure that nobody knows stays unknown, with advice for its kind."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.diagnosis import diagnose

STEP = " iteration        5/     100 | elapsed time per iteration (ms): 1200.0 | lm loss: 7.1E+00 |\n"
WATCHDOG = (
    "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("log", "test"),
    [
        ("[rank0]: ValueError: the moon is not full\n", "run `ep-overlap-mcp check` on the configuration"),
        (STEP + "[rank0]: ValueError: the moon is not full\n", "the same job with overlap off and alltoall"),
        ("[rank0]: FileNotFoundError: [Errno 2] '/data/tokenizer.model'\n", "look for the file, package, key"),
        ("[rank0]: KeyError: 'moon'\n", "look for the file, package, key"),
        ("[rank0]: ValueError: the moon is not full\n" + WATCHDOG, "run `ep-overlap-mcp check` on the configuration"),
        (
            "[rank0]: ImportError: te.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\n",
            "look for the file, package, key",
        ),
        (STEP + "[rank0]: torch.AcceleratorError: CUDA error: device-side assert\n", "CUDA_LAUNCH_BLOCKING=1"),
        (WATCHDOG, "flight recorder"),
        ("[rank0]: torch.distributed.DistBackendError: NCCL error\n", "flight recorder"),
    ],
)
def test_the_advice_fits_the_kind_of_failure(log: str, test: str) -> None:
    """An exception of Python at start-up is no matter of NCCL; a hang is."""
    first = diagnose(text=log).causes[0]
    assert (first.cause, first.confidence) == ("unknown", "possible")
    assert test in first.test
    assert ("flight recorder" in first.test) is (test == "flight recorder")

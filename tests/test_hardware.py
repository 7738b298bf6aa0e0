"""What a GPU's name says."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.hardware import UnknownGpuError, find_gpu, known_gpus, named_gpu


@pytest.mark.parametrize(
    ("name", "full", "capability", "domain"),
    [
        ("H100", "NVIDIA H100", (9, 0), 8),
        ("h100", "NVIDIA H100", (9, 0), 8),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", (9, 0), 8),
        ("NVIDIA H200", "NVIDIA H200", (9, 0), 8),
        ("H20-3e", "NVIDIA H20-3E", (9, 0), 8),
        ("H800", "NVIDIA H800", (9, 0), 8),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 480GB", (9, 0), 8),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", (8, 0), 8),
        ("Tesla V100-SXM2-32GB", "NVIDIA TESLA V100-SXM2-32GB", (7, 0), 8),
        ("NVIDIA A10", "NVIDIA A10", (8, 6), 8),
        ("NVIDIA A10G", "NVIDIA A10G", (8, 6), 8),
        ("L40S", "NVIDIA L40S", (8, 9), 8),
        ("L4", "NVIDIA L4", (8, 9), 8),
        ("B200", "NVIDIA B200", (10, 0), 8),
        ("B300", "NVIDIA B300", (10, 3), 8),
        ("GB200", "NVIDIA GB200", (10, 0), 72),
        ("NVIDIA GB300", "NVIDIA GB300", (10, 3), 72),
        ("NVIDIA RTX PRO 6000 Blackwell", "NVIDIA RTX PRO 6000 Blackwell", (12, 0), 1),
    ],
)
def test_a_name_says_capability_and_domain(name: str, full: str, capability: tuple[int, int], domain: int) -> None:
    """Short names and what torch prints; GB200 is not B200, GH200 not H200."""
    gpu = find_gpu(name)
    assert gpu is not None
    assert (gpu.name, gpu.capability, gpu.nvlink_domain) == (full, capability, domain)


@pytest.mark.parametrize("name", ["", "H10O", "H1000", "A1000", "MI300X", "L400", "T400", "XB200", "cpu"])
def test_what_is_not_in_the_table_is_not_guessed(name: str) -> None:
    """A name that merely looks like one is none."""
    assert find_gpu(name) is None


def test_the_names_offered_are_known() -> None:
    """Every name that an error message offers is one of the table."""
    assert [name for name in known_gpus().split(", ") if find_gpu(name) is None] == []


@pytest.mark.parametrize(("name", "near"), [("H1000", "H100"), ("b3O0", "B300"), ("GB2000", "GB200")])
def test_an_unknown_gpu_is_refused_with_what_may_be_meant(name: str, near: str) -> None:
    """Near names first; what is known besides."""
    with pytest.raises(UnknownGpuError, match=f"`{name}` is not known; known: A100.* Did you mean {near}"):
        named_gpu(name)


def test_a_gpu_that_nothing_resembles_is_refused_without_a_guess() -> None:
    """Another vendor's GPU means no other one."""
    with pytest.raises(UnknownGpuError, match=r"V100\. Without --gpu, what rests on the GPU stays undecided"):
        named_gpu("MI300X")

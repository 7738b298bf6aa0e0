"""Real public profiles, with the numbers other tools and independent programs gave for them.

They are not part of this repository. `EP_OVERLAP_TRACES` names a folder that holds them; sources:
deepseek-ai/profile-data @ 4496024, facebookresearch/HolisticTraceAnalysis @ f4d0062 (tests/data), AMD-AGI/TraceLens
@ 171dd74 (tests/traces), GindaChen/nsys-ai @ ab196ea (tests/fixtures).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ep_overlap_mcp.profiles import ProfileError, analyze

FOLDER = os.environ.get("EP_OVERLAP_TRACES", "")

pytestmark = pytest.mark.skipif(not FOLDER, reason="EP_OVERLAP_TRACES names no folder of public traces")

DEEPSEEK = "deepseek_v3_dualpipe_train.json"
DEEPSEEK_SQLITE = "derived_deepseek_train_minimal.sqlite"
NCCL_DATA = "hta_nccl_parser_config_nccl_data.json.gz"
SAMPLED = "hta_trace_filter_sampled_rank-1.json.gz"
SENDRECV = "hta_negative_queue_length_values_check_rank0.json.gz"
CONTROL = "hta_trace_diff_control_control.json.gz"
MI300 = "tracelens_mi300_resnet_act_checkpoint.json.gz"
NO_OVERLAP = "hta_df_index_resolver_df_index_resolver.json.gz"
ONE_GPU = "hta_ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
MFU = "nsysai_mfu_2gpu_before.sqlite"


def trace(name: str) -> Path:
    path = Path(FOLDER) / name
    if not path.is_file():
        pytest.skip(f"EP_OVERLAP_TRACES holds no {name}")
    return path


@pytest.mark.parametrize("name", [DEEPSEEK, DEEPSEEK_SQLITE])
def test_expert_parallel_kernels_are_seen(name: str):
    """DeepSeek's DualPipe training, EP64: tools that know NCCL only report no communication here. JSON and SQLite
    of the run agree.
    """
    device = analyze([trace(name)]).devices[0]
    assert (device.window_ms, device.comm_ms, device.hidden_ms, device.exposed_ms) == (129.012, 113.44, 109.25, 4.19)
    assert (device.hidden_pct, device.hidden_pct_gemm_attention) == (96.31, 72.85)
    assert device.by_kind.dispatch is not None
    assert device.by_kind.combine is not None
    assert (device.by_kind.dispatch.ms, device.by_kind.combine.ms) == (31.004, 49.448)


@pytest.mark.parametrize(
    ("name", "ours", "comm_ms", "hidden_ms", "hta"),
    [
        (NCCL_DATA, 15.61, 46.876, 7.317, 14.31),
        (SAMPLED, 19.93, 379.053, 75.53, 20.05),
        (SENDRECV, 1.36, 187.87, 2.553, 1.37),
        (CONTROL, 46.24, 163.535, 75.614, 47.03),
        (MI300, 22.22, 71.517, 15.891, 22.45),
        (NO_OVERLAP, 0.0, 357.343, 0.0, 0.0),
    ],
)
def test_ours_and_holistic_trace_analysis(name: str, ours: float, comm_ms: float, hidden_ms: float, hta: float):
    """Our definition to the microsecond, and HTA 0.5.0's to its two digits."""
    device = analyze([trace(name)]).devices[0]
    assert (device.hidden_pct, round(device.comm_ms, 3), round(device.hidden_ms, 3)) == (ours, comm_ms, hidden_ms)
    assert analyze([trace(name)], compat="hta").devices[0].hidden_pct == hta


def test_two_gpus_in_one_export():
    """Sequence-parallel all-to-alls on the compute stream: nothing is hidden on either GPU."""
    devices = analyze([trace(MFU)]).devices
    assert [(device.device, round(device.comm_ms, 3), device.hidden_pct) for device in devices] == [
        ("GPU 0", 17.173, 0.0),
        ("GPU 1", 8.229, 0.0),
    ]


@pytest.mark.parametrize("name", [ONE_GPU, "nsysai_h100_2gpu_1s.sqlite", "nsysai_mock.sqlite"])
def test_a_profile_without_communication_gives_no_percentage(name: str):
    """One GPU, or a slice without NCCL kernels."""
    with pytest.raises(ProfileError, match="no communication kernel recognised"):
        analyze([trace(name)])


@pytest.mark.parametrize("name", [DEEPSEEK, CONTROL, MFU])
def test_inputs_stay_byte_for_byte(name: str):
    """Nothing is written to a profile, not even an index."""
    path = trace(name)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    analyze([path])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before

"""EPO3xx, each silent, violated and undecided, and what is peculiar to a framework or a release."""

from __future__ import annotations

from tests.rules.tables import OneTable

CORE, BRIDGE = "megatron-core==0.16.1", "megatron-bridge==0.6.0"
TE = {"cuda_graph_impl": "transformer_engine"}
PLAIN = {"overlap_moe_expert_parallel_comm": False}
SEGMENTS = {"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def graph(*modules, **changes):
    """Transformer Engine's graph of some modules, under the name that 0.16 uses."""
    return {**TE, "cuda_graph_scope": list(modules), **changes}


# rule, stack, changes that violate it, changes that do not, a setting that leaves it open
CASES = [
    ("graph-leaves-experts-out", CORE, graph("attn", "mlp"), graph("attn", "moe_router"), "cuda_graph_scope"),
    ("graph-impl-te-only-with-overlap", CORE, {"cuda_graph_impl": "local"}, graph("attn"), "cuda_graph_impl"),
    ("graph-modules-must-be-named", CORE, graph("full"), graph("attn"), "cuda_graph_scope"),
    (
        "preprocess-graph-needs-router-graph",
        CORE,
        graph("moe_preprocess"),
        graph("moe_preprocess", "moe_router"),
        "cuda_graph_scope",
    ),
    ("moe-graph-excludes-router-graph", CORE, graph("moe", "moe_router"), graph("moe"), "cuda_graph_scope"),
    (
        "moe-graph-needs-drop-and-pad",
        CORE,
        graph("moe", moe_pad_expert_input_to_capacity=True),
        graph("moe", moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True),
        "moe_expert_capacity_factor",
    ),
    ("mlp-graph-needs-dense-layer", CORE, graph("mlp"), graph("mlp", moe_layer_freq=[0, 1]), "moe_layer_freq"),
    (
        "preprocess-graph-excludes-host-copies",
        CORE,
        graph("moe_preprocess", "moe_router", moe_expert_capacity_factor=1.0),
        graph("moe_preprocess", "moe_router"),
        "moe_expert_capacity_factor",
    ),
    (
        "router-graph-excludes-moe-recompute",
        CORE,
        graph("moe_router", recompute_granularity="selective", recompute_modules=["moe"]),
        graph("attn", recompute_granularity="selective", recompute_modules=["moe"]),
        "recompute_modules",
    ),
    (
        "graph-scope-or-modules-not-both",
        "megatron-core==0.18.2",
        {"cuda_graph_scope": ["attn"], "cuda_graph_modules": ["attn"]},
        {"cuda_graph_scope": ["attn"]},
        "cuda_graph_modules",
    ),
    (
        "graph-with-expandable-segments-needs-register-off",
        CORE,
        graph("attn", **SEGMENTS),
        graph("attn", **SEGMENTS, **{"env.NCCL_GRAPH_REGISTER": 0}),
        "env.PYTORCH_CUDA_ALLOC_CONF",
    ),
    (
        "bridge-local-graph-is-full-iteration",
        "megatron-bridge==main",
        {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]},
        {"cuda_graph_impl": "local", "cuda_graph_modules": ["full_iteration"]},
        "cuda_graph_impl",
    ),
    (
        "full-iteration-graph-excludes-nan-check",
        BRIDGE,
        {"cuda_graph_impl": "full_iteration"},
        {"cuda_graph_impl": "full_iteration", "rerun_state_machine.check_for_nan_in_loss": False},
        "cuda_graph_impl",
    ),
    ("graph-needs-te-rng-tracker", BRIDGE, TE, {**TE, "use_te_rng_tracker": True}, "use_te_rng_tracker"),
    (
        "graph-modules-left-with-impl-none",
        BRIDGE,
        {"cuda_graph_impl": "none", "cuda_graph_modules": ["attn"]},
        {**TE, "cuda_graph_modules": ["attn"]},
        "cuda_graph_modules",
    ),
    (
        "graph-capture-order-unproven",
        CORE,
        graph("attn", pipeline_model_parallel_size=2),
        graph("attn"),
        "pipeline_model_parallel_size",
    ),
    (
        "graph-excludes-full-recompute",
        CORE,
        graph("attn", recompute_granularity="full"),
        {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"], "recompute_granularity": "full"},
        "recompute_granularity",
    ),
    ("graph-excludes-cpu-offloading", CORE, {**TE, "cpu_offloading": True}, {"cpu_offloading": True}, "cpu_offloading"),
    ("graph-implementation-known", CORE, {"cuda_graph_impl": "full_iteration"}, TE, "cuda_graph_impl"),
    (
        "recompute-stays-outside-graph",
        "megatron-core==0.15.3",
        graph("attn", recompute_granularity="selective"),
        graph("attn", recompute_granularity="selective", recompute_modules=["layernorm"]),
        "recompute_modules",
    ),
    (
        "one-way-to-choose-graphs",
        CORE,
        {"external_cuda_graph": True, "cuda_graph_impl": "transformer_engine"},
        {"external_cuda_graph": True},
        "cuda_graph_impl",
    ),
    ("whole-layer-graph-stands-alone", CORE, graph("full", "attn"), graph("full"), "cuda_graph_scope"),
    ("full-iteration-graph-stands-alone", CORE, graph("full_iteration"), graph("attn"), "cuda_graph_scope"),
    (
        "graphed-recompute-excludes-randomness",
        CORE,
        graph("attn", recompute_granularity="selective", attention_dropout=0.1),
        graph("attn", recompute_granularity="selective", attention_dropout=0.0),
        "attention_dropout",
    ),
    ("moe-graph-needs-experts", CORE, graph("moe_router", num_moe_experts=1), graph("moe_router"), "num_moe_experts"),
    (
        "offloading-with-graphs",
        "megatron-core==0.18.2",
        {
            "cuda_graph_impl": "local",
            "fine_grained_activation_offloading": True,
            "offload_modules": ["core_attn"],
        },
        {**TE, "fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]},
        "cuda_graph_impl",
    ),
    (
        "inference-graph-scope-fits-implementation",
        "megatron-core==0.18.2",
        {**TE, "inference_cuda_graph_scope": "block"},
        {"cuda_graph_impl": "local", "inference_cuda_graph_scope": "block"},
        "cuda_graph_impl",
    ),
    (
        "local-graph-of-experts-needs-padding",
        "megatron-lm==0.17.1",
        {"cuda_graph_impl": "local"},
        {"cuda_graph_impl": "local", "moe_pad_experts_for_cuda_graph_inference": True},
        "cuda_graph_impl",
    ),
    (
        "inference-graph-scope-needs-0-17",
        CORE,
        {"cuda_graph_scope": ["full_iteration_inference"]},
        {"cuda_graph_scope": ["full_iteration"]},
        "cuda_graph_scope",
    ),
]


class TestRules(OneTable):
    """Every row is two tests."""

    cases = CASES
    without_fix = frozenset({"graph-capture-order-unproven"})


def test_overlap_takes_local_graphs_from_0_18(state, overlapping):
    """0.16 and 0.17 assert Transformer Engine's graphs; before there is no check, and from 0.18 none for local ones."""
    local = overlapping(cuda_graph_impl="local")
    seen = {v: state("EPO302", local, stack=f"megatron-core=={v}") for v in ("0.15.3", "0.16.1", "0.17.1", "0.18.2")}
    assert seen == {"0.15.3": "not enforced", "0.16.1": "violated", "0.17.1": "violated", "0.18.2": "not enforced"}


def test_the_old_name_of_modules_counts_from_0_18_too(state, overlapping):
    """`cuda_graph_scope` moves to `cuda_graph_modules`, where the same rules find it."""
    assert state("EPO301", overlapping(**graph("mlp")), stack="megatron-core==0.18.2") == "violated"


def test_old_flags_choose_an_implementation(state, overlapping):
    """`enable_cuda_graph` is local and `external_cuda_graph` Transformer Engine's, of the whole layer by default."""
    assert state("EPO302", overlapping(enable_cuda_graph=True)) == "violated"
    assert state("EPO302", overlapping(external_cuda_graph=True)) == "met"
    assert state("EPO303", overlapping(external_cuda_graph=True)) == "violated"


def test_the_local_implementation_captures_router_and_preprocessing_together(state, overlapping):
    """So `moe_preprocess` alone is fine there, and `moe` beside it is not."""
    local = overlapping(**PLAIN, cuda_graph_impl="local", cuda_graph_scope=["moe_preprocess"])
    both = overlapping(**PLAIN, cuda_graph_impl="local", cuda_graph_scope=["moe_preprocess", "moe"])
    assert state("EPO304", local) == "met"
    assert state("EPO305", both) == "violated"


def test_full_iteration_among_modules_chooses_the_implementation_from_0_18(state, overlapping):
    """The old name still works, alone."""
    stack = "megatron-core==0.18.2"
    alone = overlapping(cuda_graph_modules=["full_iteration"], recompute_granularity="full")
    beside = overlapping(cuda_graph_modules=["full_iteration", "attn"])
    assert state("EPO317", alone, stack=stack) == "met"
    assert state("EPO323", alone, stack=stack) == "met"
    assert state("EPO323", beside, stack=stack) == "violated"


def test_a_register_variable_that_no_one_sets_counts_as_unset(state, overlapping):
    """Expandable segments in the text without `NCCL_GRAPH_REGISTER` are a violation; without either it stays open."""
    assert state("EPO311", overlapping(**graph("attn", **SEGMENTS))) == "violated"
    assert state("EPO311", overlapping(**graph("attn"))) == "undecided"
    assert state("EPO311", overlapping()) == "met"


def test_megatron_lm_switches_the_nan_check_off_in_fp16(state, overlapping):
    """Dynamic loss scaling needs infinite losses to pass."""
    whole = overlapping(cuda_graph_impl="full_iteration")
    half = {**whole, "bf16": False, "fp16": True}
    assert [state("EPO313", s, stack="megatron-lm==0.18.2") for s in (whole, half)] == ["violated", "met"]


def test_layer_patterns_are_read_as_megatron_lm_writes_them(state, overlapping):
    """`([0]*1+[1]*7)` has a dense layer for `mlp` to capture."""
    stack = "megatron-lm==0.16.1"
    assert state("EPO307", overlapping(**graph("mlp", moe_layer_freq="([0]*1+[1]*7)")), stack=stack) == "met"
    assert state("EPO307", overlapping(**graph("mlp", moe_layer_freq="[1]*8")), stack=stack) == "violated"

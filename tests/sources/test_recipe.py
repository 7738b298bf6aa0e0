"""Python recipes: followed as far as the text settles them, never executed."""

import contextlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reading_text import omissions, written
from reading_text import settings as values

from ep_overlap_mcp.sources.reading import UnreadableError
from ep_overlap_mcp.sources.recipe import read_recipe

BRIDGE = "from megatron.bridge.recipes.qwen import base_config\nfrom elsewhere import tweak\n"


def read(body, head=BRIDGE):
    """The one reading of a file."""
    (reading,) = read_recipe(head + textwrap.dedent(body), "recipe.py")
    return reading


def model(body, head=BRIDGE):
    """The model's settings, without their object."""
    return {p.removeprefix("model."): v for p, v in values(read(body, head)).items() if p.startswith("model.")}


RECIPE = """\
from megatron.bridge.recipes.qwen import base_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig

def tuned():
    cfg = base_config()
    cfg.model.expert_model_parallel_size = 8  # é
    cfg.model.moe_a2a_overlap = True
    cfg.comm_overlap = CommOverlapConfig(
        tp_comm_overlap=False,
    )
    cfg.train.micro_batch_size = 2
    return cfg
"""


def test_assignments_on_an_imported_recipe():
    """Values with their characters; unwritten fields of CommOverlapConfig are None; a dead attribute is said."""
    (reading,) = read_recipe(RECIPE, "recipe.py")
    assert written(reading, RECIPE) == [
        ("model.expert_model_parallel_size", 6, "8"),
        ("comm_overlap.tp_comm_overlap", 9, "False"),
        ("train.micro_batch_size", 11, "2"),
    ]
    assert values(reading)["comm_overlap.overlap_moe_expert_parallel_comm"] is None
    assert values(reading)["comm_overlap.present"] is True
    assert omissions(reading) == [("dead", 7, None)]
    assert reading.partial == ["starts from `megatron.bridge.recipes.qwen.base_config`, which the text does not hold"]
    assert reading.framework == "bridge"


def test_constants_and_simple_expressions():
    """Module constants, arithmetic, lists, text and conditions with a known outcome."""
    assert model("""
        NODES, GPUS = 4, 8
        KIND = "alltoall"
        def f(big: bool = True, tp=2):
            cfg = base_config()
            cfg.model.expert_model_parallel_size = NODES * GPUS // tp
            cfg.model.moe_token_dispatcher_type = f"{KIND}" if big else "flex"
            cfg.model.recompute_modules = ["moe_act"] + ["layernorm"] * 1
            cfg.model.tensor_model_parallel_size = tp if not big or NODES > 3 else 1
            if big and tp == 2:
                cfg.model.pipeline_model_parallel_layout = [["embedding"] + ["decoder"] * 2, ["loss"]]
            return cfg
    """) == {
        "expert_model_parallel_size": 16,
        "moe_token_dispatcher_type": "alltoall",
        "recompute_modules": ["moe_act", "layernorm"],
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_layout": [["embedding", "decoder", "decoder"], ["loss"]],
    }


def test_functions_of_the_file_are_followed():
    """Helpers that change the configuration, with arguments by position and by name, and loops over known lists."""
    assert model("""
        def _parallel(cfg, tp, *, ep=1, **more):
            cfg.model.tensor_model_parallel_size = tp
            cfg.model.expert_model_parallel_size = ep
            for name in ("bf16", "moe_permute_fusion"):
                setattr(cfg.model, name, True)
            for name, value in more.items():
                setattr(cfg.model, name, value)
        def f():
            cfg = base_config()
            _parallel(cfg, 2, ep=8, context_parallel_size=4)
            return cfg
    """) == {
        "tensor_model_parallel_size": 2,
        "expert_model_parallel_size": 8,
        "bf16": True,
        "moe_permute_fusion": True,
        "context_parallel_size": 4,
    }


PROVIDER = "from megatron.bridge.models import GPTModelProvider\nfrom megatron.bridge.training.config import *\n"


@pytest.mark.parametrize(
    ("helper", "spread", "expected"),
    [
        ("return dict(bf16=True, num_layers=layers)", "**_common(16)", {"bf16": True, "num_layers": 16}),
        ("return {'bf16': True, **dict(num_layers=layers)}", "**_common(16)", {"bf16": True, "num_layers": 16}),
        ("return dict({'num_layers': 8}, num_layers=layers)", "**_common(16)", {"num_layers": 16}),
        ("return dict([('num_layers', layers)])", "**_common()", {"num_layers": 4}),
        ("kw = dict(bf16=True)\n    kw.update(num_layers=layers)\n    return kw", "**_common(16)", None),
        ("return {'bf16': True}", "**{**_common(), 'num_layers': 16}", None),
        ("return {'bf16': True}", "**(_common() | {'num_layers': 16})", None),
        ("return {'bf16': True}", "**_common(), num_layers=16", None),
        ("return {'bf16': True, 'num_layers': 16, 'fp8': 'e4m3'}", "**_without(_common())", None),
        ("return {'bf16': True, 'num_layers': 16}", "**{k: v for k, v in _common().items() if k != 'fp8'}", None),
        ("return {'bf16': True, 'num_layers': 16}", "**{k: _common()[k] for k in _common()}", None),
    ],
)
def test_dictionaries_that_a_function_of_the_file_returns_are_spread(helper, spread, expected):
    """`GPTModelProvider(**_common(...))`, however the dictionary is put together."""
    body = f"""
def _common(layers=4):
    {helper}

def _without(kw):
    kw.pop("fp8")
    return kw

def f():
    return ConfigContainer(model=GPTModelProvider({spread}))
"""
    found = model(body, PROVIDER)
    assert found == {"provider": "GPTModelProvider", **(expected or {"bf16": True, "num_layers": 16})}


def test_a_configuration_that_a_function_of_the_file_returns_goes_on():
    """What the helper built is changed by whoever called it, and each caller has its own."""
    readings = read_recipe(
        PROVIDER
        + textwrap.dedent("""
        def _common(**more):
            return ConfigContainer(model=GPTModelProvider(num_layers=16, **more))
        def one():
            cfg = _common(bf16=True)
            cfg.model.num_layers = 8
            return cfg
        def two():
            return _common(fp16=True)
        """),
        "recipe.py",
    )
    assert {r.name: {p: v for p, v in values(r).items() if p != "model.provider"} for r in readings} == {
        "one": {"model.num_layers": 8, "model.bf16": True},
        "two": {"model.num_layers": 16, "model.fp16": True},
    }


def test_what_the_branches_of_a_helper_agree_on_is_known():
    """A key that hangs on the condition is unknown, be it another value or not there at all."""
    assert model(
        """
        def _common(big):
            if big:
                return {"num_layers": 61, "bf16": True, "moe_grouped_gemm": True}
            return {"num_layers": 16, "bf16": True}
        def f(big):
            return ConfigContainer(model=GPTModelProvider(**_common(big)))
        """,
        PROVIDER,
    ) == {"provider": "GPTModelProvider", "num_layers": "?", "bf16": True, "moe_grouped_gemm": "?"}


@pytest.mark.parametrize(
    "spread", ["**elsewhere()", "**dict(elsewhere())", "**{**elsewhere()}", "**({} | elsewhere())"]
)
def test_a_spread_that_needs_running_leaves_open_what_it_may_set(spread):
    """CommOverlapConfig's fields are None by default, but not where anything may be given; what is named is known."""
    text = f"""
def f():
    overlap = CommOverlapConfig(tp_comm_overlap=False, {spread})
    return ConfigContainer(model=GPTModelProvider(num_layers=16), comm_overlap=overlap)
"""
    found = values(read(text, PROVIDER + "from elsewhere import elsewhere\n"))
    assert found["comm_overlap.tp_comm_overlap"] is False
    assert "comm_overlap.overlap_moe_expert_parallel_comm" not in found


def test_a_spread_that_needs_running_may_be_any_argument_of_a_function_of_the_file():
    """A default is no value where something unknown may take its place."""
    assert model(
        """
        def _common(layers=4, *, gemm=True):
            return dict(num_layers=layers, moe_grouped_gemm=gemm, bf16=True)
        def f():
            return ConfigContainer(model=GPTModelProvider(**_common(gemm=False, **elsewhere())))
        """,
        PROVIDER + "from elsewhere import elsewhere\n",
    ) == {"provider": "GPTModelProvider", "num_layers": "?", "moe_grouped_gemm": False, "bf16": True}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("kw.pop('num_layers')", {"bf16": True}),
        ("del kw['num_layers']", {"bf16": True}),
        ("kw.pop('fp8', None)", {"num_layers": 16, "bf16": True}),
        ("kw.clear()", {}),
        ("kw |= {'num_layers': 8}", {"num_layers": 8, "bf16": True}),
        ("kw.update(elsewhere())", {"num_layers": "?", "bf16": "?"}),
        ("kw.pop(elsewhere())", {"num_layers": "?", "bf16": "?"}),
        ("if elsewhere():\n        kw.pop('bf16')", {"num_layers": 16, "bf16": "?"}),
        ("if elsewhere():\n        kw.pop('bf16')\n    else:\n        del kw['bf16']", {"num_layers": 16}),
    ],
)
def test_keys_that_go_are_gone(change, expected):
    """What is taken out of a dictionary is not set, and what may have gone is unknown."""
    text = f"""
def f():
    kw = dict(num_layers=16, bf16=True)
    {change}
    return ConfigContainer(model=GPTModelProvider(**kw))
"""
    assert model(text, PROVIDER + "from elsewhere import elsewhere\n") == {"provider": "GPTModelProvider", **expected}


def test_a_call_that_the_text_does_not_show_may_change_everything_before_it():
    """What is assigned after it is known."""
    reading = read("""
        def f():
            cfg = base_config()
            cfg.model.expert_model_parallel_size = 8
            cfg.mixed_precision = "bf16_mixed"
            tweak(cfg)
            cfg.model.tensor_model_parallel_size = 2
            print(cfg)
            return cfg
    """)
    assert values(reading)["model.expert_model_parallel_size"] == "?"
    assert values(reading)["model.tensor_model_parallel_size"] == 2
    assert omissions(reading) == [("not resolved", 8, None)]


def test_conditions_that_need_running_leave_unknown_what_they_change():
    """Branches that agree settle a value; an early return and a raise belong to their branch only."""
    reading = read("""
        def f(gpus):
            cfg = base_config()
            if gpus < 8:
                raise ValueError("too few")
            cfg.model.bf16 = True
            if gpus > 64:
                cfg.model.expert_model_parallel_size = 64
                cfg.model.tensor_model_parallel_size = 1
            else:
                cfg.model.expert_model_parallel_size = 8
                cfg.model.tensor_model_parallel_size = 1
            while gpus:
                cfg.model.context_parallel_size = 2
            if gpus == 512:
                cfg.model.moe_router_topk = 2
                return cfg
            cfg.model.moe_router_topk = 4
            cfg.model.moe_permute_fusion = True
            return cfg
    """)
    assert values(reading) == {
        "model.bf16": True,
        "model.expert_model_parallel_size": "?",
        "model.tensor_model_parallel_size": 1,
        "model.context_parallel_size": "?",
        "model.moe_router_topk": "?",
        "model.moe_permute_fusion": "?",
    }


def test_the_flex_helper_is_noted_in_its_place():
    """Whether it takes effect depends on GPU and release, which is not the reader's business."""
    reading = read("""
        from megatron.bridge.training.flex_dispatcher_backend import apply_flex_dispatcher_backend as use
        from megatron.bridge.training.flex_dispatcher_backend import apply_flex_dispatcher_backend
        def f(backend="deepep"):
            cfg = base_config()
            cfg.model.moe_shared_expert_overlap = True
            apply_flex_dispatcher_backend(cfg.model, backend)
            cfg.model.moe_token_dispatcher_type = "alltoall"
            use(cfg.model, moe_flex_dispatcher_backend="hybridep")
            return cfg
    """)
    assert [(a.path, a.value) for a in reading.assignments] == [
        ("model.moe_shared_expert_overlap", True),
        ("bridge.apply_flex_dispatcher_backend", "deepep"),
        ("model.moe_token_dispatcher_type", "alltoall"),
        ("bridge.apply_flex_dispatcher_backend", "hybridep"),
    ]


def test_the_benchmark_helper_of_the_performance_recipes():
    """It turns the NaN check off and lets the RNG tracker follow the graphs; nothing before it is lost."""
    reading = read("""
        def f():
            cfg = base_config()
            cfg.mixed_precision = _perf_precision("fp8_cs")
            cfg.model.cuda_graph_impl = "transformer_engine"
            _benchmark_common(cfg)
            return cfg
    """)
    found = values(reading)
    assert found["model.cuda_graph_impl"] == "transformer_engine"
    assert found["model.use_te_rng_tracker"] is True
    assert found["rng.te_rng_tracker"] is True
    assert found["rerun_state_machine.check_for_nan_in_loss"] is False
    assert (found["model.bf16"], found["model.fp8"], found["model.fp8_recipe"]) == (True, "hybrid", "tensorwise")


def test_the_data_set_that_a_recipe_builds():
    """Its class decides which checks Bridge makes of its length and packing."""
    reading = read("""
        def f():
            cfg = base_config()
            cfg.dataset = MockGPTDatasetConfig(seq_length=4096)
            cfg.checkpoint.save = "/checkpoints"
            return cfg
    """)
    assert values(reading) == {
        "dataset.kind": "MockGPTDatasetConfig",
        "dataset.seq_length": 4096,
        "checkpoint.save": "/checkpoints",
    }


def test_comm_overlap_none_removes_the_object():
    """Then the model's own flags stay."""
    reading = read("""
        def f():
            cfg = base_config()
            cfg.comm_overlap = None
            cfg.model.overlap_moe_expert_parallel_comm = True
            return cfg
    """)
    assert values(reading) == {"comm_overlap.present": False, "model.overlap_moe_expert_parallel_comm": True}


def test_environment_variables_of_a_recipe():
    """A dictionary with what another one brings, and single items."""
    found = values(
        read("""
        from megatron.bridge.perf_recipes.environment import COMMON
        def f():
            cfg = base_config()
            cfg.model.bf16 = True
            cfg.env_vars = {**COMMON, "CUDA_DEVICE_MAX_CONNECTIONS": 32}
            cfg.env_vars["NCCL_GRAPH_REGISTER"] = "0"
            return cfg
    """)
    )
    assert found == {"model.bf16": True, "env.CUDA_DEVICE_MAX_CONNECTIONS": 32, "env.NCCL_GRAPH_REGISTER": 0}


def test_a_provider_built_in_the_file():
    """Its class is named, its unwritten fields are unknown: the class carries defaults of its own."""
    reading = read(
        """
        from megatron.bridge.models import Qwen3MoEModelProvider
        from megatron.bridge.training.config import ConfigContainer, TrainingConfig
        from megatron.bridge.training.gpt_step import forward_step
        provider = Qwen3MoEModelProvider(num_layers=4, num_moe_experts=8)
        provider.bf16 = True
        cfg = ConfigContainer(model=provider, train=TrainingConfig(micro_batch_size=1))
        if __name__ == "__main__":
            cfg.model.expert_model_parallel_size = 4
            pretrain(cfg, forward_step)
    """,
        head="",
    )
    assert values(reading) == {
        "model.provider": "Qwen3MoEModelProvider",
        "model.num_layers": 4,
        "model.num_moe_experts": 8,
        "model.bf16": True,
        "train.micro_batch_size": 1,
        "model.expert_model_parallel_size": 4,
        "bridge.forward_step": "gpt_step",
    }
    assert reading.partial == ["`Qwen3MoEModelProvider` carries defaults that the text does not show"]


def test_a_core_configuration():
    """Without Bridge the framework is megatron-core."""
    reading = read(
        """
        from megatron.core.transformer import TransformerConfig
        def get_config(ep: int = 4):
            return TransformerConfig(num_layers=4, expert_model_parallel_size=ep, bf16=True)
    """,
        head="",
    )
    assert values(reading) == {"model.num_layers": 4, "model.expert_model_parallel_size": 4, "model.bf16": True}
    assert (reading.framework, reading.complete) == ("megatron-core", False)


def test_nemo_run_configurations():
    """`run.Config` names its class first; the strategy holds the parallel sizes, the callback the overlap."""
    reading = read(
        """
        import nemo_run as run
        from nemo import lightning as nl
        from nemo.collections import llm
        def recipe():
            strategy = run.Config(nl.MegatronStrategy, expert_model_parallel_size=8,
                                  ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True))
            r = llm.mixtral.pretrain_recipe()
            r.trainer = run.Config(nl.Trainer, strategy=strategy)
            r.trainer.strategy.virtual_pipeline_model_parallel_size = None
            r.data.micro_batch_size = 1
            r.trainer.callbacks.append(
                run.Config(MegatronCommOverlapCallback, overlap_moe_expert_parallel_comm=True))
            return r
    """,
        head="",
    )
    assert values(reading) == {
        "model.expert_model_parallel_size": 8,
        "ddp.overlap_grad_reduce": True,
        "model.virtual_pipeline_model_parallel_size": None,
        "train.micro_batch_size": 1,
        "model.overlap_moe_expert_parallel_comm": True,
    }
    assert reading.framework == "megatron-core"


def test_functions_are_readings_of_their_own():
    """Public functions that return a configuration, by name; a helper with arguments is none."""
    readings = read_recipe(
        BRIDGE
        + textwrap.dedent("""
        def common(cfg, ep):
            cfg.model.expert_model_parallel_size = ep
            return cfg
        def small():
            return common(base_config(), 8)
        def large():
            cfg = small()
            return common(cfg, 64)
    """),
        "recipe.py",
    )
    assert [(r.name, values(r)["model.expert_model_parallel_size"]) for r in readings] == [("small", 8), ("large", 64)]


def test_an_argument_whose_default_is_none():
    """None is a value like any other: it settles conditions and settings."""
    assert model("""
        def f(vpp=None, backend=None):
            cfg = base_config()
            if backend is None:
                backend = "alltoall"
            cfg.model.moe_token_dispatcher_type = backend
            cfg.model.virtual_pipeline_model_parallel_size = vpp
            return cfg
    """) == {"moe_token_dispatcher_type": "alltoall", "virtual_pipeline_model_parallel_size": None}


def test_presets_of_the_performance_harness():
    """Objects that the file builds are named as it names them; `replace` leaves the original as it is."""
    readings = read_recipe(
        textwrap.dedent("""
        from dataclasses import replace
        from utils.utils import WorkloadBaseConfig
        BASE = WorkloadBaseConfig(expert_model_parallel_size=8, global_batch_size=512)
        LARGE = replace(BASE, expert_model_parallel_size=64, moe_a2a_overlap=True)
    """),
        "presets.py",
    )
    assert [(r.name, r.framework, values(r)) for r in readings] == [
        ("BASE", "bridge", {"model.expert_model_parallel_size": 8, "train.global_batch_size": 512}),
        (
            "LARGE",
            "bridge",
            {
                "model.expert_model_parallel_size": 64,
                "train.global_batch_size": 512,
                "bridge.moe_a2a_overlap": True,
            },
        ),
    ]


def test_a_command_line_put_together_in_python():
    """Text and lists of flags; a value from a call stays unknown, an environment variable has its default."""
    reading = read(
        """
        import os
        EP = int(os.environ.get("EP", "8"))
        def main():
            args = "--num-layers 24 " "--num-experts 64 "
            args += f"--expert-model-parallel-size {EP} --tensor-model-parallel-size {ask()} "
            args += " ".join(["--recompute-modules", "moe_act", "mlp"]) + " --bf16"
            os.system("torchrun pretrain_gpt.py " + args)
        if __name__ == "__main__":
            main()
    """,
        head="",
    )
    assert values(reading) == {
        "model.num_layers": 24,
        "model.num_moe_experts": 64,
        "model.expert_model_parallel_size": 8,
        "model.tensor_model_parallel_size": "?",
        "model.recompute_modules": ["moe_act", "mlp"],
        "model.bf16": True,
    }
    assert reading.framework == "megatron-lm"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("def f(:\n  pass\n", "line 1"),
        ("x = " + "(" * 5000 + "1" + ")" * 5000, "recipe.py"),
        ("x = " + "-" * 20_000 + "1", "recipe.py"),
        ("def f():\n" + "".join(" " * i + "if x:\n" for i in range(1, 200)) + " " * 200 + "pass", "recipe.py"),
        (
            "x = [0]\n" + "for a in range(200):\n for b in range(200):\n  for c in range(200):\n   y = a\n",
            "too many steps",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(text, part):
    """A syntax error names its line; nothing hangs or overflows."""
    with pytest.raises(UnreadableError, match=part):
        read_recipe(text, "recipe.py")


def test_nothing_is_executed(tmp_path):
    """A recipe that would write a file when it runs does not when it is read."""
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w').write('x')\n__import__('os').system('touch {mark}')\n"
    assert read_recipe(text, "recipe.py") == []
    assert not mark.exists()


def test_recursion_ends():
    """A function that calls itself, and an object that holds itself."""
    assert model("""
        def f(n=3):
            cfg = base_config()
            cfg.model.bf16 = True
            cfg.model.self = cfg
            f(n + 1)
            return cfg
    """) == {"bf16": True}


NAMES = st.sampled_from(
    ["cfg", "cfg.model", "cfg.comm_overlap", "x", "cfg.model.num_layers", "f", "base()", "cfg.env_vars"]
)
DICTIONARIES = ["dict(x)", "dict(**x)", "x | {'a': 1}", "{k: v for k, v in x.items()}", "x.pop('a')", "x.update(x)"]
CONSTANTS = ["1", "None", "'a'", "[1, x]", "{**cfg, 'a': 1}", "cfg"]
PARTS = st.sampled_from([*CONSTANTS, *DICTIONARIES, "f(cfg)", "f(**x)", "x + 1", "not x", "len(x)", "x.clear()"])
LINES = st.one_of(
    st.builds("{} = {}".format, NAMES.filter(lambda n: not n.endswith(")")), PARTS),
    st.builds("{} += {}".format, st.sampled_from(["x", "cfg.model.bf16"]), PARTS),
    st.builds("if {}: {} = {}".format, PARTS, st.just("cfg.model.bf16"), PARTS),
    st.builds("for x in {}: cfg.model.bf16 = x".format, PARTS),
    st.builds("return {}".format, PARTS),
    st.builds("{}({})".format, NAMES, PARTS),
    st.just("x = {'a': 1}"),
    st.just("del x['a']"),
    st.just("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=x)"),
)


@given(st.lists(LINES, max_size=10))
@hypothesis_settings(max_examples=300, deadline=None)
def test_any_function_is_read_or_unreadable(lines):
    """Whatever is assigned to or called with whatever."""
    body = "".join(f"    {line}\n" for line in ["cfg = base()", *lines, "return cfg"])
    try:
        readings = read_recipe(f"from megatron.bridge import base\ndef f(x):\n{body}", "recipe.py")
    except UnreadableError:
        return
    assert all(r.assignments for r in readings)


@given(st.text(max_size=150))
@hypothesis_settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_unreadable(text):
    """Nothing but UnreadableError is raised."""
    with contextlib.suppress(UnreadableError):
        read_recipe(text, "recipe.py")


@pytest.mark.parametrize(
    "write",
    [
        "vars(cfg.model)['moe_token_dispatcher_type'] = 'allgather'",
        "cfg.model.__dict__.update(moe_token_dispatcher_type='allgather')",
        "[setattr(cfg.model, 'moe_token_dispatcher_type', kind) for kind in ('allgather',)]",
        "list(map(tweak, [cfg]))",
        "exec('cfg.model.moe_token_dispatcher_type = chr(97)')",
    ],
)
def test_what_may_write_unseen_leaves_what_is_written_unknown(write: str) -> None:
    """A write that is not followed must not read as the value before it."""
    text = f"""
def tweak(cfg):
    cfg.model.moe_token_dispatcher_type = 'allgather'


def recipe():
    cfg = ConfigContainer(model=GPTModelProvider(), train=TrainingConfig())
    cfg.model.moe_token_dispatcher_type = 'alltoall'
    {write}
    return cfg
"""
    (reading,) = [r for r in read_recipe(text, "recipe.py") if r.name in (None, "recipe")]
    last = {a.path: a.known for a in reading.assignments}
    assert not last["model.moe_token_dispatcher_type"]
    assert any("is not followed" in o.why for o in reading.omissions)


@pytest.mark.parametrize(("decorator", "known"), [("functools.lru_cache", True), ("with_allgather", False)])
def test_a_decorator_may_change_what_a_recipe_returns(*, decorator: str, known: bool) -> None:
    """Those of the standard library that give the result back leave it as it is."""
    text = f"""
@{decorator}
def recipe():
    cfg = ConfigContainer(model=GPTModelProvider(), train=TrainingConfig())
    cfg.model.moe_token_dispatcher_type = 'alltoall'
    return cfg
"""
    (reading,) = read_recipe(text, "recipe.py")
    assert {a.path: a.known for a in reading.assignments}["model.moe_token_dispatcher_type"] is known

"""Builds one variant: Megatron's config, GPTModel chunks, DDP and optimizer, as a training script would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import transformer_config, typed_values
from .request import RequestError
from .schedule import Shape, shape_of

if TYPE_CHECKING:
    from .engine import Engine
    from .faults import Planted
    from .request import Request


@dataclass
class Variant:
    """A model with one setting of the overlap switches."""

    name: str
    config: Any
    chunks: list[Any]
    optimizer: Any
    shapes: list[Shape]

    @property
    def delayed(self) -> bool:
        """The request asks for delayed weight gradients."""
        return self.name == "overlap_delay_wgrad"


def initialize_parallel(config: Any, timeout_s: float) -> dict[str, int | None]:
    """Create Megatron's process groups for the config; the sizes."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        distributed_timeout_minutes=timeout_s / 60,
    )
    return {
        "tp": config.tensor_model_parallel_size,
        "cp": config.context_parallel_size,
        "pp": config.pipeline_model_parallel_size,
        "vpp": config.virtual_pipeline_model_parallel_size,
        "ep": config.expert_model_parallel_size,
        "etp": config.expert_tensor_parallel_size,
        "dp": parallel_state.get_data_parallel_world_size(),
        "edp": parallel_state.get_expert_data_parallel_world_size(),
    }


def build(request: Request, engine: Engine, name: str, planted: Planted) -> Variant:
    """The variant, on this rank; all variants start from the same seed."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.manual_seed(request.seed + 100 * parallel_state.get_pipeline_model_parallel_rank())
    model_parallel_cuda_manual_seed(request.seed)
    config = transformer_config(request, engine, name, planted)
    stages = range(config.virtual_pipeline_model_parallel_size or 1)
    models = [_gpt_model(request, engine, config, stage, len(stages)) for stage in stages]
    shapes = [shape_of(model) for model in models]
    chunks = [_wrapped(request, engine, config, model, name) for model in models]
    optimizer = _optimizer(request, config, chunks)
    _connect(config, chunks, optimizer, planted)
    return Variant(name, config, chunks, optimizer, shapes)


def copy_weights(source: Variant, target: Variant) -> None:
    """Give the target the weights of the source; both optimizers start from them."""
    for given, taken in zip(source.chunks, target.chunks, strict=True):
        taken.load_state_dict(given.state_dict())
    for variant in (source, target):
        variant.optimizer.reload_model_params()


def _gpt_model(request: Request, engine: Engine, config: Any, stage: int, stages: int) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    vp_stage = stage if stages > 1 else None
    where = {"ignore_virtual": False, "vp_stage": vp_stage}
    spec = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=engine.transformer_engine,
        normalization=config.normalization,
        qk_l2_norm=getattr(config, "qk_l2_norm", False),
        vp_stage=vp_stage,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=request.train.vocab_size,
        max_sequence_length=request.train.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**where),
        post_process=parallel_state.is_pipeline_last_stage(**where),
        position_embedding_type=request.train.position_embedding_type,
        share_embeddings_and_output_weights=False,
        mtp_block_spec=_mtp_spec(engine, config, spec, vp_stage),
        vp_stage=vp_stage,
    )


def _mtp_spec(engine: Engine, config: Any, spec: Any, vp_stage: int | None) -> Any:
    if not config.mtp_num_layers:
        return None
    from megatron.core.models.gpt import gpt_layer_specs

    if not spec.layer_specs:  # an MTP-only stage copies the decoder's last layer
        spec = gpt_layer_specs.get_gpt_decoder_layer_specs(
            config, engine.transformer_engine, normalization=config.normalization
        )[-1]
    return gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, engine.transformer_engine, vp_stage=vp_stage)


def _wrapped(request: Request, engine: Engine, config: Any, model: Any, name: str) -> Any:
    """Half precision and DDP around the model, on its device."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import Float16Module

    delayed = bool(config.delay_wgrad_compute)
    if engine.delays_by_stand_in(delayed=delayed):
        _delay_on_cpu(config, model)
    if engine.on_gpu:
        model = model.cuda()
    if config.bf16 or config.fp16:
        model = Float16Module(config, model)
    asked = typed_values(DistributedDataParallelConfig, request.ddp, "ddp")
    # Megatron-LM's arguments reduce bf16 gradients in fp32
    values = {"grad_reduce_in_fp32": bool(config.bf16), **asked, "delay_wgrad_compute": delayed}
    if asked.get("delay_wgrad_compute"):
        raise RequestError(f"ddp.delay_wgrad_compute is set by the variant ({name}); leave it out")
    return DistributedDataParallel(config, DistributedDataParallelConfig(**values), model)


def _delay_on_cpu(config: Any, model: Any) -> None:
    from .delayed_wgrad import delay_weight_gradients

    if config.tensor_model_parallel_size > 1 or (config.expert_tensor_parallel_size or 1) > 1:
        raise RequestError("overlap_delay_wgrad on gloo-cpu: the stand-in knows no tensor parallelism; use TP 1")
    delay_weight_gradients(model)


def _optimizer(request: Request, config: Any, chunks: list[Any]) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    values = {
        "optimizer": "adam",
        "lr": 1e-3,
        "bf16": config.bf16,
        "fp16": config.fp16,
        "params_dtype": config.params_dtype,
        "use_distributed_optimizer": bool(request.ddp.get("use_distributed_optimizer")),
        "overlap_param_gather": bool(request.ddp.get("overlap_param_gather")),
        **typed_values(OptimizerConfig, request.optimizer, "optimizer"),
    }
    if config.fp16:
        values.setdefault("initial_loss_scale", 4096.0)  # the default of 2**32 overflows the first steps away
    return get_megatron_optimizer(OptimizerConfig(**values), chunks)


def _connect(config: Any, chunks: list[Any], optimizer: Any, planted: Planted) -> None:
    """The functions that Megatron-LM's training loop hangs into the config."""
    from megatron.core.distributed import finalize_model_grads

    def finalize(*args: Any, **kwargs: Any) -> Any:
        planted.before_finalize(chunks)
        return finalize_model_grads(*args, **kwargs)

    config.finalize_model_grads_func = finalize
    config.grad_scale_func = optimizer.scale_loss
    if chunks[0].ddp_config.overlap_grad_reduce:
        syncs = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = syncs if len(syncs) > 1 else syncs[0]

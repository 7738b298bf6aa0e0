from megatron.bridge.recipes.somewhere import some_moe_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.flex_dispatcher_backend import apply_flex_dispatcher_backend


def rack_config():
    cfg = some_moe_pretrain_config()
    cfg.model.num_moe_experts = 64
    cfg.model.expert_model_parallel_size = 32
    apply_flex_dispatcher_backend(cfg.model, "deepep")
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False, overlap_moe_expert_parallel_comm=True)
    return cfg

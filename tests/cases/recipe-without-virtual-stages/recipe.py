from megatron.bridge.recipes.somewhere import some_moe_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig


def tuned_config():
    cfg = some_moe_pretrain_config()
    cfg.model.expert_model_parallel_size = 8
    cfg.model.num_moe_experts = 64
    cfg.model.moe_token_dispatcher_type = "alltoall"
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False, overlap_moe_expert_parallel_comm=True)
    return cfg

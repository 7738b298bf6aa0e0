from megatron.bridge.recipes.somewhere import some_moe_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig


def hopeful_config():
    cfg = some_moe_pretrain_config()
    cfg.model.moe_a2a_overlap = True
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    return cfg

"""The Python where torch and Megatron live: asked over a pipe, never imported."""

from __future__ import annotations

from ep_overlap_mcp.training_env.environment import TrainingEnvironment
from ep_overlap_mcp.training_env.fake import FakePipe
from ep_overlap_mcp.training_env.judgement import Judgement
from ep_overlap_mcp.training_env.named import Cluster, open_environment
from ep_overlap_mcp.training_env.pipe import Pipe, ProcessPipe, TrainingEnvironmentError

__all__ = [
    "Cluster",
    "FakePipe",
    "Judgement",
    "Pipe",
    "ProcessPipe",
    "TrainingEnvironment",
    "TrainingEnvironmentError",
    "open_environment",
]

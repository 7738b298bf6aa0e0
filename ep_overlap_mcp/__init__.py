"""Machine-checked answers about expert-parallel communication overlap in the Megatron stack."""

__version__ = "0.1.0"

"""The installed Megatron's own classes and functions as judges of a configuration."""

"""Tuned fused-MoE tables: which key is looked up, which rows cover it, what the log says of it. Pure.

How aiter chooses a kernel is read from its own sources (`aiter/fused_moe.py`, `aiter/jit/core.py`) at the commits that
the ROCm images of sglang pin, 7d604afe and 9127c94a; nothing here was run on a GPU.
"""

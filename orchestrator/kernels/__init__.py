"""Tuned fused-MoE tables: which key is looked up, which rows cover it, what the log says of it."""

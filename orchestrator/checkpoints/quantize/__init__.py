"""Quantization of a checkpoint with AMD Quark."""

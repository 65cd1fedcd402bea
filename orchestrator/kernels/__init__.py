"""Tuned MoE kernel tables: coverage, tuning, log gate."""

"""Quality: evaluations of a served model through lm-evaluation-harness, and what their difference can tell."""

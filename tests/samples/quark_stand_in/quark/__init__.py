"""Stands in for AMD Quark 0.13, for the two classes that `images/quantize_shards.py` uses; see `torch.py`."""

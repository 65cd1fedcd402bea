"""A fake of AMD Quark 0.13 with the two classes that `images/quantize_shards.py` uses; see `torch.py`."""

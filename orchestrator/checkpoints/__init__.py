"""Model checkpoints: download, verification, overlay, description."""

"""`deploy add`: new catalog entries from checkpoints and engine releases."""

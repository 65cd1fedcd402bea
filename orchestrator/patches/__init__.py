"""The ledger of patches, and the transforms of `config.json`."""

"""What is on disk: profiles and their parts, flag tables, the ledger of patches, templates."""

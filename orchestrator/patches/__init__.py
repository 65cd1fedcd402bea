"""The ledger of patches: what each mends, how it is told whether it is needed, when it drops itself."""

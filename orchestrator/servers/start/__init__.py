"""`deploy up`: decide, prepare, launch, verify."""

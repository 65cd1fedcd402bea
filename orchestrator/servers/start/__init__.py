"""`deploy up`: prepare, launch, verify, replay."""

"""`deploy up`: build the plan, prepare, launch, verify."""

"""The results of measurements and evaluations. Pure."""

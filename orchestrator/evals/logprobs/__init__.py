"""Log-probabilities of a server compared with a reference."""

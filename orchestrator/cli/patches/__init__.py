"""Commands of `deploy patches`."""

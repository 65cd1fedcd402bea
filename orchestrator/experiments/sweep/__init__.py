"""`deploy sweep`: search for a better configuration."""

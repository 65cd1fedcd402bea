"""Task files for SkyPilot and dstack. Pure."""

"""Task files for SkyPilot and dstack. Pure: nothing is read or written."""

"""Virtual environments of engines, built from pinned requirements."""

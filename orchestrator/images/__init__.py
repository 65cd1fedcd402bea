"""Docker images: build, prebuilt images, receipts, registries."""

"""Servers in a Kubernetes cluster: manifests that kubectl takes, and what runs by them."""

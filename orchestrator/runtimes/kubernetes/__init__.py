"""Servers in a Kubernetes cluster."""

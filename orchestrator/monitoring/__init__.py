"""Prometheus rules and the Grafana dashboard. Pure."""

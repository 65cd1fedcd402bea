"""`deploy`: the deployment and serving orchestrator for sglang on ROCm.

A profile becomes a running, verified server along one line::

    Profile --plan--> Plan --render--> Artifacts --start--> Deployment --check--> Report

Everything up to the artifacts is pure; docker, processes, http and disk are at the edges.
"""

__version__ = "0.1.0"

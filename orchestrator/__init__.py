"""`deploy`: the deployment and serving orchestrator for sglang on ROCm.

A profile becomes a running, proven server along one line::

    Profile --plan--> Plan --render--> Artifacts --start--> Deployment --check--> Report

Everything up to the artifacts is pure; docker, processes, http and disk stand at the edges.
"""

__version__ = "0.1.0"

"""A started server becomes a proven one: waiting until it serves, and the smoke test.

Each check of the smoke test goes red when a feature of the server's profile is silently absent.
"""

from orchestrator.prove.gateway import count_servers, gateway_checks, wait_for_gateway
from orchestrator.prove.report import CheckResult, SmokeReport, Verdict
from orchestrator.prove.smoke import smoke_test
from orchestrator.prove.target import Target, target_as_told, target_of
from orchestrator.prove.waiting import Starting, wait

__all__ = [
    "CheckResult",
    "SmokeReport",
    "Starting",
    "Target",
    "Verdict",
    "count_servers",
    "gateway_checks",
    "smoke_test",
    "target_as_told",
    "target_of",
    "wait",
    "wait_for_gateway",
]

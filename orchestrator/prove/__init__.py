"""A started server becomes a proven one: waiting until it serves, and the smoke test.

Each check of the smoke test goes red when a feature of the server's profile is silently absent. `probe` asks for the
numbers behind the answers, and `probe_limits` says by how much right ones may differ.
"""

from orchestrator.prove.gateway import count_servers, gateway_checks, wait_for_gateway
from orchestrator.prove.probe import Identity, Probed
from orchestrator.prove.probe_limits import limit_for, noise_of, settings_apart
from orchestrator.prove.probe_report import ProbeFault, ProbeReport, ProbeRow
from orchestrator.prove.report import CheckResult, SmokeReport, Verdict
from orchestrator.prove.scores import MOST_REFERENCE_BYTES, SavedScores, reference_from_json, reference_to_json
from orchestrator.prove.smoke import smoke_test
from orchestrator.prove.target import Target, target_as_told, target_of
from orchestrator.prove.waiting import Starting, wait

__all__ = [
    "MOST_REFERENCE_BYTES",
    "CheckResult",
    "Identity",
    "ProbeFault",
    "ProbeReport",
    "ProbeRow",
    "Probed",
    "SavedScores",
    "SmokeReport",
    "Starting",
    "Target",
    "Verdict",
    "count_servers",
    "gateway_checks",
    "limit_for",
    "noise_of",
    "reference_from_json",
    "reference_to_json",
    "settings_apart",
    "smoke_test",
    "target_as_told",
    "target_of",
    "wait",
    "wait_for_gateway",
]

"""Smoke: checks of a ready server, each of which goes red when a feature of its profile is silently absent."""

from orchestrator.prove.report import Check, SmokeReport, Verdict
from orchestrator.prove.smoke import run
from orchestrator.prove.target import Target, target_of

__all__ = ["Check", "SmokeReport", "Target", "Verdict", "run", "target_of"]

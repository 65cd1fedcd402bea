"""From a composed profile to a plan: every compatibility rule lives here."""

from orchestrator.planner.decide import Knowledge, decide
from orchestrator.planner.flags import FlagSpec, FlagTable

__all__ = ["FlagSpec", "FlagTable", "Knowledge", "decide"]

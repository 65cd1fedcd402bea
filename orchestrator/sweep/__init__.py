"""A space of configurations, and the search for the best of them: what may vary, what is wanted, what to try next.

Optuna searches, prunes and keeps the journal; it is imported where a search begins, and nowhere else.
"""

from orchestrator.sweep.objective import Goal, Objective
from orchestrator.sweep.search import Asked, Outcome, Search, SweepTrial
from orchestrator.sweep.space import LAYOUT, Knob, LayoutChoice, Space, SpaceFile, Value, default_space, space_of

__all__ = [
    "LAYOUT",
    "Asked",
    "Goal",
    "Knob",
    "LayoutChoice",
    "Objective",
    "Outcome",
    "Search",
    "Space",
    "SpaceFile",
    "SweepTrial",
    "Value",
    "default_space",
    "space_of",
]

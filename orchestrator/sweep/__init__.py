"""A space of configurations, and the search for the best of them: what may vary, what is wanted, what to try next.

Optuna searches, prunes and keeps the journal; it is imported where a search begins, and nowhere else.
"""

from orchestrator.sweep.objective import Goal, Objective
from orchestrator.sweep.search import Confirmation, Proposed, Search, SweepTrial, TrialOutcome
from orchestrator.sweep.space import Knob, LayoutChoice, SearchSpace, SpaceFile, default_space, space_of

__all__ = [
    "Confirmation",
    "Goal",
    "Knob",
    "LayoutChoice",
    "Objective",
    "Proposed",
    "Search",
    "SearchSpace",
    "SpaceFile",
    "SweepTrial",
    "TrialOutcome",
    "default_space",
    "space_of",
]

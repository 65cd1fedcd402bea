"""A checkpoint quantised by AMD Quark, file to file: recipes, sizes by formula, workers, and what is handed over."""

from orchestrator.quantisation.finish import MadeOf, finish, others_size
from orchestrator.quantisation.folder import QuantisationJob, WorkFolder
from orchestrator.quantisation.forecast import Forecast, forecast
from orchestrator.quantisation.recipe import Recipe, load_recipe, recipes_for
from orchestrator.quantisation.source import Source, read_source
from orchestrator.quantisation.workers import (
    QuantisationProgress,
    WorkerPool,
    container_command,
    image_quark,
    local_command,
    memory_free,
    run_workers,
)

__all__ = [
    "Forecast",
    "MadeOf",
    "QuantisationJob",
    "QuantisationProgress",
    "Recipe",
    "Source",
    "WorkFolder",
    "WorkerPool",
    "container_command",
    "finish",
    "forecast",
    "image_quark",
    "load_recipe",
    "local_command",
    "memory_free",
    "others_size",
    "read_source",
    "recipes_for",
    "run_workers",
]

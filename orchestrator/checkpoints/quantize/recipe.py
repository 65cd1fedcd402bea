"""Quantization recipes: data files under profiles/recipes/, validated strictly."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from orchestrator.core.catalog import Catalog, EntryKind
from orchestrator.core.errors import UsageError
from orchestrator.core.suggest import did_you_mean
from orchestrator.core.validation import StrictModel, Text, Word, read_model

MTP: Final = "{mtp}"  # in a pattern: the index of the MTP layer, equal to the model's number of layers
_FILES: Final = (".yaml", ".yml")


class Recipe(StrictModel):
    """A recipe for AMD Quark. Patterns are shell patterns of module names such as `model.layers.3.mlp.gate_proj`."""

    description: Text = Field(description="the unquantized modules, for a person who chooses")
    source: Text = Field(description="where it is published")
    model_types: Annotated[list[Word], Field(min_length=1)] = Field(
        description="`model_type` of supported configs, as in Quark's templates"
    )
    scheme: Literal["mxfp4"] = Field(description="the scheme of all other matrices")
    exclude: list[Word] = Field(description=f"unquantized modules; `{MTP}` is the index of the MTP layer")
    layers: dict[Word, Literal["ptpc_fp8"]] = Field(
        default={}, description="other schemes by pattern: `ptpc_fp8` is FP8 with a scale for each row"
    )

    def excluded(self, layers: int) -> list[str]:
        """Return the excluded patterns for a model with `layers` layers."""
        return [pattern.replace(MTP, str(layers)) for pattern in self.exclude]

    def schemes(self, layers: int) -> dict[str, str]:
        """Return other schemes by pattern; the first match counts."""
        return {pattern.replace(MTP, str(layers)): scheme for pattern, scheme in self.layers.items()}


def load_recipe(name_or_file: str, catalog: Catalog) -> Recipe:
    """Return a recipe by its name in the catalog, or from a file.

    Raises UsageError for an unknown name or a missing file, ProfileError with the location of every problem in it.
    """
    path = Path(name_or_file) if name_or_file.endswith(_FILES) else catalog.find(EntryKind.RECIPE, name_or_file)
    if path is None or not path.is_file():
        suggestion = did_you_mean(name_or_file, catalog.names(EntryKind.RECIPE))
        hint = suggestion if suggestion.endswith("?") else f"{suggestion}, or a .yaml file"
        raise UsageError(f"no recipe `{name_or_file}` found", hint=hint)
    return read_model(path, Recipe, catalog.display_path(path))

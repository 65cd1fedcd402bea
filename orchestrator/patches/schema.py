"""The schema of a folder under patches/. Validation is strict: an unknown key is an error."""

import re
from typing import Annotated, Final, Literal, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, field_validator, model_validator

from orchestrator.core.origin import Origin
from orchestrator.core.safe_paths import RelativePath
from orchestrator.core.validation import AbsolutePath, StrictModel, Text, VariableName
from orchestrator.patches.transforms import TRANSFORMS


def _version_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"`{text}` is not a range of versions such as `>=0.5.10,<0.5.15`") from error
    return text


VersionRange: TypeAlias = Annotated[str, AfterValidator(_version_range)]  # PEP 440


def _pattern(text: str) -> str:
    try:
        re.compile(text, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"invalid regular expression: {error}") from error
    return text


Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern)]


PathBelow: TypeAlias = Annotated[Text, AfterValidator(RelativePath)]
FileName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class Symptom(StrictModel):
    """The fault without the patch."""

    log: tuple[Text, ...] = Field(description="lines as they are in the server's log")
    effect: str = Field(description="what it costs, with public measurements")


class UpstreamFix(StrictModel):
    """Where the fix came from, or went to."""

    reference: Text = Field(description="owner/repository#number, or owner/repository@commit")
    merged: Text | None = Field(description="date of the merge, YYYY-MM-DD; null if it is not merged")
    released: Text | None = Field(description="first release with the fix; null if there is none")


class Applies(StrictModel):
    """The facts a plan must show for it to carry the patch; a null is no condition."""

    platforms: tuple[Literal["rocm", "cuda", "cpu"], ...]
    engine: VersionRange | None = Field(default=None, description="PEP 440 range of sglang versions")
    quantization: tuple[Text, ...] | None = None
    mtp: bool | None = Field(default=None, description="speculative decoding with the checkpoint's own MTP layer")
    min_speculative_steps: int | None = None


class SourcePattern(StrictModel):
    """Patterns to search for in a file (`re.MULTILINE`). At least one of `match` and `inactive_match` is given.

    With `defines`, the file is preprocessed as C++ with these macros: without comments and inactive branches. Python is
    normalized with `ast.unparse`: without comments, in single quotes, one statement per line. Other files are read as
    they are.
    """

    file: PathBelow = Field(
        description="a path below the target's root, or a bare name that is looked up anywhere below it (sglang moved "
        "its kernels between 0.5.16 and 0.5.17)"
    )
    defines: tuple[Text, ...] | None = Field(
        default=None, description="macros that the compiler defines, such as USE_ROCM"
    )
    match: Pattern | None = Field(default=None, description="pattern that the active code of the file contains")
    inactive_match: Pattern | None = Field(
        default=None, description="pattern that only inactive code contains; needs `defines`"
    )

    @model_validator(mode="after")
    def _has_pattern(self) -> "SourcePattern":
        if self.match is None and self.inactive_match is None:
            raise ValueError("a pattern needs `match` or `inactive_match`")
        if self.inactive_match is not None and self.defines is None:
            raise ValueError("`inactive_match` needs `defines`")
        return self


class Detect(StrictModel):
    """Rules that find in the sources whether a patch is needed.

    Any of `context` that is not found: not applicable. Any `present` that is found: the fix is present, from upstream
    or by this diff. Else, all of `needed` are found: it is needed. Else, where the files of `needed` exist: a
    conflict for a diff or a config, which must not be guessed at; not applicable for anything else. Else: not
    applicable.
    """

    context: tuple[SourcePattern, ...] | None = Field(
        default=None, description="the code that the patch changes, unless its file makes it clear"
    )
    needed: tuple[SourcePattern, ...]
    present: tuple[SourcePattern, ...]


class Variable(StrictModel):
    """A variable of the server's environment, with origin and source."""

    name: VariableName
    value: Text
    origin: Origin
    source: Text


class Diff(StrictModel):
    """A unified diff, applied without fuzz to the target's sources."""

    kind: Literal["diff"]
    file: FileName = Field(description="the diff, in the patch's folder; paths are relative to the target's root")


class ConfigTransform(StrictModel):
    """A transform of the checkpoint's config.json, written as an overlay."""

    kind: Literal["config"]
    transform: Text = Field(description="the transform's name in orchestrator/patches/transforms.py")

    @field_validator("transform")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in TRANSFORMS:
            raise ValueError(
                f"no transform `{name}` found; available: {', '.join(f'`{known}`' for known in TRANSFORMS)}"
            )
        return name


class EnvironmentPatch(StrictModel):
    """Variables of the server's environment."""

    kind: Literal["environment"]
    env: tuple[Variable, ...]


MOE_TABLE: Final = "moe-table"  # input of patches/aiter-fp4-moe-table, for a plan's own table


class AddedFile(StrictModel):
    """A file that a user makes, copied into the image, and the variables that lead the server to it."""

    kind: Literal["file"]
    input: FileName = Field(description="name of the input file in plans and builds")
    destination: AbsolutePath = Field(description="absolute path inside the image")
    env: tuple[Variable, ...]


class Patch(StrictModel):
    """One fix: its evidence, its conditions, how it acts, how it is verified."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: Text
    published: Text | None = Field(default=None, description="publication that documents this fix")
    target: Literal["sglang", "aiter", "checkpoint", "environment"]
    symptom: Symptom
    upstream: UpstreamFix
    applies: Applies
    detect: Detect
    apply: Annotated[Diff | ConfigTransform | EnvironmentPatch | AddedFile, Field(discriminator="kind")]
    verify: tuple[SourcePattern, ...] = Field(description="what the final image must contain if the patch was applied")
    removed_when: str = Field(description="when and why the patch drops itself")

    @model_validator(mode="after")
    def _is_reported_when_applied(self) -> "Patch":
        """Require a pattern for the applied diff; without it, a base image with the diff would be a conflict."""
        if isinstance(self.apply, Diff) and not self.detect.present:
            raise ValueError("a diff needs a pattern under `detect.present` that recognizes the applied diff")
        return self

    @property
    def sources(self) -> Literal["sglang", "aiter"]:
        """Return the package that `detect` and `verify` search."""
        return "aiter" if self.target == "aiter" else "sglang"

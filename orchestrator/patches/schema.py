"""What one folder under patches/ says. Read strictly: an unknown key is an error."""

from typing import Annotated, Literal, TypeAlias

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from orchestrator.core.origin import Origin


def _version_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"`{text}` is not a range of versions such as `>=0.5.10,<0.5.15`") from error
    return text


VersionRange: TypeAlias = Annotated[str, AfterValidator(_version_range)]  # PEP 440


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Symptom(_Strict):
    """What goes wrong without the patch."""

    log: tuple[str, ...] = Field(description="lines as they stand in the server's log")
    effect: str = Field(description="what it costs, with figures where they are public")


class Upstream(_Strict):
    """Where the fix came from, or went to."""

    reference: str = Field(description="owner/repository#number, or owner/repository@commit")
    merged: str | None = Field(description="date of the merge, YYYY-MM-DD; null where there was none")
    released: str | None = Field(description="first release that holds it; null where there is none")


class Applies(_Strict):
    """The facts a plan must show for it to carry the patch; a null is no condition."""

    platforms: tuple[Literal["rocm", "cuda", "cpu"], ...]
    engine: VersionRange | None = Field(default=None, description="PEP 440 range of sglang versions")
    quantisation: tuple[str, ...] | None = None
    mtp: bool | None = Field(default=None, description="speculative decoding with the checkpoint's own MTP layer")
    min_speculative_steps: int | None = None


class Probe(_Strict):
    """A regular expression (`re.MULTILINE`) and the file it is looked for in.

    `file` is a path below the target's root, or a bare name that is looked up anywhere below it (sglang moved its
    kernels between 0.5.16 and 0.5.17).
    """

    file: str
    match: str


class Detect(_Strict):
    """How the content of the sources decides.

    Any `present` that matches: the fix is there. Else all `needed` match: it is needed. Else, where a file of `needed`
    exists: a conflict for a diff, not applicable for anything else. Else: not applicable.
    """

    needed: tuple[Probe, ...]
    present: tuple[Probe, ...]


class Variable(_Strict):
    """A variable of the server's environment, and who stands behind its value."""

    name: str
    value: str
    origin: Origin
    source: str


class Diff(_Strict):
    """A unified diff, applied without fuzz to the target's sources."""

    kind: Literal["diff"]
    file: str = Field(description="the diff, in the patch's folder; paths are relative to the target's root")


class ConfigTransform(_Strict):
    """A transform of the checkpoint's config.json, written as an overlay."""

    kind: Literal["config"]
    transform: Literal["mtp-exclude"]


class Environment(_Strict):
    """Variables of the server's environment."""

    kind: Literal["environment"]
    env: tuple[Variable, ...]


class AddedFile(_Strict):
    """A file that a user makes, copied into the image, and the variables that lead the server to it."""

    kind: Literal["file"]
    input: str = Field(description="the name under which the file is given to a plan and to a build")
    destination: str = Field(description="absolute path inside the image")
    env: tuple[Variable, ...]


class Patch(_Strict):
    """One fix: its evidence, its conditions, how it acts, how it is verified."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    target: Literal["sglang", "aiter", "checkpoint", "environment"]
    symptom: Symptom
    upstream: Upstream
    applies: Applies
    detect: Detect
    apply: Annotated[Diff | ConfigTransform | Environment | AddedFile, Field(discriminator="kind")]
    verify: tuple[Probe, ...] = Field(description="what must match in the final image, for a patch that was applied")
    drops: str = Field(description="when and why the patch drops itself")

    @property
    def sources(self) -> Literal["sglang", "aiter"]:
        """Whose sources `detect` and `verify` look into."""
        return "aiter" if self.target == "aiter" else "sglang"

"""Coverage of a plan's MoE lookups by tuned rows: one state for each bucket of tokens."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import computed_field

from orchestrator.core.console import table
from orchestrator.kernels.keys import Key, Shape, bucket, buckets, fallbacks, key_of, rank_shapes
from orchestrator.kernels.rows import RowOrigin, TunedRow
from orchestrator.kernels.table import KernelNames, NameVerdict
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.fusion import Fusion, compute_fusion, is_mxfp4
from orchestrator.plan.plan import Plan

_DEFAULT_PREFILL = 131072  # without `--chunked-prefill-size`: all aiter buckets


class BucketState(StrEnum):
    """State of a bucket, the one word for it in every output.

    `derived` is a row of another shape, never measured; `fallback` the row for 32768 tokens used for 131072, aiter's
    own rule.
    """

    TUNED = "tuned"
    DERIVED = "derived"
    FALLBACK = "fallback"
    UNTUNED = "untuned"
    UNKNOWN_KERNEL = NameVerdict.UNKNOWN_KERNEL.value
    NOT_BUILT = NameVerdict.NOT_BUILT.value

    @property
    def runs_tuned(self) -> bool:
        """Whether a tuned kernel runs."""
        return self in {BucketState.TUNED, BucketState.DERIVED, BucketState.FALLBACK}


_ALWAYS = (BucketState.TUNED, BucketState.DERIVED, BucketState.FALLBACK, BucketState.UNTUNED)  # counted even if 0


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket; origin, location and kernels are those of its row, even if the kernels cannot run."""

    key: Key
    state: BucketState
    origin: RowOrigin | None = None
    location: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeyCoverage:
    """Coverage of one shape; `looked_up` is None if it depends on the checkpoint."""

    shape: Shape
    fused: bool
    looked_up: bool | None
    buckets: tuple[Bucket, ...]

    @property
    def untuned_keys(self) -> tuple[Key, ...]:
        """The keys without a usable tuned kernel."""
        return tuple(bucket.key for bucket in self.buckets if not bucket.state.runs_tuned)

    @property
    def label(self) -> str:
        """The column heading, e.g. `fused 257/9`."""
        return f"{'fused' if self.fused else 'unfused'} {self.shape.expert}/{self.shape.topk}"

    @property
    def summary(self) -> str:
        """Whether the server looks up the shape, and the number of buckets in each state, if above 0."""
        use = {True: "looked up", False: "not looked up", None: "looked up if the checkpoint requires it"}
        return f"{use[self.looked_up]}; {self._counts(())}"

    @property
    def counts(self) -> str:
        """The number of buckets in each state; the usual states appear even with 0."""
        return self._counts(_ALWAYS)

    def _counts(self, always: Collection[BucketState]) -> str:
        states = [bucket.state for bucket in self.buckets]
        return ", ".join(f"{states.count(item)} {item}" for item in BucketState if item in states or item in always)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Coverage of a plan by its `tables`, with and without a fused shared expert.

    `unknown` is the command that computes the coverage if only an image can tell, and was not read; then there are no
    `keys`. `workload` are the buckets that the plan's own workload uses, ascending.
    """

    profile: str
    layout: str
    gpu: str
    aiter: str | None
    tables: str
    unknown: str
    kernel_names_checked: bool
    fusion: Fusion
    keys: tuple[KeyCoverage, ...]
    workload: tuple[int, ...]

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support a decorated property
    @property
    def untuned_in_workload(self) -> tuple[int, ...]:
        """The buckets of the plan's own workload without a usable tuned kernel, ascending."""
        return tuple(sorted({key.token for key in self.untuned_keys} & set(self.workload)))

    @property
    def summary(self) -> str:
        """The coverage in one line."""
        counts = [f"{key.label}: {key.counts} of {len(key.buckets)}" for key in self.keys if key.looked_up is not False]
        workload_text = f"workload uses {_listed(self.workload)}"
        untuned = f"untuned in workload: {_listed(self.untuned_in_workload) or 'none'}"
        return f"{self.layout}, {'; '.join(counts)}; {workload_text}; {untuned}"

    @property
    def derived_keys(self) -> tuple[Key, ...]:
        """The keys with a derived row, in shapes that the server certainly looks up."""
        buckets = (bucket for shape in self.keys if shape.looked_up for bucket in shape.buckets)
        return tuple(bucket.key for bucket in buckets if bucket.state is BucketState.DERIVED)

    @property
    def untuned_keys(self) -> tuple[Key, ...]:
        """The keys without a usable tuned kernel, in shapes that the server may look up."""
        return tuple(key for shape in self.keys if shape.looked_up is not False for key in shape.untuned_keys)


def uses_tuned_table(plan: Plan) -> bool:
    """Return whether the plan's server runs a fused MXFP4 MoE, the only kind with its own table."""
    return queries_aiter_tables(plan) and is_mxfp4(plan)


def queries_aiter_tables(plan: Plan) -> bool:
    """Return whether the plan's server looks up a fused MoE in aiter's tables by a supported key."""
    quantized = is_mxfp4(plan) or plan.model.quantization == "fp8"
    return plan.hardware.vendor == "amd" and plan.model.moe is not None and quantized


def coverage_of(
    plan: Plan,
    rows: Iterable[TunedRow],
    *,
    checkpoint: MoeCheckpoint | None = None,
    names: KernelNames | None = None,
    aiter_commit: str | None = None,
    tables: str = "",
) -> Coverage:
    """Compute the coverage of a plan by `rows` in table order; the first of equal keys counts.

    `tables` names the sources of the rows. `aiter_commit` is the commit of an image, by default the plan's; `names`
    are its kernels, or None to skip the check of names. Raises ValueError for a plan without routed experts.
    """
    moe = checkpoint.moe if checkpoint else plan.model.moe
    fusion = compute_fusion(plan, checkpoint)
    shapes = rank_shapes(plan, moe)
    row_by_key = _index(rows, set(shapes))
    return Coverage(
        profile=plan.profile,
        layout=plan.layout.label + (f"×EP{plan.layout.ep}" if plan.layout.ep > 1 else ""),
        gpu=f"{plan.hardware.arch}, {plan.hardware.compute_units} CUs",
        aiter=aiter_commit or plan.engine.aiter_commit,
        tables=tables,
        unknown="",
        kernel_names_checked=names is not None or not is_mxfp4(plan),  # FP8 uses aiter's own rows only
        fusion=fusion,
        keys=tuple(
            KeyCoverage(
                shape=shape,
                fused=fused,
                looked_up=None if fusion.fused is None else fusion.fused == fused,
                buckets=tuple(_bucket(key, row_by_key, names) for key in lookup_keys(plan, shape)),
            )
            for shape, fused in shapes.items()
        ),
        workload=workload_buckets(plan),
    )


def lookup_keys(plan: Plan, shape: Shape) -> tuple[Key, ...]:
    """Return every key that a rank looks up: one per bucket, up to `--chunked-prefill-size` tokens."""
    return tuple(key_of(plan, shape, token=token) for token in buckets(_largest_prefill(plan)))


def workload_buckets(plan: Plan) -> tuple[int, ...]:
    """Return the buckets of decode steps with one to all running requests, and of a full prefill.

    A step verifies all draft tokens of all running requests: one request with 5/1/6 looks up 6 tokens.
    """
    facts = plan.serving
    drafts = facts.drafts.tokens if facts.drafts else 1
    running = facts.running or 1
    steps = {bucket(drafts * requests) for requests in range(1, running + 1)}
    return tuple(sorted({*steps, bucket(_largest_prefill(plan))}))


def _largest_prefill(plan: Plan) -> int:
    return plan.serving.prefill_chunk or _DEFAULT_PREFILL


def _index(rows: Iterable[TunedRow], shapes: set[Shape]) -> dict[Key, TunedRow]:
    row_by_key: dict[Key, TunedRow] = {}
    for row in rows:
        if row.key.shape in shapes and row.looked_up:
            row_by_key.setdefault(row.key, row)
    return row_by_key


def _bucket(key: Key, row_by_key: Mapping[Key, TunedRow], names: KernelNames | None) -> Bucket:
    tokens = (key.token, *fallbacks(key.token))
    match = next((row for token in tokens if (row := row_by_key.get(replace(key, token=token)))), None)
    if match is None:
        return Bucket(key=key, state=BucketState.UNTUNED)
    verdict = names.check_all(match.kernels, key.shape) if names else NameVerdict.KNOWN
    state = BucketState.TUNED if match.key.token == key.token else BucketState.FALLBACK
    if verdict is not NameVerdict.KNOWN:
        state = BucketState(verdict.value)
    elif match.origin is RowOrigin.DERIVED:
        state = BucketState.DERIVED
    return Bucket(key=key, state=state, origin=match.origin, location=match.location, kernels=match.kernels)


def to_text(coverage: Coverage) -> str:
    """Format as text: a line per bucket and a column per shape; if unknown, the command that computes the coverage."""
    head = f"{coverage.profile}: {coverage.layout} on {coverage.gpu}"
    if coverage.unknown:
        return f"{head}\ntuned kernels: {coverage.unknown}"
    source = f"aiter {coverage.aiter[:12]}" if coverage.aiter else "an unknown aiter"
    fused = {True: "fused", False: "not fused", None: "unknown"}[coverage.fusion.fused]
    lines = [f"{head}, {source}", f"tables: {coverage.tables}"]
    lines.append(f"shared expert: {fused}: {coverage.fusion.reason}")
    if coverage.fusion.hint:
        lines.append(f"  hint: {coverage.fusion.hint}")
    lines += [f"{key.label}: key {key.shape} ({key.summary})" for key in coverage.keys]
    lines.append(f"workload uses {_listed(coverage.workload)}")
    if not coverage.kernel_names_checked:
        lines.append(f"kernel names not checked: no list of kernels for {source}")
    rows = [
        (str(group[0].key.token), *(_cell(bucket) for bucket in group))
        for group in zip(*(key.buckets for key in coverage.keys), strict=True)
    ]
    return "\n".join([*lines, "", table(("tokens", *(key.label for key in coverage.keys)), rows)])


def _listed(tokens: Iterable[int]) -> str:
    return ", ".join(map(str, tokens))


def _cell(bucket: Bucket) -> str:
    """Return the state, with the origin of the row unless the state implies it."""
    if bucket.origin is None or bucket.state is BucketState.DERIVED:
        return bucket.state.value
    return f"{bucket.state.value} ({bucket.origin.value})"

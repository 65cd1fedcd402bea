"""Coverage: for every bucket of tokens a server looks up, which row answers, and whether its kernels exist."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.core.console import table
from orchestrator.kernels.keys import Key, Shape, bucket, buckets, fallbacks, key_of, rank_shapes
from orchestrator.kernels.rows import RowOrigin, TunedRow
from orchestrator.kernels.table import KernelNames, NameVerdict
from orchestrator.plan.facts import MoeCheckpoint
from orchestrator.plan.fusion import Fusion, decide_fusion, is_mxfp4
from orchestrator.plan.plan import Plan

_DEFAULT_PREFILL = 131072  # no `--chunked-prefill-size`: look at everything aiter distinguishes


class BucketState(StrEnum):
    """How a bucket fares."""

    COVERED = "covered"
    BORROWED = "borrowed"  # by 131072, from 32768: aiter's own rule, and no miss
    MISSING = "missing"
    UNKNOWN = NameVerdict.UNKNOWN.value
    NOT_GENERATED = NameVerdict.NOT_GENERATED.value

    @property
    def served(self) -> bool:
        """Whether a tuned kernel runs."""
        return self in {BucketState.COVERED, BucketState.BORROWED}


_COUNTED = ("tuned", "re-keyed", "borrowed", "missing")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket; `row` is what answers, also where its kernel cannot run."""

    key: Key
    state: BucketState
    row: TunedRow | None

    @property
    def word(self) -> str:
        """How it counts in a line: a row tuned for this key, one re-keyed to it, one borrowed, or none that runs."""
        if not self.state.served:
            return "missing"
        if self.row and self.row.origin is RowOrigin.REKEYED:
            return "re-keyed"
        return "borrowed" if self.state is BucketState.BORROWED else "tuned"


@dataclass(frozen=True, kw_only=True)
class KeyCoverage:
    """One shape's buckets; `expected` is whether the server looks it up (None: only the checkpoint can tell)."""

    shape: Shape
    fused: bool
    expected: bool | None
    buckets: tuple[Bucket, ...]

    @property
    def missing(self) -> tuple[Key, ...]:
        """The keys for which no tuned kernel runs."""
        return tuple(bucket.key for bucket in self.buckets if not bucket.state.served)

    @property
    def title(self) -> str:
        """Its name in a column."""
        return f"{'fused' if self.fused else 'unfused'} {self.shape.expert}/{self.shape.topk}"

    @property
    def summary(self) -> str:
        """Whether it is looked up, and how many buckets are in each state."""
        looked_up = {True: "looked up", False: "not looked up", None: "looked up if so decided"}[self.expected]
        counts = {state: sum(bucket.state is state for bucket in self.buckets) for state in BucketState}
        return f"{looked_up}; {', '.join(f'{count} {state.value}' for state, count in counts.items() if count)}"

    @property
    def counts(self) -> str:
        """How many buckets have a row tuned for them, a re-keyed one, a borrowed one, none."""
        words = [bucket.word for bucket in self.buckets]
        return ", ".join(f"{words.count(word)} {word}" for word in _COUNTED)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """A plan's coverage under both keys, and which of them counts."""

    profile: str
    layout: str
    gpu: str
    aiter: str | None
    names_checked: bool
    fusion: Fusion
    keys: tuple[KeyCoverage, ...]
    load: tuple[int, ...]  # the buckets that the plan's own load meets, ascending

    @property
    def missed_by_load(self) -> tuple[int, ...]:
        """The buckets of the plan's own load for which no tuned kernel runs, ascending."""
        return tuple(sorted({key.token for key in self.missing} & set(self.load)))

    @property
    def line(self) -> str:
        """The whole in a line."""
        counts = [f"{one.title}: {one.counts} of {len(one.buckets)}" for one in self.keys if one.expected is not False]
        met = f"its load meets {_listed(self.load)}"
        missed = f"without a tuned kernel: {_listed(self.missed_by_load) or 'none of them'}"
        return f"{self.layout}, {'; '.join(counts)}; {met}; {missed}"

    @property
    def missing(self) -> tuple[Key, ...]:
        """What the server would miss: under the key it looks up, or under both where that is open."""
        return tuple(key for one in self.keys if one.expected is not False for key in one.missing)


def uses_tuned_table(plan: Plan) -> bool:
    """Whether the plan's server asks aiter for a fused MXFP4 MoE: the kind that is given a table, tuned and judged."""
    return queries_aiter_tables(plan) and is_mxfp4(plan)


def queries_aiter_tables(plan: Plan) -> bool:
    """Whether the plan's server looks a fused MoE up in aiter's tables, by a key that is known here."""
    known = is_mxfp4(plan) or plan.model.quantization == "fp8"
    return plan.hardware.vendor == "amd" and plan.model.moe is not None and known


def coverage_of(
    plan: Plan,
    rows: Iterable[TunedRow],
    *,
    checkpoint: MoeCheckpoint | None = None,
    names: KernelNames | None = None,
    aiter_commit: str | None = None,
) -> Coverage:
    """What the rows answer to the plan's server.

    `aiter_commit` is the one that was found in an image, by default the plan's. `names` are its kernels, None where
    they are not known: kernels are not judged then. The rows come in the table's order: of equal keys the first
    answers. Raises ValueError for a plan without routed experts.
    """
    moe = checkpoint.moe if checkpoint else plan.model.moe
    fusion = decide_fusion(plan, checkpoint)
    shapes = rank_shapes(plan, moe)
    answers = _index(rows, set(shapes))
    return Coverage(
        profile=plan.profile,
        layout=_layout(plan),
        gpu=f"{plan.hardware.arch}, {plan.hardware.compute_units} CUs",
        aiter=aiter_commit or plan.engine.aiter_commit,
        names_checked=names is not None or not is_mxfp4(plan),  # FP8 is answered by aiter's own rows alone
        fusion=fusion,
        keys=tuple(
            KeyCoverage(
                shape=shape,
                fused=fused,
                expected=None if fusion.fused is None else fusion.fused == fused,
                buckets=tuple(_bucket(key, answers, names) for key in wanted_keys(plan, shape)),
            )
            for shape, fused in shapes.items()
        ),
        load=workload_buckets(plan),
    )


def wanted_keys(plan: Plan, shape: Shape) -> tuple[Key, ...]:
    """Every key a rank looks up: one a bucket, up to the largest batch it is given (`--chunked-prefill-size`)."""
    return tuple(key_of(plan, shape, token=token) for token in buckets(_largest_prefill(plan)))


def workload_buckets(plan: Plan) -> tuple[int, ...]:
    """The buckets that the plan's own load meets for certain: a decode step of one to all requests, a full prefill.

    A step verifies all draft tokens of each running request at once: one stream with 5/1/6 looks 6 tokens up.
    """
    facts = plan.serving
    drafts = facts.drafts.tokens if facts.drafts else 1
    running = facts.running or 1
    steps = {bucket(drafts * requests) for requests in range(1, running + 1)}
    return tuple(sorted({*steps, bucket(_largest_prefill(plan))}))


def _largest_prefill(plan: Plan) -> int:
    return plan.serving.prefill_chunk or _DEFAULT_PREFILL


def _index(rows: Iterable[TunedRow], shapes: set[Shape]) -> dict[Key, TunedRow]:
    answers: dict[Key, TunedRow] = {}
    for row in rows:
        if row.key.shape in shapes and row.looked_up:
            answers.setdefault(row.key, row)
    return answers


def _bucket(key: Key, answers: Mapping[Key, TunedRow], names: KernelNames | None) -> Bucket:
    tokens = (key.token, *fallbacks(key.token))
    found = next((row for token in tokens if (row := answers.get(replace(key, token=token)))), None)
    if found is None:
        return Bucket(key=key, state=BucketState.MISSING, row=None)
    verdict = names.judge_all(found.kernels, key.shape) if names else NameVerdict.KNOWN
    if verdict is not NameVerdict.KNOWN:
        return Bucket(key=key, state=BucketState(verdict.value), row=found)
    own = found.key.token == key.token
    return Bucket(key=key, state=BucketState.COVERED if own else BucketState.BORROWED, row=found)


def _layout(plan: Plan) -> str:
    layout = plan.layout
    parts = [f"TP{layout.tp}"]
    if layout.dp > 1:
        parts.append(f"DP{layout.dp}")
    if layout.ep > 1:
        parts.append(f"EP{layout.ep}")
    return "×".join(parts)


def to_dict(found: Coverage) -> dict[str, object]:
    """Coverage as JSON-able data."""
    return {
        "profile": found.profile,
        "layout": found.layout,
        "gpu": found.gpu,
        "aiter": found.aiter,
        "kernel_names_checked": found.names_checked,
        "shared_expert_fused": found.fusion.fused,
        "because": found.fusion.because,
        "hint": found.fusion.hint,
        "missing": len(found.missing),
        "load": list(found.load),
        "missed_by_load": list(found.missed_by_load),
        "keys": [_key_dict(one) for one in found.keys],
    }


def _key_dict(one: KeyCoverage) -> dict[str, object]:
    shape = one.shape
    return {
        "model_dim": shape.model_dim,
        "inter_dim": shape.inter_dim,
        "expert": shape.expert,
        "topk": shape.topk,
        "fused": one.fused,
        "looked_up": one.expected,
        "buckets": [_bucket_dict(bucket) for bucket in one.buckets],
    }


def _bucket_dict(bucket: Bucket) -> dict[str, object]:
    row = bucket.row
    return {
        "token": bucket.key.token,
        "state": bucket.state.value,
        "origin": row.origin.value if row else None,
        "where": row.where if row else None,
        "kernels": list(row.kernels) if row else [],
    }


def to_text(found: Coverage, *, tables: str) -> str:
    """A profile's coverage by `tables`: what decides between the keys, and a line a bucket with one column a key."""
    source = f"aiter {found.aiter[:12]}" if found.aiter else "an unknown aiter"
    answer = {True: "fused", False: "not fused", None: "not known yet"}[found.fusion.fused]
    lines = [f"{found.profile}: {found.layout} on {found.gpu}, {source}", f"tables: {tables}"]
    lines.append(f"shared expert: {answer}: {found.fusion.because}")
    if found.fusion.hint:
        lines.append(f"  hint: {found.fusion.hint}")
    lines += [f"{one.title}: key {one.shape} ({one.summary})" for one in found.keys]
    lines.append(f"the profile's own load meets {_listed(found.load)}")
    if not found.names_checked:
        lines.append(f"kernel names are not checked: {source} is not among the commits this tool knows")
    rows = [
        (str(group[0].key.token), *(_cell(bucket) for bucket in group))
        for group in zip(*(one.buckets for one in found.keys), strict=True)
    ]
    return "\n".join([*lines, "", table(("tokens", *(one.title for one in found.keys)), rows)])


def _listed(tokens: Iterable[int]) -> str:
    return ", ".join(map(str, tokens))


def _cell(bucket: Bucket) -> str:
    """The state; of a row that was not tuned for its key, the origin too."""
    if bucket.row is None:
        return bucket.state.value
    unmeasured = ", unmeasured" if bucket.row.origin is RowOrigin.REKEYED else ""
    return f"{bucket.state.value} ({bucket.row.origin.value}{unmeasured})"

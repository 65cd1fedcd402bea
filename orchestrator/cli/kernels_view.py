"""What `deploy kernels` shows to people."""

from orchestrator.commands.kernels import Built, Covered
from orchestrator.core.console import table
from orchestrator.kernels.coverage import Bucket, Coverage, KeyCoverage, count_states
from orchestrator.kernels.rows import RowOrigin


def coverage_text(covered: Covered) -> str:
    """A profile's coverage: the keys, what decides between them, and a line a bucket with one column a key."""
    found = covered.found
    source = f"aiter {found.aiter[:12]}" if found.aiter else "an unknown aiter"
    lines = [f"{found.profile}: {found.layout} on {found.gpu}, {source}", f"tables: {covered.tables}", *_fusion(found)]
    lines += [f"{_title(one)}: key {one.shape}{_verdict(one)}" for one in found.keys]
    if not found.names_checked:
        lines.append(f"kernel names are not checked: {source} is not among the commits this tool knows")
    header = ("tokens", *(_title(one) for one in found.keys))
    rows = [
        (str(group[0].key.token), *(_state(bucket) for bucket in group))
        for group in zip(*(one.buckets for one in found.keys), strict=True)
    ]
    return "\n".join([*lines, "", table(header, rows)])


def _fusion(found: Coverage) -> list[str]:
    answer = {True: "fused", False: "not fused", None: "open"}[found.fusion.fused]
    lines = [f"shared expert: {answer}: {found.fusion.because}"]
    return [*lines, f"  {found.fusion.remark}"] if found.fusion.remark else lines


def _title(one: KeyCoverage) -> str:
    return f"{'fused' if one.fused else 'unfused'} {one.shape.expert}/{one.shape.topk}"


def _verdict(one: KeyCoverage) -> str:
    looked_up = {True: "looked up", False: "not looked up", None: "looked up if so decided"}[one.expected]
    states = ", ".join(f"{count} {state}" for state, count in count_states(one.buckets).items())
    return f" ({looked_up}; {states})"


def _state(bucket: Bucket) -> str:
    """The state; of a row that was not tuned for its key, the origin too."""
    if bucket.row is None:
        return bucket.state.value
    unmeasured = ", unmeasured" if bucket.row.origin is RowOrigin.REKEYED else ""
    return f"{bucket.state.value} ({bucket.row.origin.value}{unmeasured})"


def table_text(built: Built) -> str:
    """What a built table holds, by origin, and what it answers."""
    counts = [f"{count} {origin.value}" for origin, count in built.table.origins.items() if count]
    lines = [f"{len(built.table.rows)} rows: {', '.join(counts) or 'none'}"]
    if built.table.origins[RowOrigin.REKEYED]:
        lines.append("re-keyed rows fit the shape and are unmeasured in speed: nobody has timed them under this key")
    if built.table.duplicates:
        lines.append(f"{built.table.duplicates} rows left out: another row has their key")
    if built.table.refused:
        lines.append(f"{len(built.table.refused)} rows left out: their kernels do not exist in the image's aiter")
    return "\n".join([*lines, *(f"{_title(one)}{_verdict(one)}" for one in built.found.keys)])

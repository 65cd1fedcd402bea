"""The text that prompts of text are cut from: what ships with the tool, or a file of the user's."""

from pathlib import Path
from typing import Final

from orchestrator.bench.workload import Workload
from orchestrator.core.catalogue import Catalogue, Kind
from orchestrator.core.errors import ProfileError

SHIPPED: Final = "alice"  # profiles/texts: in the public domain
MOST_BYTES: Final = 1 << 18  # of a text: its token ids, seven characters each at most, are one answer of the server
LEAST_TOKENS: Final = 1000  # in fewer, prompts would begin alike and come from cache


def read_text(workload: Workload, *, catalogue: Catalogue | None = None) -> str:
    """The text of a workload whose prompts are text, "" for another. Raises ProfileError for a file that is none."""
    if workload.prompts == "random":
        return ""
    catalogue = catalogue or Catalogue.from_environment()
    path = Path(workload.text_file) if workload.text_file else catalogue.path(Kind.TEXT, SHIPPED)
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MOST_BYTES else ""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ProfileError(
            f"`text_file` cannot be read: {reason}", where=str(path), hint="leave it out to take the text that ships"
        ) from error
    if size > MOST_BYTES:
        raise ProfileError(
            f"`text_file` has {size} bytes, at most {MOST_BYTES} are taken",
            where=str(path),
            hint=f"`head -c {MOST_BYTES - 4} {path} | iconv -c -t utf-8 > shorter.txt` cuts it",
        )
    return text

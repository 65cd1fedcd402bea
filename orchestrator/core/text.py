"""Text that others wrote: what of it is more than text to a terminal, to a file or to who reads it."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

# Control characters (C0, DEL, C1), the line ends and the changes of direction that Unicode adds (CVE-2021-42574), and
# bytes of an argument that are no UTF-8.
_HIDDEN: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# Two names that differ in these look alike: Default_Ignorable_Code_Point of Unicode 16 (DerivedCoreProperties.txt).
_ZERO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_A_LINE: Final = re.compile(f"[{_HIDDEN}{_ZERO_WIDTH}]")
_IN_LINES: Final = re.compile(f"(?![\\t\\n])[{_HIDDEN}]")
# Colors and weights of the terminal's own (SGR), not the parameter 8, which hides; the group keeps them in a `split`.
_COLORS: Final = re.compile(r"(\x1b\[(?:(?:[0-79]|[2-49]\d|10[0-7]|[34]8;5;\d{1,3})(?:;(?!m)|(?=m)))*m)")
_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_REPEATED: Final = 3  # lines of each kind: with fewer they are taken for different ones
_LOWER_ZEROS: Final = _ZEROS.lower()


def first_control_char(text: str, *, lines: bool = False) -> str | None:
    """The first character of it that is no text, None where all are; with `lines` it may have several of them."""
    found = (_IN_LINES if lines else _IN_A_LINE).search(text)
    return found[0] if found else None


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - of any shape
    """A JSON document of others. Raises ValueError, for one that is nested too deep as well."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def line_shapes(text: str, *, lower: bool = False) -> bytes:
    """Return `text` as bytes with each digit a zero, so that lines that differ in numbers only become the same.

    With `lower` its ASCII letters are in lower case.
    """
    return text.encode("utf-8", "surrogatepass").translate(_LOWER_ZEROS if lower else _ZEROS)


def repetitive(lines: Sequence[bytes]) -> bool:
    """Whether so many of these are the same that it pays to look at each once."""
    return len({*lines}) * _REPEATED <= len(lines)


def present_in(text: bytes, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Those pieces that stand in `text`; `rfind` is up to three times as quick as `in`, and a missing byte quicker."""
    pieces = tuple(pieces)
    missing = frozenset(byte for byte in frozenset(b"".join(pieces)) if byte not in text)
    return (piece for piece in pieces if missing.isdisjoint(piece) and text.rfind(piece) >= 0)


def printable(text: str, *, colors: bool = False) -> str:
    r"""The text with what a terminal would obey written out, `\x1b`; line ends, tabs and, if asked, colors stay."""
    pieces = _COLORS.split(text) if colors else [text]
    return "".join(piece if at % 2 else _IN_LINES.sub(_written_out, piece) for at, piece in enumerate(pieces))


def printable_json(text: str) -> str:
    r"""The same of a JSON document, as JSON: `\u009b`."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()

"""Untrusted text: control and invisible characters, JSON, and the shapes of lines."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

# Control characters (C0, DEL, C1), Unicode's line ends and bidirectional controls (CVE-2021-42574), and surrogates,
# which stand for bytes of an argument that are not UTF-8.
_HIDDEN: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# Invisible characters, so that two names may look alike: Default_Ignorable_Code_Point of Unicode 16
# (DerivedCoreProperties.txt).
_ZERO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_A_LINE: Final = re.compile(f"[{_HIDDEN}{_ZERO_WIDTH}]")
_IN_LINES: Final = re.compile(f"(?![\\t\\n])[{_HIDDEN}]")
# Terminal colors and styles (SGR) without parameter 8, which hides text; the group keeps them in a `split`.
_COLORS: Final = re.compile(r"(\x1b\[(?:(?:[0-79]|[2-49]\d|10[0-7]|[34]8;5;\d{1,3})(?:;(?!m)|(?=m)))*m)")
_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LOWER_ZEROS: Final = _ZEROS.lower()
_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def first_control_char(text: str, *, lines: bool = False) -> str | None:
    """Return the first control or invisible character of `text`, None if there is none.

    With `lines`, `text` may have several lines and tabs, and invisible characters are allowed.
    """
    match = (_IN_LINES if lines else _IN_A_LINE).search(text)
    return match[0] if match else None


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - of any shape
    """Parse an untrusted JSON document. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def objects_in(document: Mapping[str, object] | None, key: str) -> list[dict[str, Any]]:
    """Return the objects in the list at `key` of a document of any version; none if it has no such list."""
    items = (document or {}).get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list | tuple) else []


def gb(size: float) -> str:
    """Return a number of bytes as `62.5 GB`, or in MB or kB below one of the larger unit."""
    divisor, unit = next((unit for unit in _UNITS if abs(size) >= unit[0]), (1, "B"))
    return f"{size / divisor:.{int(divisor > 1)}f} {unit}"


def line_shapes(text: str, *, lower: bool = False) -> bytes:
    """Return `text` as bytes with every digit replaced by 0, so that lines that differ only in digits become equal.

    With `lower`, ASCII letters are converted to lower case.
    """
    return text.encode("utf-8", "surrogatepass").translate(_LOWER_ZEROS if lower else _ZEROS)


def printable(text: str, *, colors: bool = False) -> str:
    r"""Return text with control characters escaped, such as `\x1b`; line ends, tabs and, with `colors`, colors stay."""
    pieces = _COLORS.split(text) if colors else [text]
    return "".join(piece if at % 2 else _IN_LINES.sub(_written_out, piece) for at, piece in enumerate(pieces))


def printable_json(text: str) -> str:
    r"""Return a JSON document with control characters escaped as in JSON, such as `\u009b`; line ends and tabs stay."""
    return _IN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _written_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()

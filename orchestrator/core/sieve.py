"""A sieve for texts with escapes: whether one of them may hold a secret, told without reading it escape by escape.

A block is worked on as a whole, by a few operations on bytes, so that a log full of escapes costs little more than a
plain one. What the sieve lets pass may hold a secret and has to be read exactly (`known_secrets`); what it holds back
does not. To be quick it reads roughly: it resolves what is written by its number wherever that may stand, and compares
without the characters that escapes are made of.
"""

import binascii
import re
from collections.abc import Iterable
from typing import Final

PASSES: Final = 3  # escapes within escapes: JSON within JSON, in a message
_LEAST: Final = 4  # characters of a form that are searched for; with fewer, every text with escapes would pass
_FEW: Final = 16  # different colours: one is taken out of a whole block at a time

# What is searched for: the longest piece of a form that no reading changes. Escapes begin with one of these, and may
# take in what follows, a form's beginning too; what is not ASCII is written in more than one way.
_CHANGING: Final = re.compile(r"[^ -~]|[%\\=]")
_TAKEN_IN: Final = re.compile(r"(?:(?:u00|x)?[0-9A-Fa-f]{0,2}){0,4}.?")
_LEFT_OUT: Final = b"\\\"'/nrxu0"  # on both sides: what escapes are made of, or stand for

# `=` stands for what a number follows, as in quoted-printable: `=41`. What has a meaning here has none in the text.
_AS_WRITTEN: Final = bytes.maketrans(b"%=\0\1", b"=?\x7f\x7f")
_AS_READ: Final = bytes.maketrans(b"%\1", b"=\\")
_NUMBER: Final = re.compile(rb"=[0-9A-Fa-f]{2}")
# What may become an escape when one of two backslashes has gone, and what stands in between.
_X_APART: Final = re.compile(rb"x[0-9A-Fa-f\\][0-9A-Fa-f\\nr]")
_U_APART: Final = re.compile(rb"u[0\\][0\\nr]")
_COLOUR: Final = re.compile(rb"\x1b\[[0-<>?]*[ -/=]*[@-~]")


class Sieve:
    """Holds back texts that hold none of these forms of secrets."""

    def __init__(self, forms: Iterable[str]) -> None:
        """Keep of each form what to search for."""
        pieces = {_piece(form) for form in forms}
        self._pieces = tuple(pieces)
        self._all_pass = any(len(piece) < _LEAST for piece in pieces)

    def passes(self, text: str) -> bool:
        """Whether `text` may hold one of the forms, behind its line ends and escapes."""
        if self._all_pass:
            return True
        data = text.encode("utf-8", "surrogatepass").translate(_AS_WRITTEN, b"\r\n")
        for _ in range(PASSES):
            if self._finds(data):
                return True
            if not _is_marked(data):
                return False
            data = _read(data)
        return self._finds(data)

    def _finds(self, data: bytes) -> bool:
        bare = data.translate(None, _LEFT_OUT)
        return any(piece in bare for piece in self._pieces)


def _piece(form: str) -> bytes:
    """The longest piece of it that stands in every text where the form stands, escapes resolved."""
    if "[" in form:  # a colour's own
        return b""
    pieces = (_TAKEN_IN.sub("", piece, count=1) for piece in _CHANGING.split(form))
    return max((piece.encode().translate(None, _LEFT_OUT) for piece in pieces), key=len)


def _is_marked(data: bytes) -> bool:
    """Whether there is more than single letters to resolve, which are left out of the search."""
    if b"\x1b" in data or (b"=" in data and (b"\\" in data or _NUMBER.search(data))):
        return True
    if b"\\" not in data:
        return False
    apart = b"\\\\" in data and (_X_APART.search(data) or _U_APART.search(data))
    return b"\\x" in data or b"\\u00" in data or bool(apart)


def _read(data: bytes) -> bytes:
    """One layer of escapes resolved, at least."""
    if b"\x1b" in data:
        data = _without_colours(data)
    if b"\\" in data:
        data = data.replace(b"\\\\", b"\1")  # one of them, written by two: it begins no escape of this layer
        data = data.replace(b"\\n", b"").replace(b"\\r", b"").replace(b"\\x", b"=").replace(b"\\u00", b"=")
    if b"==" in data:  # of which quoted-printable would make one
        data = data.replace(b"==", b"=\0=").replace(b"==", b"=\0=")
    if b"=" in data:
        data = binascii.a2b_qp(data)
    return data.translate(_AS_READ, b"\0\r\n")


def _without_colours(data: bytes) -> bytes:
    at, seen = 0, 0
    while colour := _COLOUR.search(data, at):
        if (seen := seen + 1) > _FEW:
            return _COLOUR.sub(b"", data)
        data = data.replace(colour[0], b"")
        at = colour.start()
    return data

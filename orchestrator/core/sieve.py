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
_TAKEN_IN: Final = re.compile(r"(?:[xu0]*[0-9A-Fa-f]{0,2}){0,4}.?")
_LEFT_OUT: Final = b"\\\"'/nrxu0="  # on both sides: what escapes are made of, or stand for

# `=` stands for what a number follows, as in quoted-printable: `=41`. What has a meaning here has none in the text.
_AS_WRITTEN: Final = bytes.maketrans(b"%=\0\1", b"=?\x7f\x7f")
_AS_READ: Final = bytes.maketrans(b"%\1", b"=\\")
_AS_NUMBERS: Final = bytes.maketrans(b"\\", b"=")
_MARKS: Final = (b"=", b"%", b"\\", b"\x1b", b"\0", b"\r", b"\n")
_SAMPLE: Final = 1 << 10  # bytes
_LONGEST: Final = 6  # bytes of an escape: `\u0041`
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
        """Whether `text` may hold one of the forms, behind its line ends and escapes.

        What an escape may take in stands before a piece and not in it, so that a text need not be searched before it is
        first read; but for colours, which take in any number of digits.
        """
        if self._all_pass:
            return True
        data = text.encode("ascii", "ignore").translate(_AS_WRITTEN, b"\r\n")
        coloured, marked = b"\x1b" in data, _is_marked(data)
        if marked and not coloured and (read := _read_at_once(data)) is not None:
            return self._finds(read)
        for _ in range(PASSES):
            if not (coloured or marked):
                break
            if self._finds(data):
                return True
            before, data = data, _without_colours(data) if coloured else data
            if marked:
                data = _read(data)
            if data == before:
                return False
            coloured, marked = b"\x1b" in data, _is_marked(data)
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
    if b"=" in data and (b"\\" in data or _NUMBER.search(data)):
        return True
    if b"\\" not in data:
        return False
    if b"\x1b" in data or b"\\u" in data or b"\\x" in data:
        return True
    return b"\\\\" in data and (_X_APART.search(data) or _U_APART.search(data)) is not None


def _read(data: bytes) -> bytes:
    """One layer of escapes resolved, at least."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"\1")  # one of them, written by two: it begins no escape of this layer
        data = data.replace(b"\\n", b"").replace(b"\\r", b"").replace(b"\\x", b"=").replace(b"\\u00", b"=")
    if b"=" in data and _NUMBER.search(data):
        if b"==" in data:  # of which quoted-printable would make one
            data = data.replace(b"==", b"=\0=").replace(b"==", b"=\0=")
        data = binascii.a2b_qp(data)
    return data.translate(_AS_READ, b"\0\r\n")


def _read_at_once(data: bytes) -> bytes | None:
    """All escapes of a text as it was written, where each is a number and they make no others; None elsewhere."""
    if len(data) > _SAMPLE and _read_at_once(data[:_SAMPLE]) is None:
        return None
    torn = max(data.rfind(b"\\", -_LONGEST), data.rfind(b"=", -_LONGEST))  # perhaps: the text may end within an escape
    whole = _numbers(data[:torn] if torn >= 0 else data)
    if any(mark in whole for mark in _MARKS):
        return None
    return whole + _numbers(data[torn:]) if torn >= 0 else whole


def _numbers(data: bytes) -> bytes:
    data = data.translate(_AS_NUMBERS, b"xu")  # of `\x41` and `\u0041` this leaves `=41` and `=0041`
    return binascii.a2b_qp(data.replace(b"=00", b"="))


def _without_colours(data: bytes) -> bytes:
    at, seen = 0, 0
    while colour := _COLOUR.search(data, at):
        if (seen := seen + 1) > _FEW:
            return _COLOUR.sub(b"", data)
        data = data.replace(colour[0], b"")
        at = colour.start()
    return data

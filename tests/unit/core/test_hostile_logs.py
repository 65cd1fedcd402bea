"""Test that each line of a log is read exactly once, whatever bytes a server writes and however they arrive."""

import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.logs.lines import LogTail
from orchestrator.engine.log import StartupLogParser

# Line ends of every kind, multi-byte letters, invalid UTF-8, and words that the parser looks for.
CHUNKS = st.lists(
    st.binary(max_size=8)
    | st.text(max_size=8).map(str.encode)
    | st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"\n\n", "ü".encode()[:1], b"Load weight begin", b"loading: | 1/3 [", b"\0"]
    ),
    max_size=30,
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(CHUNKS)
@SHARED
def test_lines_do_not_depend_on_poll_timing(tmp_path: Path, pieces: list[bytes]) -> None:
    log = tmp_path / "server.log"
    log.unlink(missing_ok=True)
    tail, lines = LogTail(log), []
    for chunk in pieces:
        with log.open("ab") as file:
            file.write(chunk)
        lines += tail()
    lines += tail.to_end()

    assert lines == [line.decode(errors="replace") for line in re.split(rb"[\r\n]", b"".join(pieces)) if line]


@given(
    st.lists(
        st.text(max_size=60) | st.from_regex(r"(Load|load)ing.*\| [0-9]+/[0-9]+ \[|\[.{0,20}\] .*begin.*"), max_size=80
    )
)
def test_startup_parser_accepts_any_input_in_bounded_memory(lines: list[str]) -> None:
    reader = StartupLogParser()
    for line in lines:
        reader.feed(line)

    assert len(reader.names) == len(set(reader.names))
    assert len(reader.last_lines) <= 40
    assert reader.text

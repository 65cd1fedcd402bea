"""Test redaction at every output: known secrets in each encoding, text that looks secret, and ordinary text."""

import base64
import json
import tracemalloc
import urllib.parse
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import pytest
from docker.models.containers import Container
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.bench.streamed_response import StreamedResponse
from orchestrator.cli.exit_codes import _internal_error
from orchestrator.core import console
from orchestrator.core.errors import DeployError
from orchestrator.core.logs.lines import MAX_LINE_BYTES, redacted
from orchestrator.core.secrets import (
    REDACTED,
    Secret,
    StreamRedactor,
    excerpt,
    known,
    looks_secret,
    redact,
    redact_data,
    set_known,
)
from orchestrator.diagnose.match import diagnose
from orchestrator.hosts.report import PreflightReport, info
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.base import EXIT_FILE
from orchestrator.runtimes.docker.logs import save_log
from orchestrator.servers.exit_record import failure_reason, record_exit
from orchestrator.verify.report import failed

KEY: Final = 'sk-Ab9/"x\\Zq~~71+kpWv_0'
_BYTES: Final = KEY.encode()


def _in_base64(before: bytes, after: bytes) -> str:
    return base64.b64encode(before + _BYTES + after).decode()


SPELLINGS: Final = {
    "plain": KEY,
    "base64": _in_base64(b"", b""),
    "base64, url-safe": base64.urlsafe_b64encode(b"?" + _BYTES).decode(),
    "base64, one byte before": _in_base64(b":", b""),
    "base64, two bytes before": _in_base64(b"u:", b"."),
    "base64, between others": _in_base64(b"user:", b"@host"),
    "hexadecimal": _BYTES.hex(),
    "hexadecimal, capitals": _BYTES.hex().upper(),
    "percent, all": "".join(f"%{byte:02x}" for byte in _BYTES),
    "percent, capitals": "".join(f"%{byte:02X}" for byte in _BYTES),
    "percent, quote": urllib.parse.quote(KEY),
    "percent, of a query": urllib.parse.quote_plus(KEY),
    "JSON": json.dumps(KEY),
    "JSON, all escaped": "".join(f"\\u{byte:04x}" for byte in _BYTES),
    "JSON, escaped slash": json.dumps(KEY).replace("/", "\\/"),
    "JSON within JSON": json.dumps(json.dumps(KEY)),
    "all escaped, within JSON": json.dumps("".join(f"\\u{byte:04x}" for byte in _BYTES)),
    "repr": repr(KEY),
    "repr of bytes": "".join(f"\\x{byte:02x}" for byte in _BYTES),
}
_MARGINS: Final = {"base64, between others": (7, 8)}  # characters at the ends that encode only the neighbors


def reveals(output: str, spelling: str, margins: tuple[int, int] = (0, 0)) -> bool:
    """Return whether the output contains eight consecutive characters of a spelling."""
    output, spelling = ("".join(text.split()) for text in (output, spelling))
    significant = spelling[margins[0] : len(spelling) - margins[1]]
    return any(significant[at : at + 8] in output for at in range(len(significant) - 7))


class ExitedContainer:
    def __init__(self, log: str) -> None:
        self.log = log.encode()

    def logs(self, **_: object) -> Iterator[bytes]:
        yield from (self.log[at : at + 5] for at in range(0, len(self.log), 5))


class Outputs:
    """Every output of the tool for a text; each method returns the output."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def info(self, text: str) -> str:
        console.info(text)
        return self._capsys.readouterr().err

    def show_error(self, text: str) -> str:
        console.show_error(DeployError("a failure", details=text, hint=text))
        return self._capsys.readouterr().err

    def print_data(self, text: str) -> str:
        console.print_data(text)
        return self._capsys.readouterr().out

    def print_json(self, text: str) -> str:
        console.print_json({"each": [{"text": text}]})
        return self._capsys.readouterr().out

    def progress(self, text: str) -> str:
        console.Progress().update(text)
        return self._capsys.readouterr().err

    def streamed_response(self, text: str) -> str:
        stream = StreamRedactor()
        return "".join(map(stream.feed, text)) + stream.close()

    def failed_request(self, text: str) -> str:
        answer = StreamedResponse(max_tokens=1)
        answer.fail("http-500", text)
        assert answer.failure is not None
        return answer.failure[1]

    def exit_record(self, text: str) -> str:
        record_exit(RunDir(self._folder), failure_reason(DeployError(text)))
        return (self._folder / EXIT_FILE).read_text()

    def preflight_report(self, text: str) -> str:
        report = PreflightReport(profile="owl", findings=(info("proxy", text, "none"),))
        return json.dumps(report.to_dict())

    def smoke_evidence(self, text: str) -> str:
        return failed(text).result("check", seconds=1).evidence

    def diagnosis(self, text: str) -> str:
        return diagnose([f"OOMKilled {text}"]).to_text()

    def traceback_file(self, text: str) -> str:
        try:
            float(text)
        except ValueError as error:
            file = Path(_internal_error(error).hint.split("`")[1])
        try:
            return file.read_text()
        finally:
            file.unlink()

    def server_log(self, text: str) -> str:
        data = f"begins {text}\nends\n".encode()
        return "".join(redacted(data[at : at + 5] for at in range(0, len(data), 5)))

    def container_log(self, text: str) -> str:
        save_log(cast("Container", ExitedContainer(text)), self._folder)
        return (self._folder / "server.log").read_text()


OUTPUTS: Final = sorted(name for name in vars(Outputs) if not name.startswith("_"))


@pytest.mark.parametrize("location", OUTPUTS)
def test_known_secret_is_redacted_in_every_encoding(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, spelling in SPELLINGS.items():
        set_known(())
        (folder := tmp_path / name.replace(" ", "-")).mkdir()
        show: Callable[[str], str] = getattr(Outputs(folder, capsys), location)
        assert "here" in show("here it is: x")
        Secret(KEY)
        shown = show(f"here it is: {spelling} and more")
        assert REDACTED in shown, name
        assert not reveals(shown, spelling, _MARGINS.get(name, (0, 0))), name


@given(st.sampled_from(sorted(SPELLINGS)), st.lists(st.integers(0, 400), max_size=6))
def test_stream_redacts_secrets_across_chunk_boundaries(name: str, cuts: list[int]) -> None:
    set_known([KEY])
    spelling = SPELLINGS[name]
    text = f"it is {spelling}, and so on"
    at = sorted({0, *(cut % len(text) for cut in cuts), len(text)})
    stream = StreamRedactor()
    shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(at)) + stream.close()
    assert not reveals(shown, spelling, _MARGINS.get(name, (0, 0)))
    assert shown.startswith("it is ")
    assert shown.endswith(", and so on")


def test_stream_buffers_only_potential_secrets() -> None:
    Secret("sk-0123456789")
    stream = StreamRedactor()
    assert stream.feed("the server is ready\n") == "the server is ready\n"
    assert stream.feed("ask sk-01") == "ask "
    assert stream.feed("2x") == "sk-012x"
    assert stream.feed(" sk-0123") == " "
    assert stream.feed("456789.") == f"{REDACTED}."
    assert stream.feed("sk") == ""
    assert stream.close() == "sk"


def test_overlapping_secrets_are_redacted_together() -> None:
    set_known(["abcdefgh-0123", "gh-0123-ijklmnop"])
    text = "an abcdefgh-0123-ijklmnop."
    assert redact(text) == f"an {REDACTED}."
    stream = StreamRedactor()
    assert "".join(map(stream.feed, text)) + stream.close() == f"an {REDACTED}."
    set_known(["abcdefgh-0123-abc"])
    assert redact("abcdefgh-0123-abcdefgh-0123-abc") == REDACTED


@pytest.mark.parametrize("size", [5, 1 << 16])
def test_line_over_1_mib_is_replaced_with_notice(size: int) -> None:
    set_known([KEY])
    tail_length = 70_000
    for beyond in (0, 3, len(KEY), 40):  # the limit is before, inside and after the key
        line = b"x" * (MAX_LINE_BYTES - beyond) + KEY.encode() + b"api_key='" + b"y" * tail_length
        data = b"before\n" + line + b"\nafter\n" + line + b"\nthe end"
        shown = "".join(redacted(data[at : at + size] for at in range(0, len(data), size)))
        message = "(a line of more than 1 MiB is left out)"
        assert shown.splitlines() == ["before", message, "after", message, "the end"]
        if size == 5:
            return


def test_excerpt_redacts_before_truncating() -> None:
    Secret(KEY)
    for max_length in range(1, 60):
        assert not reveals(excerpt(f"a long introduction: {KEY}", max_length), KEY)
    assert excerpt(b"\xff" + KEY.encode(), 20) == f"\ufffd{REDACTED}"


def test_text_around_a_secret_is_kept() -> None:
    Secret("sk-0123456789")
    assert redact("(sk-0123456789), sk-012345678, sk-0123456789") == f"({REDACTED}), sk-012345678, {REDACTED}"
    assert redact(f"{'x' * 70_000}sk-0123456789\ny") == f"{'x' * 70_000}{REDACTED}\ny"


def test_only_string_values_are_redacted() -> None:
    set_known(["name", "12345678"])
    data = {"name": ("a name", 12345678, None, [True, "12345678"])}
    assert redact_data(data) == {"name": [f"a {REDACTED}", 12345678, None, [True, REDACTED]]}


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("EMPTY", "key EMPTY, not EMPTYING", f"key {REDACTED}, not EMPTYING"),
        ("EMPTY", "RU1QVFk= 454d505459", "RU1QVFk= 454d505459"),  # short secrets are redacted only literally
        ("abc", "abc", "abc"),
        ("", "nothing", "nothing"),
    ],
)
def test_short_secret_does_not_redact_ordinary_text(secret: str, text: str, shown: str) -> None:
    Secret(secret)
    assert redact(text) == shown


def test_secret_with_invalid_utf8_is_redacted() -> None:
    Secret("sk-\udcff-0123456789")  # a byte from the environment that is invalid UTF-8
    assert redact("a sk-\udcff-0123456789") == f"a {REDACTED}"


def test_text_containing_secrets_registers_only_the_secrets() -> None:
    Secret("sk-0123456789")
    text = Secret.around('{"api-key": "sk-0123456789"}')
    assert (str(text), bool(text), known()) == (REDACTED, True, ("sk-0123456789",))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ServerArgs(api_key='it\\'s', tp=8)", f"ServerArgs(api_key='{REDACTED}', tp=8)"),
        ('{"api_key": "sk-1", "admin_api_key": null}', f'{{"api_key": "{REDACTED}", "admin_api_key": null}}'),
        ('{\\"api_key\\": \\"sk-1\\"}', f'{{\\"api_key\\": \\"{REDACTED}\\"}}'),
        ("api_key='cut here", f"api_key='{REDACTED}"),
        ("SGLANG_API_KEY=zz api_key_env=KEY", f"SGLANG_API_KEY={REDACTED} api_key_env=KEY"),
        ("x-api-key: zz", f"x-api-key: {REDACTED}"),
        ("--api-key zz --tp 8", f"--api-key {REDACTED} --tp 8"),
        ("['--admin-api-key', 'zz']", f"['--admin-api-key', '{REDACTED}']"),
        ("ssl_keyfile_password='a b'", f"ssl_keyfile_password='{REDACTED}'"),
        ("--ssl-keyfile-password zz", f"--ssl-keyfile-password {REDACTED}"),
        ("HF_TOKEN=zz password: 'a b'", f"HF_TOKEN={REDACTED} password: '{REDACTED}'"),
        ("Authorization: Bearer abc.def-1", f"Authorization: Bearer {REDACTED}"),
        ("Authorization: Basic dXNlcjprZXk=", f"Authorization: Basic {REDACTED}"),
        ('{\\"Authorization\\": \\"Basic c2Vj\\"}', f'{{\\"Authorization\\": \\"Basic {REDACTED}\\"}}'),
        ("'authorization': 'Basic c2VjcmV0'", f"'authorization': 'Basic {REDACTED}'"),
        ("Authorization:\nBasic YWJjZGVm", f"Authorization:\nBasic {REDACTED}"),
        ("hf_0123456789abcdefXYZ", REDACTED),
        ("HTTPS_PROXY=http://me:pa55@proxy:3128", f"HTTPS_PROXY=http://me:{REDACTED}@proxy:3128"),
        (
            "Looking in indexes: https://u:1234@pypi.example/simple/",
            f"Looking in indexes: https://u:{REDACTED}@pypi.example/simple/",
        ),
        ("git+https://x-access-token:t0k@h.org/a/b@v1", f"git+https://x-access-token:{REDACTED}@h.org/a/b@v1"),
        ("redis://:p@ss,w\\'d@[::1]:6379/0", f"redis://:{REDACTED}@[::1]:6379/0"),
        ('"http:\\/\\/me:pa%40@proxy"', f'"http:\\/\\/me:{REDACTED}@proxy"'),
    ],
)
def test_secret_like_text_is_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown
    assert looks_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=16, #token: 91000, token usage: 0.10, max_total_num_tokens=32768, eos_token='<|im_end|>'",
        "the token is required, a token is invalid; the key is missing; a key is not set; password is wrong",
        "ServerArgs(api_key=None, admin_api_key=None, ssl_keyfile_password=None, hf_chat_template_name=None)",
        "a basic configuration, Basic training of models, the bearer of news",
        "server.api_key_env names the variable; hf_config, hf_quant_config.json, hf_overrides",
        "api_key=[REDACTED], hf_token: 151643, password=8",
        "http://host:30000/path@x, http://host:30000?to=a@b, http://host:30000 me@host.org, http://[::1]:30000/a:b@c",
        "ssh://user@host, ssh://user:@host, http://me@[::1]:30000, scp me@host:/a, https://h/see:me@host.org",
        'tcp://127.0.0.1:29500, ["http://a:1","me@b"], docker://sglang:v0.5.14@sha256:0123abcd',
        "https://me:****@pypi.example/simple",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) == text
    assert not looks_secret(text)


def test_real_logs_are_not_redacted() -> None:
    logs = [path for path in Path(__file__).parents[1].rglob("*.log") if "real" in path.name]
    assert logs
    Secret("sk-0123456789")
    for path in logs:
        text = path.read_text(errors="replace")
        assert redact(text) == text, path.name


@given(st.text(alphabet="İé重\udcffK"), st.sampled_from(["api_key='", "API_KEY='", "Authorization: BASIC "]))
def test_unicode_before_secret_does_not_shift_redaction(before: str, lead: str) -> None:
    """The lower case of `İ` has two characters."""
    assert redact(f"{before}{lead}Zq0lkjh' {before}") == f"{before}{lead}{REDACTED}' {before}"


@pytest.mark.parametrize(
    "line",
    [b"x" * 100, b'\\"' * 50, b"%41" * 30, b"a\n" * 50, b"\x1b[0m" * 30, b"api_key=" * 12, b"\r" * 100],
    ids=["letters", "quotes", "percent", "short lines", "colors", "keys", "returns"],
)
def test_log_is_redacted_in_bounded_memory(line: bytes) -> None:
    Secret(KEY)
    piece = (line * (65536 // len(line)))[: 1 << 16]
    tracemalloc.start()
    shown = sum(block.count(REDACTED) for block in redacted([*[piece] * 17, b"\n", KEY.encode(), b"\n", *[piece] * 4]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shown
    assert peak < 32 << 20


SLOW_TO_SCAN: Final = (
    *("api_key", "api_key=", "api_key='", "key\\\\", "key   ", "password=\\'", "-api-key '", "hf_", "hf_token\\"),
    *("bearer ", "authorization: ", "authorization\\", "http://a", "http:\\\\", "://:", "://a:b", "basic ", "\\", "'"),
)


@pytest.mark.timeout(60)  # a quadratic search of 1 MiB takes hours
@pytest.mark.parametrize("piece", SLOW_TO_SCAN)
def test_redaction_time_is_linear_in_text_length(piece: str) -> None:
    Secret("aaaaaaaaaaaaaaaab")
    for end in ("", "'", "a" * (1 << 19)):
        text = piece * ((1 << 19) // len(piece)) + end
        assert len(redact(text)) <= 11 * len(text)

"""What is taken out of a text: known secrets in every form at every place, lookalikes, and nothing else."""

import base64
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import pytest
from docker.models.containers import Container
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.streamed_response import Answer
from orchestrator.cli.exit_codes import _of_this_tool
from orchestrator.core import console, known_secrets, lookalikes, redaction
from orchestrator.core.errors import DeployError
from orchestrator.core.known_secrets import know, known
from orchestrator.core.logs.lines import redacted
from orchestrator.core.lookalikes import Allowance, merged, without
from orchestrator.core.redaction import REDACTED, Stream, excerpt, looks_secret, redact
from orchestrator.core.secret import Secret
from orchestrator.diagnose.match import diagnose
from orchestrator.hosts.report import PreflightReport, info
from orchestrator.runs.run_dir import RunDir
from orchestrator.runtimes.docker.logs import save_log
from orchestrator.servers.exit_record import ENDING_FILE, keep_ending, why_failed
from orchestrator.verify.report import failed
from orchestrator.verify.smoke import _result

KEY: Final = 'sk-Ab9/"x\\Zq~~71+kpWv_0'
_BYTES: Final = KEY.encode()


def _in_base64(before: bytes, after: bytes) -> str:
    return base64.b64encode(before + _BYTES + after).decode()


FORMS: Final = {
    "plain": KEY,
    "base64": _in_base64(b"", b""),
    "base64, url-safe": base64.urlsafe_b64encode(b"?" + _BYTES).decode(),
    "base64, one byte before": _in_base64(b":", b""),
    "base64, two bytes before": _in_base64(b"u:", b"."),
    "base64, between others": _in_base64(b"user:", b"@host"),
    "hexadecimal": _BYTES.hex(),
    "hexadecimal, capitals": _BYTES.hex().upper(),
    "percent, all": "".join(f"%{byte:02x}" for byte in _BYTES),
    "percent, in part": "".join(f"%{byte:02X}" if index % 3 else chr(byte) for index, byte in enumerate(_BYTES)),
    "JSON": json.dumps(KEY),
    "JSON, all escaped": "".join(f"\\u{byte:04x}" for byte in _BYTES),
    "JSON, escaped slash": json.dumps(KEY).replace("/", "\\/"),
    "JSON within JSON": json.dumps(json.dumps(KEY)),
    "repr of bytes": "".join(f"\\x{byte:02x}" for byte in _BYTES),
    "colours": "\x1b[1;31m".join(KEY),
    "colours in JSON": json.dumps("\x1b[0m".join(KEY)),
}
BROKEN: Final = {
    "a line end": f"{KEY[:9]}\n{KEY[9:]}",
    "line ends everywhere": "\r\n".join(KEY),
    "base64, wrapped": f"{FORMS['base64'][:7]}\n{FORMS['base64'][7:]}",
    "a line end in JSON, as a number": f"{KEY[:5]}\\u000a{KEY[5:]}",
    "a line end in JSON": json.dumps(f"{KEY[:9]}\n{KEY[9:]}"),
}
_BESIDE: Final = {"base64, between others": (7, 8)}  # characters of a form that tell of its neighbours only


def tells(shown: str, form: str, beside: tuple[int, int] = (0, 0)) -> bool:
    """Whether eight characters of a form in a row are shown."""
    shown, form = ("".join(text.split()) for text in (shown, form))
    telling = form[beside[0] : len(form) - beside[1]]
    return any(telling[at : at + 8] in shown for at in range(len(telling) - 7))


class Finished:
    """A container that has ended."""

    def __init__(self, log: str) -> None:
        self.log = log.encode()

    def logs(self, **_: object) -> Iterator[bytes]:
        yield from (self.log[at : at + 5] for at in range(0, len(self.log), 5))


class Places:
    """Every way a text takes out of this tool; each gives back what has come out."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def say(self, text: str) -> str:
        console.say(text)
        return self._capsys.readouterr().err

    def error(self, text: str) -> str:
        console.show_error(DeployError("a failure", details=text, hint=text))
        return self._capsys.readouterr().err

    def out(self, text: str) -> str:
        console.out(text)
        return self._capsys.readouterr().out

    def out_json(self, text: str) -> str:
        console.out_json({"each": [{"text": text}]})
        return self._capsys.readouterr().out

    def progress(self, text: str) -> str:
        console.Progress().update(text)
        return self._capsys.readouterr().err

    def streamed_answer(self, text: str) -> str:
        stream = Stream()
        return "".join(map(stream.feed, text)) + stream.close()

    def requests_jsonl(self, text: str) -> str:
        answer = Answer(tokens=1)
        answer.fail("http-500", text)
        assert answer.failure is not None
        return answer.failure[1]

    def end_of_a_run(self, text: str) -> str:
        keep_ending(RunDir(self._folder), why_failed(DeployError(text)))
        return (self._folder / ENDING_FILE).read_text()

    def machine_of_a_run(self, text: str) -> str:
        report = PreflightReport(profile="owl", findings=(info("proxy", text, "none"),))
        return json.dumps(report.to_dict())

    def smoke_evidence(self, text: str) -> str:
        return _result("check", failed(text), seconds=1).evidence

    def diagnosis(self, text: str) -> str:
        return diagnose([f"OOMKilled {text}"]).to_text()

    def fault_file(self, text: str) -> str:
        try:
            float(text)
        except ValueError as fault:
            file = Path(_of_this_tool(fault).hint.split("`")[1])
        try:
            return file.read_text()
        finally:
            file.unlink()

    def server_log(self, text: str) -> str:
        data = f"begins {text}\nends\n".encode()
        return "".join(redacted(data[at : at + 5] for at in range(0, len(data), 5)))

    def container_log(self, text: str) -> str:
        save_log(cast("Container", Finished(text)), self._folder)
        return (self._folder / "server.log").read_text()


PLACES: Final = sorted(name for name in vars(Places) if not name.startswith("_"))


@pytest.fixture
def places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Places:
    return Places(tmp_path, capsys)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FORMS)
def test_a_known_secret_comes_out_nowhere_in_no_form(places: Places, name: str, place: str) -> None:
    form = FORMS[name]
    show: Callable[[str], str] = getattr(places, place)
    assert "here" in show("here it is: x")
    Secret(KEY)
    shown = show(f"here it is: {form} and more")
    assert REDACTED in shown
    assert not tells(shown, form, _BESIDE.get(name, (0, 0)))


@pytest.mark.parametrize("place", sorted({*PLACES} - {"smoke_evidence", "diagnosis"}))  # of one line each
@pytest.mark.parametrize("form", BROKEN.values(), ids=BROKEN)
def test_nor_where_line_ends_break_it(places: Places, form: str, place: str) -> None:
    Secret(KEY)
    shown = getattr(places, place)(f"here it is: {form} and more")
    assert REDACTED in shown
    assert not tells(shown, form)


@given(st.sampled_from(sorted({**FORMS, **BROKEN})), st.lists(st.integers(0, 400), max_size=6))
def test_a_stream_hides_a_secret_wherever_it_is_cut(name: str, cuts: list[int]) -> None:
    know([KEY])
    form = {**FORMS, **BROKEN}[name]
    text = f"it is {form}, and so on"
    at = sorted({0, *(cut % len(text) for cut in cuts), len(text)})
    stream = Stream()
    shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(at)) + stream.close()
    assert not tells(shown, form, _BESIDE.get(name, (0, 0)))
    assert shown.startswith("it is ")
    assert shown.endswith(", and so on")


def test_a_stream_holds_back_no_more_than_what_may_be_a_secret() -> None:
    Secret("sk-0123456789")
    stream = Stream()
    assert stream.feed("the server is ready\n") == "the server is ready\n"
    assert stream.feed("as") == "as"  # less than four characters tell nothing
    assert stream.feed("k sk-01") == "k "
    assert stream.feed("2x") == "sk-012x"
    assert stream.feed(" sk-0123") == " "
    assert stream.feed("456789.") == f"{REDACTED}."
    assert stream.feed(" sk-0" + "\n" * 5000) == " sk-0" + "\n" * 5000  # not for ever
    assert stream.close() == ""


def test_a_secret_is_hidden_in_a_line_that_is_cut_for_its_length() -> None:
    Secret(KEY)
    for beyond in range(-4, 30, 3):  # the cut stands 4,096 characters before the end of what is there by then
        line = b"x" * ((17 << 16) - 4096 - beyond) + KEY.encode() + b"y" * 70_000
        shown = "".join(redacted(line[at : at + 65536] for at in range(0, len(line), 65536)))
        assert not tells(shown, KEY)
        assert shown.count("y") == 70_000


def test_what_looks_like_a_secret_is_not_torn_by_such_a_cut() -> None:
    for beyond in range(-4, 50, 5):
        line = b" " * ((17 << 16) - 4096 - beyond) + b"api_key='wJ4-zTq8-mMv2-nobody-told-of-it' " + b"y" * 70_000
        shown = "".join(redacted(line[at : at + 65536] for at in range(0, len(line), 65536)))
        assert f"api_key='{REDACTED}'" in shown
        assert not tells(shown, "wJ4-zTq8-mMv2-nobody-told-of-it")


def test_a_secret_is_hidden_before_a_text_is_cut() -> None:
    Secret(KEY)
    for most in range(1, 60):
        assert not tells(excerpt(f"a long introduction: {KEY}", most), KEY)
    assert excerpt(b"\xff" + KEY.encode(), 20) == f"\ufffd{REDACTED}"


def test_a_secret_is_found_wherever_it_stands_in_a_long_text() -> None:
    Secret(KEY)
    for before in (4090, 65530, 69626):
        assert redact(f"{'x' * before}{KEY}{'y' * 5000}") == f"{'x' * before}{REDACTED}{'y' * 5000}"


def test_what_stands_around_a_secret_stays() -> None:
    Secret("sk-0123456789")
    assert redact("(sk-0123456789), sk-012345678, sk-0123456789") == f"({REDACTED}), sk-012345678, {REDACTED}"
    assert redact(f"a b\n{'sk-%30123456789'}\nc") == f"a b\n{REDACTED}\nc"


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("EMPTY", "key EMPTY, not EMPTYING", f"key {REDACTED}, not EMPTYING"),
        ("EMPTY", "RU1QVFk= 454d505459", "RU1QVFk= 454d505459"),  # in no other form
        ("abc", "abc", "abc"),
        ("", "nothing", "nothing"),
    ],
)
def test_a_short_secret_blanks_out_no_ordinary_text(secret: str, text: str, shown: str) -> None:
    Secret(secret)
    assert redact(text) == shown


def test_a_secret_that_is_no_text_is_one_all_the_same() -> None:
    Secret("sk-\udcff-0123456789")  # a byte of the environment that is no UTF-8
    assert redact("a sk-\udcff-0123456789") == f"a {REDACTED}"


def test_a_text_around_secrets_is_not_known_as_a_whole() -> None:
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
        ("Authorization: Bearer abc.def-1", f"Authorization: Bearer {REDACTED}"),
        ("Authorization: Basic dXNlcjprZXk=", f"Authorization: Basic {REDACTED}"),
        ("'authorization': 'Basic c2VjcmV0'", f"'authorization': 'Basic {REDACTED}'"),
        ("Authorization:\nBasic YWJjZGVm", f"Authorization:\nBasic {REDACTED}"),
        ("sent Basic dXNlcjprZXk= to it", f"sent Basic {REDACTED} to it"),
        ("your token is abc123def456.", f"your token is {REDACTED}"),
        ("Incorrect API key provided: sk-12ab34cd", f"Incorrect API key provided: {REDACTED}"),
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
def test_what_looks_like_a_secret_is_taken_out(text: str, shown: str) -> None:
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
        "api_key=[REDACTED]",
        "http://host:30000/path@x, http://host:30000?to=a@b, http://host:30000 me@host.org, http://[::1]:30000/a:b@c",
        "ssh://user@host, ssh://user:@host, http://me@[::1]:30000, scp me@host:/a, https://h/see:me@host.org",
        'tcp://127.0.0.1:29500, ["http://a:1","me@b"], docker://sglang:v0.5.14@sha256:0123abcd',
        "https://me:****@pypi.example/simple",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text
    assert not looks_secret(text)


def test_no_line_of_a_real_log_is_taken_for_a_secret() -> None:
    logs = [path for path in Path(__file__).parents[1].rglob("*.log") if "real" in path.name]
    assert logs
    Secret("sk-0123456789")
    for path in logs:
        text = path.read_text(errors="replace")
        assert redact(text) == text, path.name


@pytest.mark.parametrize(
    "line",
    [b"x" * 100, b'\\"' * 50, b"%41" * 30, b"a\n" * 50, b"\x1b[0m" * 30, b"api_key=" * 12, b"\r" * 100],
    ids=["letters", "quotes", "percent", "short lines", "colours", "keys", "returns"],
)
def test_a_log_is_copied_in_little_memory_whatever_stands_in_it(line: bytes) -> None:
    Secret(KEY)
    piece = (line * (65536 // len(line)))[: 1 << 16]
    tracemalloc.start()
    shown = sum(block.count(REDACTED[:-1]) for block in redacted([*[piece] * 17, KEY.encode(), *[piece] * 4]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shown
    assert peak < 32 << 20


PIECES = (
    "\\",
    "\\\\",
    "\\n",
    "\n",
    '"',
    "/",
    "%",
    "%5C",
    "\\u00",
    "\\x",
    "41",
    "5c",
    "\x1b[31m",
    "u0041",
    "\\u001b[0m",
    "n",
    "A",
    "-0123",
)


@given(
    st.sampled_from(["sk-0123456789-nAn", 'nr/nA"n\\-0123']), st.lists(st.sampled_from(PIECES), max_size=4), st.data()
)
@settings(max_examples=300, derandomize=True)
def test_a_text_that_is_passed_over_holds_no_secret_in_any_reading(
    key: str, between: list[str], data: st.DataObject
) -> None:
    know([key])
    text = key
    for piece in between:
        at = data.draw(st.integers(0, len(text)))
        written = data.draw(
            st.sampled_from([piece, json.dumps(text[at : at + 1])[1:-1], f"\\u{ord(text[at - 1]):04x}"])
        )
        text = f"{text[:at]}{written}{text[at + (written != piece) :]}"
        text = data.draw(st.sampled_from([text, text.replace("\\", "\\\\")]))
    text = data.draw(st.sampled_from(["", *PIECES])) + text
    held = any(form in reading for reading in known_secrets._readings(text) for form, _ in known_secrets._known.forms)
    assert known_secrets._may_hold_known(text) or not held


@pytest.mark.parametrize(
    "text",
    [
        "%%73k-Ab_0123456789",  # what precedes it is no escape
        "%25\\\\x373k-Ab_0123456789",  # an escape of which a digit is an escape, its backslash escaped
        "\x1b[%73k-Ab_0123456789",  # a colour that is none, until its letter is read
        "sk-Ab%\\n5f0123456789",  # an escape that a line end breaks
        "sk-Ab%\x1b[38;5;196m5f0123456789",
        "sk-Ab%5c\\u005cu005f0123456789".replace("%5c", ""),
        "s%6b-" + "".join(f"\x1b[38;5;{number}m{letter}" for number, letter in enumerate("Ab_0123456789" * 2)),
        "=3d41\\x73k-Ab_0123456789 = %3D%73k-Ab_0123456789",
        re.sub(r"(.)(.)", lambda two: f"{two[1]}\\u\\n{ord(two[2]):04x}", "sk-Ab_0123456789"),  # broken by line ends
        "sk-Ab_\\n0123456789 \\x41 " + "\\x5a" * 600 + "\\x73k-Ab_012345678\\x39",  # an escape is the last of it
        "\\x5a" * 600 + "\\x73k-Ab_0123456789\\x3",
    ],
)
def test_a_known_secret_is_hidden_in_escapes_that_others_begin_in(text: str) -> None:
    Secret("sk-Ab_0123456789")
    Secret("sk-Ab_0123456789Ab_0123456789")
    assert REDACTED in redact(text)
    assert not tells(redact(text), "0123456789")


def test_what_stands_over_another_secret_is_hidden_too() -> None:
    """Where one is found as it stands, the other must not be lost with it."""
    know(["abcdefgh-0123", "gh-0123-ijklmnop"])
    assert redact("abcdefgh-0123-ijkl\nmnop") == REDACTED
    assert redact("abcdefgh-0123-ijkl%6dnop") == REDACTED
    know(["abcdefgh-0123-abc"])
    assert redact("abcdefgh-0123-abcdefgh-0123-abc") == REDACTED
    know(["abcabcabcabc"])
    assert redact("abcabcabcabca%62c") == REDACTED


def test_what_stands_as_it_is_and_escaped_is_hidden_both_times() -> None:
    Secret("sk-Ab_0123456789")
    texts = ["sk-Ab_0123456789", "sk-%41b_0123456789", "736b2d41625f30313233343536373839"]
    assert redact(" ".join(texts * 500)) == " ".join([REDACTED] * 1500)


LOOKALIKES = (
    *(
        "api_key",
        "API-KEY",
        "key is",
        "password is",
        "keyfile_password",
        "token is",
        "hf_token",
        "hf_0123456789abcdef9",
    ),
    *("Bearer ", "Basic ", "Authorization: ", "dXNlcjprZXk=", "c2VjcmV0", "abc123def456", "None", "12345678", "İ", "é"),
    *("http://", "me:", "@host", "/"),
    *("'", '"', "\\", " ", "=", ":", "\n", ",", "0", "9a", "training"),
)


@given(st.lists(st.sampled_from(LOOKALIKES), max_size=25), st.lists(st.sampled_from(LOOKALIKES), max_size=25))
def test_a_line_looks_secret_whatever_lines_stand_beside_it(one: list[str], other: list[str]) -> None:
    """Lines that differ in numbers only are looked at once."""
    line, beside = "".join(one).replace("\n", ""), "".join(other).replace("\n", "")
    counted = line.translate(str.maketrans("0123456789", "1234567890"))
    filled = "x" * 30  # more than may stand between the name of a header and its value
    alone = [redact(each) for each in (f"{filled}{line}", f"{filled}{counted}", f"{filled}{beside}")]
    assert redact(f"{filled}{line}\n{filled}{counted}\n{filled}{beside}") == "\n".join(alone)


AROUND = ("sk-Ab_0123456789", "sk-%41b_0123456789", "sk-Ab_01\n23456789", "c2stQWJfMDEyMzQ1Njc4OQ==", "%", "\\n")


@given(st.lists(st.sampled_from([*LOOKALIKES, *AROUND]), max_size=40), st.booleans())
@settings(max_examples=400)
def test_what_is_cut_a_line_at_a_time_is_what_is_found_in_all_of_it(pieces: list[str], known: bool) -> None:
    """A block is cut the short way, each kind of line once and a key by its text; the spans tell what it comes to."""
    know(["sk-Ab_0123456789"] if known else [])
    text = "".join(pieces)
    stream, whole = Stream(), without(text, merged(redaction._spans(text)))
    assert redact(text) == whole
    assert stream.feed(f"{text} .\n") + stream.close() == without(
        f"{text} .\n", merged(redaction._spans(f"{text} .\n"))
    )


LEADS: Final = ("Bearer ", "api_key=", "api_key='", "--api-key ", '"auth_token": "', "keyfile_password=", "hf_token:")

FLOODS: Final = (
    *(*LEADS, "the key is ", "hf_", "https://me:", "Authorization: Basic ", "no secret "),
    *(f"it is {form}, " for form in (*FORMS.values(), "sk-Ab_0123456789", "c2stQWJfMDEyMzQ1Njc4OQ==")),
)
SECRET: Final = "ZqWERTyuiopxcvbn9mASDFGh77"
_AS_LETTERS: Final = str.maketrans("0123456789", "qwertyuiop")
NOTICE: Final = re.compile(r"\[REDACTED(: ([\d,]+) characters)?\]")


def flood(lead: str, lines: int = 9, part: int = 0) -> str:
    """Lines that each hold another secret behind the same letters, or the same one beside another word."""
    end = {"https://me:": "@host", "api_key='": "'", '"auth_token": "': '"'}.get(lead, "")
    words = (str(at).translate(_AS_LETTERS) for at in range(lines))
    return "".join(f"{lead}{word}{SECRET}{end} , so {part}.{at}\n" for at, word in enumerate(words))


@given(
    st.lists(st.tuples(st.sampled_from(FLOODS), st.sampled_from((1, 30, 70, 1500))), min_size=1, max_size=4),
    st.sampled_from((1 << 10, 40_000, 1 << 18)),
)
@settings(max_examples=30, deadline=None)
def test_of_a_log_full_of_secrets_none_passes_and_no_line_is_lost_without_a_word(
    floods: list[tuple[str, int]], size: int
) -> None:
    """What is shown is what is found without a bound, but where it says that lines are left out."""
    know([KEY, "sk-Ab_0123456789"])
    log = "".join(f"part {number}\n{flood(lead, lines, number)}" for number, (lead, lines) in enumerate(floods))
    data = log.encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookalikes, "_PLACES", 64.0)  # with so few kept for later a short log is a flood
        shown = "".join(redacted(data[at : at + size] for at in range(0, len(data), size)))
    left = iter(redact(log).splitlines())
    left_out = False
    for line in shown.splitlines():
        if NOTICE.fullmatch(line):
            left_out = True
        elif left_out:
            assert line in left  # which goes on to it
            left_out = False
        else:
            assert line == next(left)
    assert left_out or not [*left]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_known_secret_that_lies_across_what_is_withheld_is_not_shown_in_part(end: str) -> None:
    know([KEY])
    for cut in range(1, len(KEY)):
        began, ended = f"x {KEY[:cut]}{end}", f"{KEY[cut:]} and so on\n"
        behind, before = Stream(Allowance()), Stream(Allowance())
        shown = behind.withhold(began) + behind.feed(ended) + behind.close()
        assert not tells(shown, KEY)
        assert KEY[cut:][:4] not in shown
        assert shown.endswith(" and so on\n")
        shown = before.feed(began) + before.withhold(ended) + before.close()
        assert KEY[:cut][:4] not in shown or cut < 4
        assert REDACTED in shown


@pytest.mark.parametrize("lead", ["Bearer ", "x "])
@pytest.mark.parametrize("lines", [0, 20_000])
def test_a_known_secret_that_goes_on_behind_what_was_taken_out_is_not_shown_in_part(lines: int, lead: str) -> None:
    know([KEY])
    stream = Stream(allowance := Allowance())
    shown = stream.feed(f"{flood('Bearer ', lines)}{lead}{KEY[:9]}\n")
    allowance.exceeded, allowance.places = False, 64.0  # what a later block may have
    shown += stream.feed(f"{KEY[9:]} and so on\n") + stream.close()
    assert not tells(shown, KEY)
    assert KEY[9:13] not in shown
    assert shown.endswith(" and so on\n")


@pytest.mark.parametrize("lead", FLOODS[: len(LEADS) + 4])
def test_a_flood_costs_no_more_than_its_beginning(lead: str) -> None:
    """The first places are read, and then one each 1,024 characters; of the rest it is said how much it was."""
    log = flood(lead, 30_000)
    shown = "".join(redacted([log.encode()]))
    assert 0 < shown.count(REDACTED) <= Allowance().places + len(log) / 1024 + 1
    assert sum(int(found.replace(",", "")) for _, found in NOTICE.findall(shown) if found) > len(log) * 0.6
    assert SECRET[7:] not in shown


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('Worker {{ url: "http://10.0.0.1:30000", api_key: None, id: {word} }}', KEY),
        ('{{"rid": "{word}", "api_key": null, "auth_token": null}}', KEY),
        ("Receive: obj=GenerateReqInput(rid='{word}', text='the key is important to basic training')", KEY),
        ("Looking in indexes: https://me:****@pypi.example/simple for {word}", KEY),
        ('  File "/sgl-workspace/sglang/python/sglang/srt/models/{word}.py", line 1, in forward', "sglang"),
    ],
)
def test_what_a_server_may_well_tell_hundreds_of_times_is_all_shown(line: str, key: str) -> None:
    Secret(key)
    log = "".join(f"{line.format(word=str(at).translate(_AS_LETTERS))}\n" for at in range(1000))
    shown = "".join(redacted([log.encode()]))
    assert shown == (log if key == KEY else log.replace("/sglang/", f"/{REDACTED}/"))


def test_lines_that_repeat_themselves_are_all_shown_whatever_they_hold() -> None:
    line = "Authorization: Bearer abc.def-1 api_key='wJ4-zTq8-mMv2', request {}, and so on\n"
    shown = "".join(redacted(["".join(line.format(number) for number in range(9000)).encode()]))
    assert shown == "".join(
        f"Authorization: Bearer {REDACTED} api_key='{REDACTED}', request {number}, and so on\n"
        for number in range(9000)
    )


def test_a_header_in_the_place_of_a_secret_still_tells_its_value() -> None:
    many = "".join(f"api_key=Zq{number:02}kjhWERTxcv{number}\n" for number in range(40))
    assert "c3VwZXJz" not in redact(f"{many}api_key=Authorization: Basic c3VwZXJzZWNyZXR0b2tlbg\n")


def test_what_only_looks_like_one_of_many_stays_as_it_is() -> None:
    ordinary = "the profile_password=abcdefghijklmno\n"  # the end of its name is that of `keyfile_password`
    assert redact(flood("keyfile_password=") + ordinary).endswith(ordinary)
    assert redact(flood("xkey=")) == flood("xkey=")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer sk-Ab_0123456789", f"Bearer {REDACTED}"),
        ("Bearer sk-Ab_0123456789,tail sk-Ab_0123456789", f"Bearer {REDACTED} {REDACTED}"),  # it ends behind the token
        ("api_key='sk-Ab_0123456789,tail', Bearer abcdef", f"api_key='{REDACTED}', Bearer {REDACTED}"),
    ],
)
def test_a_key_that_goes_beyond_what_looks_like_one_is_hidden_to_its_end(text: str, shown: str) -> None:
    know(["sk-Ab_0123456789,tail" if "tail" in text else "sk-Ab_0123456789"])
    assert redact(text).replace("sk-Ab_0123456789", REDACTED if "tail" in text else "") == shown

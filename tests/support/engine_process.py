"""The server of `scripted_engine.py`, in its own module because most starts of that interpreter do not serve."""

import base64
import contextlib
import ctypes
import json
import os
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from engine_api import GENERATING, Answer, EngineApi

UNHEALTHY = os.environ.get("SCRIPTED_UNHEALTHY", "")
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "urlsafe": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "basic": lambda key: "Basic " + base64.b64encode(f"user:{key}".encode()).decode(),
    "hex": lambda key: key.encode().hex(),
    "percent": quote,
    "all percent": lambda key: "".join(f"%{byte:02X}" for byte in key.encode()),
    "json": lambda key: "".join(f"\\u{ord(letter):04x}" for letter in key),
    "is": lambda key: f"the token is {key}, they say",
    "bearer": lambda key: f"Authorization: Bearer {key}",
}


class Handler(BaseHTTPRequestHandler):
    """Sends the responses of `EngineApi`."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        self._respond(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def log_message(self, _: str, *arguments: object) -> None:
        line, status = str(arguments[0]), HTTPStatus(int(str(arguments[1])))
        say(f'INFO:     127.0.0.1:{self.client_address[1]} - "{line}" {status.value} {status.phrase}')

    def _respond(self, content: bytes) -> None:
        if self.path not in GENERATING:
            self._answer(content)
            return
        with self.server.api.while_open():
            self._answer(content)

    def _answer(self, content: bytes) -> None:
        if self.path == "/generate" and (mute := content_of(os.environ.get("SCRIPTED_MUTE", ""))):
            while mute == "hangs":
                time.sleep(0.1)
            self._send(200, mute, "text/plain")
            return
        file = os.environ.get("SCRIPTED_SAMPLES", "")
        while file and self.path == "/generate" and b'"temperature": 1.0' in content and not os.path.exists(file):  # noqa: PTH110
            time.sleep(0.1)
        answer = self.server.api.answer(self.path, content, self.headers.get("Authorization"))
        unhealthy = self.path == "/health" and self.server.port in content_of(UNHEALTHY).split()
        if answer.status == 400:
            say(f"[http_server] Error: {answer.body()}{self.server.api.echo}")
        if answer.stream:
            self._stream(answer)
        else:
            kind = "text/plain" if isinstance(answer.documents[0], str) else "application/json"
            self._send(503 if unhealthy else answer.status, answer.body(), kind)

    def _send(self, status: int, body: str, kind: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        aborts = self.server.api.aborts
        for event in (*answer.texts(), "[DONE]"):
            if self.server.api.aborts != aborts and event != "[DONE]":
                continue
            time.sleep(self.server.step)
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], api: EngineApi, step: float) -> None:
        super().__init__(address, Handler)
        self.api, self.step, self.port = api, step, str(address[1])

    def handle_error(self, *_: object) -> None:
        """Ignore closed connections."""


def wait_while_stopped(pid: int) -> None:
    """Wait while a process is stopped by a signal."""
    while content_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] == ["T"]:
        time.sleep(0.05)


def content_of(file: str) -> str:
    """Return the content of a file; "" if it does not exist."""
    with contextlib.suppress(FileNotFoundError), open(file) as content:  # noqa: PTH123
        return content.read()
    return ""


def say(text: str) -> None:
    os.write(1, f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n".encode(errors="replace"))


def stages(options: dict[str, str], key: str) -> Iterator[str]:
    """Yield sglang's log lines before the server listens."""
    path, port = options["model-path"], options["port"]
    yield f"server_args=ServerArgs(model_path={path!r}, port={port}, api_key={key or None!r})"
    yield os.environ.get("SCRIPTED_LOG") or "Init torch distributed begin."
    yield "Load weight begin. avail mem=20.27 GB"
    yield "Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00, 965.54it/s]"
    yield "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 65536, K size: 0.02 GB, V size: 0.02 GB"
    yield "max_total_num_tokens=65536, chunked_prefill_size=2048, context_len=32768"


def child(title: str, *, detached: bool = False) -> int:
    """Start a process with an overwritten title and environment, like setproctitle; it ends with its parent."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    overwrite(title)
    if detached and os.fork() == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {})  # noqa: S606
    while os.getppid() == parent:
        time.sleep(60)
    os._exit(0)


def overwrite(title: str) -> None:
    """Overwrite the command line and the environment with a title (proc(5), /proc/self/stat)."""
    with open("/proc/self/stat") as file:  # noqa: PTH123 - one module less to import
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[48])  # arg_start, env_end
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title.encode(), len(title))


def compile_kernel(folder: Path, seconds: float) -> None:
    """Write a kernel like Triton, unless it exists."""
    if not (folder / "kernel.cubin").is_file():
        time.sleep(seconds)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel.cubin").write_bytes(b"machine code, compiled at %d" % time.time_ns())


def serve(options: dict[str, str], environ: dict[str, str]) -> NoReturn:
    """Start like sglang: child processes, weights, port, and the ready line."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(environ.get("SCRIPTED_MUTE", ""))  # noqa: PTH107
    key = ""
    if "config" in options:
        with open(options["config"]) as file:  # noqa: PTH123
            key = json.load(file)["api-key"]
    encoding = environ.get("SCRIPTED_ECHO", "")
    echo = "".join(f" {ENCODINGS[name](key)} " for name in encoding.split(",")) if encoding and key else ""
    if environ.get("SCRIPTED_DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [
        child("sglang::scheduler", detached=bool(environ.get("SCRIPTED_DETACHED"))),
        child("sglang::detokenizer"),
    ]
    signal.signal(signal.SIGCHLD, lambda *_: exit_with(children))
    pauses = environ.get("SCRIPTED_PAUSE", "0").split(",")
    for number, stage in enumerate(stages(options, key)):
        say(stage + echo)
        time.sleep(float(pauses[min(number, len(pauses) - 1)]))
    if seconds := environ.get("SCRIPTED_COMPILE"):
        compile_kernel(Path(environ["TRITON_CACHE_DIR"], "KEY"), float(seconds))
    if environ.get("SCRIPTED_BROKEN"):
        raise RuntimeError("SCRIPTED_BROKEN is set")
    step = float(environ.get("SCRIPTED_STEP", "0"))
    api = EngineApi(
        model=options["served-model-name"],
        model_path=options["model-path"],
        key=key,
        role=options.get("disaggregation-mode", ""),
        echo=echo,
        rejects_generation=bool(environ.get("SCRIPTED_REJECT")),
        wait_for_detokenizer=lambda: wait_while_stopped(children[-1]),
    )
    try:
        server = Server((options["host"], int(options["port"])), api, step)
    except OSError as error:
        address = f"('{options['host']}', {options['port']})"
        reason = os.strerror(error.errno or 0).lower()
        say(f"[Errno {error.errno}] error while attempting to bind on address {address}: {reason}")
        sys.exit(1)
    if not environ.get("SCRIPTED_DEAF"):
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end_when_idle, args=(api,)).start())
    say(f"INFO:     Uvicorn running on http://{options['host']}:{options['port']} (Press CTRL+C to quit)")
    say("The server is fired up and ready to roll!")
    server.serve_forever()
    sys.exit(0)


def end_when_idle(api: EngineApi) -> None:
    """Exit when all requests are done, as sglang does after SIGTERM."""
    while api.open:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_with(children: list[int]) -> None:
    """Exit if a child has died."""
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                say(f"Subprocess scheduler_0 (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup...")
                os.kill(os.getpid(), signal.SIGKILL)

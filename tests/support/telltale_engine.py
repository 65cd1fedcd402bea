"""In the place of an interpreter with sglang: a server that tells its API key wherever it says anything."""

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote


def forms(key: str) -> list[str]:
    """The key as a log, an error or a debugger may write it."""
    data = key.encode()
    return [
        key,
        base64.b64encode(data).decode(),
        f"Authorization: Basic {base64.b64encode(b'user:' + data).decode()}",
        data.hex(),
        "".join(f"%{byte:02X}" for byte in data),
        quote(key),
        "".join(f"\\u{byte:04x}" for byte in data),
        "\x1b[31m".join(key),
        f"{key[:9]}\n{key[9:]}",
    ]


class Telltale(BaseHTTPRequestHandler):
    """Says what a client needs to go on, and the key with everything."""

    told: list[str]
    model: str

    def do_GET(self) -> None:
        """Healthy, and with a name; all else repeats the key."""
        models = {"data": [{"id": self.model, "max_model_len": 100_000}]}
        server = {"version": self.told[0], "api_key": self.told[0], "dp_size": 1, "page_size": 1}
        documents = {"/health": {}, "/v1/models": models, "/server_info": server}
        document = documents.get(self.path)
        self._answer(500 if document is None else 200, {"error": self.told} if document is None else document)

    def do_POST(self) -> None:
        """A refusal that repeats the request's head; the key, piece by piece, for who streams."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path != "/v1/completions" or not body.get("stream") or not isinstance(body.get("prompt"), str):
            self._answer(500, {"error": {"message": f"{self.headers['Authorization']} {' '.join(self.told)}"}})
            return
        texts = [piece for form in self.told for piece in (*form, " ")]
        ends = [None] * (len(texts) - 1) + ["stop"]
        choices = [{"index": 0, "text": text, "finish_reason": end} for text, end in zip(texts, ends, strict=True)]
        events = [json.dumps({"choices": [choice]}) for choice in choices]
        self._send(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode(), "text/event-stream")

    def _answer(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def option(name: str) -> str:
    """The value of an option of the command line."""
    return sys.argv[sys.argv.index(name) + 1]


def main() -> None:
    """Serve, as `sglang.launch_server` is told to."""
    key = json.loads(Path(option("--config")).read_text())["api-key"]
    Telltale.told, Telltale.model = forms(key), option("--served-model-name")
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Telltale)
    print(f"server_args=ServerArgs(api_key='{key}')", flush=True)
    for form in forms(key):
        print(form, flush=True)
        print(f"OOMKilled {form}", flush=True)
    print("The server is fired up and ready to roll!", flush=True)
    print(key[:12], end="", flush=True)  # a line that nobody finishes
    server.serve_forever()


if __name__ == "__main__":
    main()

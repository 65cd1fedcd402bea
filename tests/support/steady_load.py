"""Four clients that go on asking while something happens to the servers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from waits import TIMEOUT

_INTERVAL_S = 0.05  # without it the clients take all cores from what is tested, and from the other tests


def complete(client: httpx.Client, **more: object) -> httpx.Response:
    """A completion of the tiny model, whole unless `more` says otherwise."""
    body = {"model": "tiny", "prompt": "the server answers", "max_tokens": 8, "temperature": 0, **more}
    return client.post("/v1/completions", json=body)


def client_of(url: str, key: str) -> httpx.Client:
    """Of a gateway at that URL."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT, trust_env=False)


@contextmanager
def load(url: str, key: str, statuses: list[int], *, clients: int = 4) -> Iterator[None]:
    """Clients that send one request after the other, and keep the status of each answer; 0 for none."""
    over = threading.Event()

    def send() -> None:
        with client_of(url, key) as client:
            while not over.wait(_INTERVAL_S):
                try:
                    statuses.append(complete(client).status_code)
                except httpx.HTTPError:
                    statuses.append(0)

    threads = [threading.Thread(target=send) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()

"""Clients that send requests continuously while a test changes the servers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from waits import TIMEOUT

_INTERVAL_S = 0.2  # leaves CPU time to the servers and to other tests


def complete(client: httpx.Client, **more: object) -> httpx.Response:
    """Request a completion of the tiny model, with the fields in `more`."""
    body = {"model": "tiny", "prompt": "the server answers", "max_tokens": 8, "temperature": 0, **more}
    return client.post("/v1/completions", json=body)


def client_of(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT, trust_env=False)


@contextmanager
def load(url: str, key: str, statuses: list[int], *, clients: int = 4) -> Iterator[None]:
    """Run clients for the length of the block; append the status of each response to `statuses`, 0 for none."""
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

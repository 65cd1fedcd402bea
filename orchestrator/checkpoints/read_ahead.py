"""Reading a checkpoint into the page cache while the engine imports its modules, which uses no disk.

sglang reads the weights only after its imports: 24 s on a quiet host. Its `weight-loader-prefetch-checkpoints` begins
then too (0.5.16, 0.5.23: model_loader/loader.py).
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from orchestrator.core.signals import start_thread_without_signals

_BLOCK: Final = 16 << 20  # bytes


@contextmanager
def read_ahead(directory: Path, room: int) -> Iterator[threading.Thread]:
    """Read the weights of a checkpoint in a thread, until the end of the block or of this process.

    At most `room` bytes, the available memory, as later files would evict earlier ones. An unreadable file is left to
    the engine.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_read, args=(directory, room, ended), daemon=True)
    start_thread_without_signals(thread)
    try:
        yield thread
    finally:
        ended.set()


def _read(directory: Path, room: int, ended: threading.Event) -> None:
    block = bytearray(_BLOCK)
    for file in sorted(directory.glob("*.safetensors")):
        with suppress(OSError), file.open("rb", buffering=0) as stream:
            room -= os.fstat(stream.fileno()).st_size
            if room < 0:
                return
            # the kernel reads ahead for `posix_fadvise` by 128 kB to 8 MB only
            while not ended.is_set() and stream.readinto(block):
                pass

"""Reading a checkpoint into the page cache while the engine imports its modules, which uses no disk.

sglang reads the weights only after its imports: 24 s on a quiet host. Its `weight-loader-prefetch-checkpoints` begins
then too (0.5.16, 0.5.23: model_loader/loader.py).
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.checkpoints.quantize.workers import available_memory
from orchestrator.core.signals import start_thread_without_signals

_BLOCK: Final = 16 << 20  # bytes


def read_ahead(directory: Path) -> threading.Thread:
    """Begin to read the weights of a checkpoint, in a thread that ends with this process; return it.

    At most what fits into the available memory, as later files would evict earlier ones. An unreadable file is left to
    the engine.
    """
    thread = threading.Thread(target=_read, args=(directory, available_memory() or 0), daemon=True)
    start_thread_without_signals(thread)
    return thread


def _read(directory: Path, room: int) -> None:
    block = bytearray(_BLOCK)
    for file in sorted(directory.glob("*.safetensors")):
        with suppress(OSError), file.open("rb", buffering=0) as stream:
            room -= os.fstat(stream.fileno()).st_size
            if room < 0:
                return
            while stream.readinto(block):  # the kernel reads ahead for `posix_fadvise` by 128 kB to 8 MB only
                pass

"""Measure all-reduce over the ranks of several nodes with torch.distributed; no server is started.

Runs on each node at the same time, in the engine's own Python (3.10 or newer)::

    all_reduce.py NODE NODES HEAD_ADDRESS PORT GPUS SIZES      GPUS: 0,1,…, or `cpu`; SIZES: bytes, as 1048576,8388608

The first rank prints `SIZE BUS_BANDWIDTH` for each size: bytes, and GB/s as rccl-tests computes it (PERFORMANCE.md),
`2 * (ranks - 1) / ranks * size / time`.
"""

import datetime as dt
import os
import signal
import sys
import time
import traceback

WARMUPS, REPEATS = 3, 10
TIMEOUT = dt.timedelta(seconds=60)


def measure(rank: int, ranks: int, address: str, device: str, sizes: list[int]) -> None:
    """Run one rank to its end. Raises RuntimeError from torch."""
    import torch
    import torch.distributed as dist

    backend = "gloo" if device == "cpu" else "nccl"  # torch's name for RCCL, too
    if device != "cpu":
        torch.cuda.set_device(int(device))
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=ranks, timeout=TIMEOUT)
    wait = torch.cuda.synchronize if device != "cpu" else dist.barrier
    for size in sizes:
        tensor = torch.zeros(size // 4, device="cpu" if device == "cpu" else f"cuda:{device}")
        for _ in range(WARMUPS):
            dist.all_reduce(tensor)
        wait()
        start = time.perf_counter()
        for _ in range(REPEATS):
            dist.all_reduce(tensor)
        wait()
        seconds = (time.perf_counter() - start) / REPEATS
        if rank == 0:
            print(size, f"{2 * (ranks - 1) / ranks * size / seconds / 1e9:.3f}", flush=True)
        del tensor
    dist.destroy_process_group()


def main() -> int:
    """Run a rank for each GPU of this node; return the exit code of the first that fails."""
    node, nodes, head, port, gpus, sizes = sys.argv[1:7]
    devices = gpus.split(",")
    ranks = len(devices) * int(nodes)
    children = []
    for index, device in enumerate(devices):
        child = os.fork()  # before torch is imported
        if child == 0:
            code = 1
            try:
                rank = int(node) * len(devices) + index
                measure(rank, ranks, f"tcp://{head}:{port}", device, [int(size) for size in sizes.split(",")])
                code = 0
            except Exception:  # noqa: BLE001 - a child must end here
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:  # the others would wait for it
            for other in children:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

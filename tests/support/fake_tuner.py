"""A fake of aiter's gemm_moe_tune.py, which needs a gfx950 GPU, with its options, files, output and errors.

As in aiter 9127c94a, it writes results after each batch, keeps the rows of an existing output, and prints errors.
`--fault` selects a failure; the real tuner has no such option.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COLUMNS = (
    *("gfx", "cu_num", "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a"),
    *("q_dtype_w", "q_type", "use_g1u1", "doweight_stage1", "block_m", "ksplit", "us1", "kernelName1", "err1", "us2"),
    *("kernelName2", "err2", "us", "run_1stage", "xbf16", "flat", "tflops", "bw", "_tag"),
)


def row(wanted: dict[str, str]) -> dict[str, str]:
    measured = dict.fromkeys(COLUMNS, "0")
    measured |= {**wanted, "gfx": "gfx950", "cu_num": "256", "block_m": "32", "us1": "10.5", "us2": "8.1", "us": "18.6"}
    measured |= {"kernelName1": "flydsl_moe1_afp4_wfp4_bf16_t32x64x256_w4", "err1": "0.9%", "err2": "1.4%", "_tag": ""}
    measured |= {"kernelName2": "flydsl_moe2_afp4_wfp4_bf16_t32x128x256_reduce"}
    return measured


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", type=Path, required=True)
    parser.add_argument("-o", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--fault", default="")
    requested = parser.parse_args()
    wanted = list(csv.DictReader(requested.i.open(newline="")))
    done: list[dict[str, str]] = []
    for start in range(0, len(wanted), requested.batch):
        batch = wanted[start : start + requested.batch]
        if requested.fault == "fails" and start:
            print("[aiter] error: no valid candidate found for ('gfx950', 256, 64)", flush=True)
            print("[aiter] \x1b[91m[Tuning not Finished]\x1b[0m some shapes are not tuned or all failed", flush=True)
            sys.exit(0)
        if requested.fault == "stops" and start:
            time.sleep(3600)
        done += [row(one) for one in batch]
        write(requested.o, done)
        print(f"[aiter] processed {start // requested.batch + 1} batches, Processing Status ====> tuned", flush=True)
    if requested.fault == "hangs":  # a parent that ignores SIGTERM and waits for its worker
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker = subprocess.Popen(["sleep", "3600"])
        (requested.o.parent / "pids").write_text(f"{os.getpid()} {worker.pid}")
        worker.wait()


if __name__ == "__main__":
    main()

"""What `deploy probe` sees: false alarms of a right server, and the smallest fault that is one.

    python tests/benchmarks/probe_sensitivity.py [RUNS] [LONGEST]

Real sglang on this machine's CPU, the tiny model in bf16. RUNS probes beside a reference of the same server, then one
for each matrix and each factor that one matrix is scaled by (its weights are loaded anew in the running server), with
the default limit and with `--limit 1e-5`, which only suits the very same kernels. Needs the environment of `cpu-tiny`
(`make demo` builds it).
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from orchestrator.commands.planning import load
from orchestrator.core.paths import Home
from orchestrator.environments import built_interpreter

PORT = 21978
DEPLOY = [sys.executable, "-m", "orchestrator"]
NAME = "probe-benchmark"
MATRICES = ("self_attn.o_proj", "mlp.down_proj", "self_attn.q_proj")
FACTORS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
STRICT = 1e-5
SCALE = """
import sys
from safetensors.torch import load_file, save_file
file, matrix, factor = sys.argv[1], sys.argv[2], float(sys.argv[3])
tensors = load_file(file)
tensors[f"model.layers.1.{matrix}.weight"] *= 1 + factor
save_file(tensors, file, metadata={"format": "pt"})
"""


def deploy(*words: str, may: tuple[int, ...] = (0,)) -> Any:  # noqa: ANN401 - JSON of any shape
    done = subprocess.run([*DEPLOY, *words, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in may:
        sys.exit(f"`deploy {' '.join(words)}` ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def probe(reference: Path, longest: str) -> Any:  # noqa: ANN401 - JSON of any shape
    return deploy("probe", NAME, "--against", str(reference), "--longest", longest, may=(0, 8))


def beside(report: Any) -> float:  # noqa: ANN401 - JSON of any shape
    """The largest mean of a band, beside the reference."""
    rows = [row for row in report["rows"] if row["what"] == "the reference"]
    return max(band["mean"] for row in rows for band in row["bands"])


def reload_weights(url: str, model: Path) -> None:
    body = {"model_path": str(model), "flush_cache": True}
    httpx.post(f"{url}/update_weights_from_disk", json=body, timeout=120, trust_env=False).raise_for_status()


def main(runs: int, longest: str) -> None:
    home = Home.from_environment()
    url = deploy("up", "cpu-tiny", "--name", NAME, "--set", f"server.port={PORT}")["url"]
    python = built_interpreter(load("cpu-tiny").plan.engine, home)
    with tempfile.TemporaryDirectory() as folder:
        reference, original = Path(folder) / "reference.json", home.models / "tiny"
        try:
            deploy("probe", NAME, "--save", str(reference), "--longest", longest)
            found = [probe(reference, longest) for _ in range(runs)]
            print(f"right server: {sum(not each['ok'] for each in found)} alarms in {runs} runs, ", end="")
            print(f"largest mean {max(map(beside, found)):.2g} nats")
            for matrix in MATRICES:
                for factor in FACTORS:
                    copy = Path(folder) / f"{matrix}-{factor}"
                    shutil.copytree(original, copy)
                    scaled = [str(python), "-c", SCALE, str(copy / "model.safetensors"), matrix, str(factor)]
                    subprocess.run(scaled, check=True)
                    reload_weights(url, copy)
                    report = probe(reference, longest)
                    strict = "seen" if beside(report) > STRICT else "not seen"
                    default = "not seen" if report["ok"] else "seen"
                    print(
                        f"{matrix} x {1 + factor:g}: {beside(report):.2g} nats, {default}; with --limit 1e-5 {strict}"
                    )
        finally:
            deploy("down", NAME)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "2048")

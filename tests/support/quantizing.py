"""Run `deploy quantize` in the background."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from proc_files import proc_files
from quark_source import fake_quark_path

from orchestrator.core.polling import poll_until


class Quantizing:
    def __init__(
        self, location: Path, target: str, *words: str, does: str = "", recipe: str = "glm-5.2-amd", real: bool = False
    ) -> None:
        self.target = location / target
        argv = [sys.executable, "-P", "-m", "orchestrator", "quantize", str(location / "tiny"), str(self.target)]
        env = {**os.environ, "DEPLOY_HOME": str(location / "home")}
        env |= {} if real else {"PYTHONPATH": fake_quark_path(), "FAKE_QUARK": does}
        self.process = subprocess.Popen(
            [*argv, "--recipe", recipe, *words], env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def end(self) -> tuple[int, str]:
        try:
            _, text = self.process.communicate(timeout=1000)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, text

    def shards(self) -> list[Path]:
        return sorted(self.target.with_name(f"{self.target.name}.quantizing").glob("checkpoint/*.safetensors"))

    def wait_for_shards(self, count: int, *, within: float = 60, interval: float = 0.05) -> None:
        poll_until(lambda found: len(found) >= count, self.shards, timeout=within, interval=interval)
        assert len(self.shards()) >= count

    def workers(self) -> list[int]:
        """Return the other processes with this target's folder in their command lines."""
        return [pid for pid, words in _processes() if f"{self.target}.quantizing" in words and pid != self.process.pid]


def _processes() -> Iterator[tuple[int, str]]:
    for pid, words in proc_files("cmdline"):
        yield pid, words.replace(b"\0", b" ").decode(errors="replace")

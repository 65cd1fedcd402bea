"""Each fenced line of the documentation that runs another program than `deploy` works, or `NOT_RUN` has a reason."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import httpx
import pytest
from engine_api import EngineApi, over_httpx
from test_documented_commands import PAGES, ROOT

from orchestrator.core.paths import Home

RENTED = "rented-machines.md"  # `integration/test_rented_page.py` runs the whole page, with a fake `sky`
NOT_RUN = {
    r"cd deploy": "the clone",
    r"(export|for|done|git pull|rm) ?": "plain shell",
    r"docker (login|image ls)": "needs a registry account, or a Docker daemon",
    r"(sudo )?systemctl|.*\| sudo tee": "`integration/test_watch_unit.py` verifies the unit",
    r"\(umask": "`integration/test_watch_unit.py` reads the variables' file",
    r"kubectl": "`integration/test_kubernetes.py` applies such files",
    r"prometheus": "`integration/test_alerts.py` checks such files with `promtool`",
}


def other_lines(page: Path) -> list[str]:
    """Return the lines of a page without comments and without commands that start with `deploy`."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [re.sub(r" +#.*", "", line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if not re.match(r" *deploy ", line) or "| sudo" in line]


LINES = [line for page in PAGES if page.name != RENTED for line in other_lines(page)]
MAKE = [line for line in LINES if line.startswith("make ")]
INSTALL = [line for line in LINES if re.search(r"\buv tool ", line)]
REQUESTS = [line for line in LINES if line.startswith("curl ")]


def test_each_line_runs_or_has_a_reason() -> None:
    others = [line for line in LINES if line not in [*MAKE, *INSTALL, *REQUESTS]]
    assert [line for line in others if not any(re.match(pattern, line) for pattern in NOT_RUN)] == []
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, line) for line in others)] == []


@pytest.mark.parametrize("line", MAKE)
def test_documented_target_exists(line: str) -> None:
    argv = ["make", "--dry-run", *line.split()[1:]]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", INSTALL)
def test_installed_package_and_its_extra_exist(line: str) -> None:
    """`test_wheel.py` installs the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = shlex.split(line.partition("uv tool ")[2])
    known = {".", project["name"], *(f".[{extra}]" for extra in project["optional-dependencies"])}
    assert words[0] in {"install", "uninstall"}
    assert words[-1] in known


@pytest.mark.parametrize("line", REQUESTS)
def test_documented_request_is_answered(line: str) -> None:
    """The fake of sglang answers, which `integration/test_scripted_engine.py` compares with sglang."""
    words = shlex.split(line)
    header, body = (words[words.index(option) + 1] for option in ("-H", "-d"))
    with httpx.Client(transport=over_httpx(EngineApi(model=json.loads(body)["model"]))) as client:
        response = client.post(words[1], content=body, headers=dict([header.split(": ")]))
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"]


def test_removed_directory_is_the_default_home() -> None:
    [line] = [line for line in LINES if line.startswith("rm ")]
    assert Home.from_environment({"HOME": str(Path.home())}).root == Path(line.split()[-1]).expanduser()

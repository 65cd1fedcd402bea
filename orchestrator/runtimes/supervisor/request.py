"""The request to a supervisor, with the secrets grouped by how they are delivered."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator.core.secrets import HUB_TOKEN, Secret, hub_token, known
from orchestrator.engine.launch import split_secrets
from orchestrator.render.artifacts import Artifacts
from orchestrator.runtimes.supervisor.main import StartRequest
from orchestrator.runtimes.supervisor.record import run_marker

_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")  # a hub repository, in arguments that may also be a path


def start_request(
    artifacts: Artifacts, *, name: str, run_dir: Path, cwd: Path, secrets: Mapping[str, Secret], record: str
) -> StartRequest:
    """Return the request to start a server under a name in the directory `cwd`; `record` is that of `StartRequest`.

    The request holds secrets.
    """
    plan, ways = artifacts.plan, split_secrets(secrets, api_key_env=artifacts.plan.server.api_key_env)
    requested = {variable: secret.reveal() for variable, secret in ways.env.items()}
    # sglang itself may download: the checkpoint is local, but a draft model or a tokenizer may not be
    if (token := hub_token()) and any(_REPOSITORY.fullmatch(word) for word in plan.serving.paths):
        requested.setdefault(HUB_TOKEN, token.reveal())
    return StartRequest(
        run_dir=str(run_dir.absolute()),
        cwd=str(cwd),
        argv=artifacts.command.argv,
        env=dict(artifacts.command.env),
        secret_env=requested,
        config=ways.config.reveal() if ways.config else None,
        secrets=known(),
        name=name,
        profile=plan.profile,
        plan_digest=plan.digest,
        url=plan.server.url,
        token=run_marker(run_dir),
        record=record,
    )

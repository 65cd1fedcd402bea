"""The record of a server in containers or a cluster: labels on them, and annotations on the objects of a cluster."""

import re
from collections.abc import Mapping
from typing import Final

from orchestrator import __version__
from orchestrator.plan.plan import NAME as SERVER_NAME
from orchestrator.plan.plan import Plan
from orchestrator.runtimes.replicas import is_replica

NAME: Final = "deploy.name"
PART: Final = "deploy.part"  # which of several servers it is, or in a cluster their gateway
GATEWAY: Final = "gateway"
PLAN: Final = "deploy.plan"
PROFILE: Final = "deploy.profile"
URL: Final = "deploy.url"
RUN_DIR: Final = "deploy.run-dir"  # the directory on the starting machine that holds plan.json and the log
STARTER: Final = "deploy.starter"  # who started it, and what tells this start from all others
RECORD: Final = (PLAN, PROFILE, URL)  # what each bears beside its name
_URL: Final = re.compile(r"http://[\w.:\[\]-]{1,255}:\d{1,5}")


def record_of(plan: Plan, url: str) -> dict[str, str]:
    """The record of a server of that plan, beside its name."""
    return {PLAN: plan.digest, PROFILE: plan.profile, URL: url, "deploy.version": __version__}


def is_record(said: Mapping[str, str]) -> bool:
    """Whether labels are as a start writes them; anybody may put others on what is theirs."""
    part = said.get(PART, GATEWAY)
    return (
        SERVER_NAME.match(said.get(NAME, "")) is not None
        and (part == GATEWAY or is_replica(part))
        and _URL.fullmatch(said.get(URL, "")) is not None
        and all(said.get(each) and said[each].isprintable() for each in RECORD)
    )

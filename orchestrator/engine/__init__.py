"""All that is known of sglang: launch line, flags, config file, log, HTTP API, metrics.

The synchronous client stands by itself in `orchestrator.engine.client`: it brings httpx along, which takes 0.2 s to
import and which few commands need. Everything here is pure but for reading a flag table.
"""

from orchestrator.engine.answers import (
    Chat,
    Generated,
    NoAnswerError,
    OddAnswerError,
    ServerInfo,
    read_models,
    read_object,
    read_server_info,
)
from orchestrator.engine.config_file import Delivery, delivery
from orchestrator.engine.endpoints import authorization
from orchestrator.engine.flags import FlagTable, flag_problems, read_flags
from orchestrator.engine.launch import Launch, launch_argv
from orchestrator.engine.log import StageReader, quotes_a_user, says_port_taken
from orchestrator.engine.metrics import Metric, read_metrics
from orchestrator.engine.requests import Api, load_body
from orchestrator.engine.stream import EventReader, Usage, read_usage

__all__ = [
    "Api",
    "Chat",
    "Delivery",
    "EventReader",
    "FlagTable",
    "Generated",
    "Launch",
    "Metric",
    "NoAnswerError",
    "OddAnswerError",
    "ServerInfo",
    "StageReader",
    "Usage",
    "authorization",
    "delivery",
    "flag_problems",
    "launch_argv",
    "load_body",
    "quotes_a_user",
    "read_flags",
    "read_metrics",
    "read_models",
    "read_object",
    "read_server_info",
    "read_usage",
    "says_port_taken",
]

"""All that is known of sglang: launch line, flags, config file, log, HTTP API, metrics, memory.

The synchronous client is imported by name, `engine.client`: it brings httpx along, which takes 0.2 s to import and
which few commands need; so is `engine.memory`, which planning alone asks. Everything here is pure but for reading a
flag table.
"""

from orchestrator.engine import endpoints
from orchestrator.engine.answers import (
    MOST_BYTES,
    Chat,
    Generated,
    GivenUpError,
    Json,
    NoAnswerError,
    OddAnswerError,
    ServerInfo,
    number,
    read_chat,
    read_chat_events,
    read_completion_event,
    read_generated,
    read_models,
    read_object,
    read_server_info,
    read_token_ids,
    read_usage_of,
)
from orchestrator.engine.arguments import Arguments, argument_problems, name_problem, port_problem, speculation
from orchestrator.engine.endpoints import authorization, read_key
from orchestrator.engine.flags import FlagTable, flag_problems, flag_words, parse_flags, read_flags
from orchestrator.engine.launch import Delivery, Launch, delivery, launch_argv, parts
from orchestrator.engine.log import StageReader, quotes_a_user, written_since
from orchestrator.engine.metrics import MOST_METRICS_BYTES, Metric, Metrics, read_metrics
from orchestrator.engine.requests import (
    RANK_FIELD,
    Api,
    Body,
    chat_body,
    completion_body,
    generate_body,
    load_body,
    tokenize_body,
)
from orchestrator.engine.stream import (
    DONE,
    EventReader,
    Usage,
    carries_text,
    has_choices,
    has_usage,
    is_error,
    read_usage,
    tokens_so_far,
)

__all__ = [
    "DONE",
    "MOST_BYTES",
    "MOST_METRICS_BYTES",
    "RANK_FIELD",
    "Api",
    "Arguments",
    "Body",
    "Chat",
    "Delivery",
    "EventReader",
    "FlagTable",
    "Generated",
    "GivenUpError",
    "Json",
    "Launch",
    "Metric",
    "Metrics",
    "NoAnswerError",
    "OddAnswerError",
    "ServerInfo",
    "StageReader",
    "Usage",
    "argument_problems",
    "authorization",
    "carries_text",
    "chat_body",
    "completion_body",
    "delivery",
    "endpoints",
    "flag_problems",
    "flag_words",
    "generate_body",
    "has_choices",
    "has_usage",
    "is_error",
    "launch_argv",
    "load_body",
    "name_problem",
    "number",
    "parse_flags",
    "parts",
    "port_problem",
    "quotes_a_user",
    "read_chat",
    "read_chat_events",
    "read_completion_event",
    "read_flags",
    "read_generated",
    "read_key",
    "read_metrics",
    "read_models",
    "read_object",
    "read_server_info",
    "read_token_ids",
    "read_usage",
    "read_usage_of",
    "speculation",
    "tokenize_body",
    "tokens_so_far",
    "written_since",
]

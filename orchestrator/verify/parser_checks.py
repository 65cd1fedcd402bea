"""The checks of the parsers, which separate tool calls and reasoning from the text of the answer."""

from typing import Final

from orchestrator.core.secrets import excerpt
from orchestrator.engine.options import Meaning
from orchestrator.engine.requests import chat_body
from orchestrator.verify.client import SmokeClient
from orchestrator.verify.report import CheckOutcome, failed, passed, skipped

_TOKENS: Final = 512  # enough for a short reasoning
_CALL_TOKENS: Final = 128  # enough for a call without reasoning; a slow model that never stops took 123 s for 512
_NAME: Final = "get_weather"
WEATHER_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Tags that begin or end reasoning (sglang 0.5.21, srt/parser/reasoning_parser.py).
_THINK_TAGS: Final = (
    *("<think>", "</think>", "◁think▷", "◁/think▷", "<mm:think>", "</mm:think>", "<|channel|>"),
    *("<|channel>", "<channel|>", "<|open|>think", "<|close|>think", "<|content_thinking|>", " to=self<|message|>"),
    *("[THINK]", "[/THINK]", "<|START_THINKING|>", "<|END_THINKING|>", "<|inner_prefix|>", "<|inner_suffix|>"),
    *("<ifm|think", "</ifm|think"),
)


def tool_call_parsed(client: SmokeClient) -> CheckOutcome:
    """Check that a tool call is parsed; with the tool-call parser of another model, the server returns it as text."""
    more = {"tools": [WEATHER_TOOL], "chat_template_kwargs": {"enable_thinking": False}}
    question = f"What is the weather in Paris now? Call the tool `{_NAME}`."
    tokens = _CALL_TOKENS
    answer = client.chat(chat_body(client.target.served_name, question, tokens=tokens, **more))
    if answer.finish_reason == "length" and not answer.content and not answer.tools:  # still reasoning
        tokens = _TOKENS
        answer = client.chat(chat_body(client.target.served_name, question, tokens=tokens, **more))
    if answer.tools:
        names = ", ".join(f"`{tool}`" for tool in answer.tools)
        return passed(f"called {names}") if set(answer.tools) == {_NAME} else failed(f"called {names}, not `{_NAME}`")
    if _NAME in answer.text.replace(f"`{_NAME}`", ""):
        text = excerpt(answer.text, 60)
        return failed(f"`{Meaning.TOOL_PARSER}` {client.target.tool_parser} left a call in the text: {text!r}")
    return skipped(f"the model called no tool in {tokens} tokens")


def reasoning_separated(client: SmokeClient) -> CheckOutcome:
    """Check that reasoning and answer are separated; the reasoning parser of another model mixes them."""
    parser = f"`{Meaning.REASONING_PARSER}` {client.target.reasoning_parser}"
    more = {"chat_template_kwargs": {"enable_thinking": True}}
    question = "How many days are in two weeks? Think first."
    answer = client.chat(chat_body(client.target.served_name, question, tokens=_TOKENS, **more))
    if marks := [mark for mark in _THINK_TAGS if mark in answer.content]:
        return failed(f"{parser} left `{marks[0]}` in the answer: {excerpt(answer.content, 60)!r}")
    reasoning, ended = answer.text.removesuffix(answer.content), answer.finish_reason == "stop"
    if marks := [mark for mark in _THINK_TAGS if mark in reasoning]:
        return failed(f"{parser} left `{marks[0]}` in the reasoning: {excerpt(reasoning, 60)!r}")
    if not reasoning:
        return skipped("the model did not reason" if ended else f"no reasoning seen, and no end in {_TOKENS} tokens")
    if not answer.content.strip():
        if ended:
            return failed(f"{parser} took the whole answer for reasoning: {excerpt(answer.text, 60)!r}")
        return skipped(f"the reasoning did not end in {_TOKENS} tokens")
    return passed(f"{len(reasoning)} characters of reasoning, separate from the answer")

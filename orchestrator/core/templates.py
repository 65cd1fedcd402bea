"""Jinja templates without access to Python. Undefined names are errors; values are inserted unescaped."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

Filter = tuple[str, Callable[..., str]]


def render_template(
    text: str,
    values: Mapping[str, object],
    *,
    filters: Mapping[str, Callable[..., str]] | None = None,
    **options: Any,  # noqa: ANN401 - of Jinja's environment
) -> str:
    """Return a template filled with values. Raises ValueError.

    The values' own methods may raise other errors.
    """
    from jinja2 import TemplateError  # noqa: PLC0415 - 30 ms, and few commands render a template

    try:
        return _compiled(text, tuple((filters or {}).items()), **options).render(values)
    except TemplateError as error:
        raise ValueError(str(error)) from error


@cache
def _compiled(text: str, filters: tuple[Filter, ...], **options: Any) -> "Template":  # noqa: ANN401 - as above
    from jinja2 import StrictUndefined  # noqa: PLC0415 - as above
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

    jinja = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, **options
    )
    jinja.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # YAML allows no surrogate escapes
    jinja.filters |= filters
    return jinja.from_string(text)

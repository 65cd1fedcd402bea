"""The output of `--json`: each command declares a type, which defines both the JSON and its schema."""

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from orchestrator.core.console import ErrorOutput, print_data, print_json
from orchestrator.core.validation import type_adapter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_NULL: Final = {"type": "null"}
Value = TypeVar("Value")


class JsonOutput(Generic[Value]):
    """The output of a command: a value of one of `forms`, as one document or (with `lines`) on each line.

    With `omits_null`, null fields are omitted.
    """

    def __init__(self, *forms: type[Value], lines: bool = False, omits_null: bool = False) -> None:
        """Declare the output; its serializer is built at its first use."""
        self.forms, self.lines, self.omits_null = forms, lines, omits_null

    def show(self, value: Value) -> None:
        """Print a value as JSON on stdout, redacted."""
        print_json(self.data(value), one_line=self.lines)

    def show_or_print(self, value: Value, text: Callable[[], str], *, json: bool) -> None:
        """Print a value as JSON if `json` is set, else the result of `text`."""
        if json:
            self.show(value)
        else:
            print_data(text())

    def data(self, value: Value) -> Any:  # noqa: ANN401 - JSON
        """Return a value as plain data, with the declared fields."""
        form: Any = next(form for form in self.forms if isinstance(value, getattr(form, "__origin__", form)))
        return type_adapter(form).dump_python(value, by_alias=True, exclude_none=self.omits_null, warnings=False)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the document, or of each line, including the form of an error."""
        forms = [(form, "serialization", type_adapter(form)) for form in (*self.forms, ErrorOutput)]
        schemas, shared = TypeAdapter.json_schemas(forms)  # type: ignore[arg-type]
        definitions = {name: self._required(item) for name, item in shared["$defs"].items()}
        return {"$schema": DRAFT, "anyOf": [*schemas.values()], "$defs": definitions}

    def _required(self, definition: dict[str, Any]) -> dict[str, Any]:
        """Mark fields that are always printed as required; drop titles, which repeat the names."""
        if "properties" not in definition:
            return definition
        fields = {name: {**item} for name, item in definition["properties"].items()}
        for entry in fields.values():
            entry.pop("title", None)
            entry.pop("default", None)
        required = [name for name, field in fields.items() if not (self.omits_null and _NULL in field.get("anyOf", ()))]
        return {**definition, "properties": fields, "required": required}


def fields_of(value: "DataclassInstance") -> dict[str, Any]:
    """Return the fields of a dataclass by name, unconverted, to create an output with additional fields."""
    return {field.name: getattr(value, field.name) for field in fields(value)}

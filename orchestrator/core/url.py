"""Strict parsing of an endpoint's URL."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.core.errors import UsageError

_FORM: Final = "write it as `http://host:port`"


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of an endpoint. `base` is a path prefix of the API, without a trailing slash."""

    host: str
    port: int
    tls: bool
    base: str

    @classmethod
    def from_url(cls, url: str) -> "Address":
        """Parse `http[s]://host[:port][/base]`. Raises UsageError, also for a URL with a user or a password."""
        try:
            parts = urlsplit(url)
            port = parts.port
            (parts.hostname or "").encode("idna")  # raises for names that cannot be resolved
        except ValueError as error:
            raise UsageError(f"`{url}` is not a URL: {error}", hint=_FORM) from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"`{url}` is not the URL of an endpoint", hint=_FORM)
        if parts.username is not None or parts.password is not None:
            hint = "name the variable that holds a key with `--api-key-env`; a URL is kept in histories and results"
            raise UsageError("the URL of an endpoint cannot contain a user or a password", hint=hint)
        tls = parts.scheme == "https"
        return cls(host=parts.hostname, port=port or (443 if tls else 80), tls=tls, base=parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """The endpoint as a URL, without credentials, query and fragment."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"

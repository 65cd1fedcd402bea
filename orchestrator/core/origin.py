"""Origins of the values in a profile, a patch or a plan."""

from enum import StrEnum


class Origin(StrEnum):
    """The source of a value."""

    PUBLISHED = "published"
    RECIPE = "recipe"
    MEASURED = "measured"
    INFERRED = "inferred"
    USER = "user"

"""Who stands behind a value of a profile, a patch or a plan."""

from enum import StrEnum


class Origin(StrEnum):
    """Who stands behind a value."""

    PUBLISHED = "published"
    RECIPE = "recipe"
    MEASURED = "measured"
    INFERRED = "inferred"
    USER = "user"

"""The meaning of a profile's flags."""

from typing import TYPE_CHECKING

from orchestrator.engine.serving import ServingFacts, serving_facts

if TYPE_CHECKING:  # slow to import, and commands for running servers do not need it
    from orchestrator.profiles.schema import Profile


def profile_serving(profile: "Profile") -> ServingFacts:
    """Return the meaning of a profile's flags; a flag that is `false` is not set."""
    return serving_facts(
        {name: setting.value for name, setting in profile.flags.items() if setting.value is not False},
        context_length=profile.model.context_length,
        platform=profile.engine.platform,
        sparse_attention=profile.model.sparse_attention,
        architecture=profile.model.architecture,
    )

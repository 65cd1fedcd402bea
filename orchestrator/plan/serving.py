"""What a profile's flags mean, before there is a plan of it."""

from typing import TYPE_CHECKING

from orchestrator.engine.serving import ServingFacts, serving_facts

if TYPE_CHECKING:  # it takes long to import, and a command over servers that run has no use for it
    from orchestrator.profiles.schema import Profile


def profile_serving(profile: "Profile") -> ServingFacts:
    """Decide what the flags of a profile mean; those that are `false` are not set."""
    return serving_facts(
        {name: setting.value for name, setting in profile.flags.items() if setting.value is not False},
        context_length=profile.model.context_length,
        platform=profile.engine.platform,
        sparse_attention=profile.model.sparse_attention,
    )

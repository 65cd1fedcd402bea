"""For every test: hypothesis measures no times, since other programs share the machine."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

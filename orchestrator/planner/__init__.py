"""From a composed profile to a plan: every compatibility rule lives here."""

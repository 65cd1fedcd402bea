"""From a plan to artifacts: pure functions that return text, bytes and argv."""

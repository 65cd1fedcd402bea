"""The files rendered from a plan. Pure: nothing is read or written."""

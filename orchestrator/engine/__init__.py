"""All knowledge of sglang: flags, launch line, HTTP API, metrics, log wording, memory.

sglang is the only engine, so there is no interface for engines: other packages call these modules.
"""

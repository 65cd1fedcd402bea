"""All knowledge of sglang: flags, launch line, HTTP API, metrics, log wording, memory."""

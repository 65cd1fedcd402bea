"""The server's command as a script that a person runs."""

from plan_samples import plan_of

from orchestrator.planner.planning import render_artifacts
from orchestrator.render.scripts import server_script


def test_script_requires_api_key_file() -> None:
    """The script used to leave the key out: by hand, a server on 0.0.0.0 answered everyone."""
    script = server_script(render_artifacts(plan_of("cpu-tiny", "server.host=0.0.0.0", "server.api_key_env=KEY")))
    assert ': "${API_KEY_FILE:?' in script
    assert script.endswith('  --config "$API_KEY_FILE"\n')
    assert "API_KEY_FILE" not in server_script(render_artifacts(plan_of("cpu-tiny")))

"""The script that starts a server manually."""

from plan_samples import plan_of

from orchestrator.planner.planning import render_artifacts
from orchestrator.render.scripts import server_script


def test_script_requires_api_key_file() -> None:
    """The script once omitted the key, so a manually started server on 0.0.0.0 was open to everyone."""
    script = server_script(render_artifacts(plan_of("cpu-tiny", "server.host=0.0.0.0", "server.api_key_env=KEY")))
    assert ': "${API_KEY_FILE:?' in script
    assert script.endswith('  --config "$API_KEY_FILE"\n')
    assert "API_KEY_FILE" not in server_script(render_artifacts(plan_of("cpu-tiny")))

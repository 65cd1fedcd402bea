"""What `deploy status` shows of servers."""

from dataclasses import replace

from orchestrator.servers.status import ServerStatus, status_table


def server(health: str) -> ServerStatus:
    return ServerStatus(
        name="owl",
        profile="cpu-tiny",
        runtime="process",
        status="running",
        health=health,
        url="http://127.0.0.1:30010",
        plan="d1" * 32,
        started_at=None,
        ended_at=None,
        age="6 s",
        restarts=0,
        exit_code=None,
        detail="",
        run_dir="/runs/owl/1",
    )


def test_health_is_a_column_where_it_was_asked() -> None:
    assert status_table([server("")]).splitlines() == [
        "name  profile   runtime  status           url                     plan",
        "owl   cpu-tiny  process  running for 6 s  http://127.0.0.1:30010  d1d1d1d1d1d1",
    ]
    assert "status           health   url" in status_table([server("healthy")])


def test_replicas_of_two_plans_stand_side_by_side() -> None:
    one, two = (
        replace(server(""), name=f"owl/replica-{number}", plan=plan) for number, plan in ((1, "aaaa"), (2, "bbbb"))
    )
    mixed = replace(server("healthy"), replicas=(one, two))
    assert [line.split()[0] for line in status_table([mixed]).splitlines()] == [
        *("name", "owl", "owl/replica-1", "owl/replica-2")
    ]
    assert len(status_table([replace(mixed, replicas=(one, replace(two, plan="aaaa")))]).splitlines()) == 2

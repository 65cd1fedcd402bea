"""Test the survey script and the parsing of its output."""

from collections.abc import Sequence

import pytest
from host_samples import runner_of, sections

from orchestrator.core.errors import HostError
from orchestrator.core.subprocesses import CompletedProgram
from orchestrator.hosts.host_state import cpu_list, listening_ports, read_host_state
from orchestrator.hosts.ssh import ssh_runner
from orchestrator.hosts.survey import HOST_SECTIONS, Section, parse, script, survey


def test_each_command_is_delimited_by_name_and_exit_code() -> None:
    assert script({"a b": "true"}).splitlines()[-1] == ("printf '\\036%s\\n' 'a b'; ( true ) 2>&1; printf '\\037%d' $?")


def test_truncated_section_is_dropped() -> None:
    assert parse("\x1ea b\nline\nline\n\x1f0\x1ec\n\x1f127\x1ed\nincomplete") == {
        "a b": Section(0, "line\nline\n"),
        "c": Section(127, ""),
    }


def test_unreachable_host_is_an_error() -> None:
    failed = CompletedProgram(
        argv=(), code=255, stdout="", stderr="ssh: connect to host node port 22: Connection refused\n"
    )
    with pytest.raises(HostError, match="Connection refused"):
        survey(lambda _argv: failed, HOST_SECTIONS)


def test_ssh_runs_in_batch_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def run_or_127(argv: Sequence[str], *, timeout: float) -> CompletedProgram:
        assert timeout > 0
        commands.append(tuple(argv))
        return CompletedProgram(argv=(), code=0, stdout="", stderr="")

    monkeypatch.setattr("orchestrator.hosts.ssh.run_or_127", run_or_127)
    ssh_runner("ssh://amd@node:2222")(("cat", "/proc/a b"))
    (argv,) = commands
    assert "BatchMode=yes" in argv
    assert argv[-5:] == ("-p", "2222", "--", "amd@node", "cat '/proc/a b'")


def test_survey_is_parsed_into_values() -> None:
    disk = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/nvme0n1 100 60 40 60% /data\n"
    node = {**sections("mi355x-healthy"), "disk /data/models": disk, "memlock": "8192\n"}
    host_state = read_host_state(survey(runner_of(node), {}))
    assert host_state.user == "root"
    assert [device.path for device in host_state.devices][:2] == ["/dev/kfd", "/dev/dri/renderD128"]
    assert host_state.memlock == 8192 * 1024
    assert host_state.disks["/data/models"].free == 40 * 1024
    assert (len(host_state.cpus_allowed), host_state.numa_balancing) == (256, False)


def test_cpu_list_and_listening_ports_are_parsed() -> None:
    assert cpu_list("0-2,8\n") == {0, 1, 2, 8}
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 640 1\n"
        "   1: 0100007F:7531 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 641 1\n"
        "   0: 00000000000000000000000000000000:7532 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0\n"
    )
    assert listening_ports(table) == {30000, 30002}

"""The networks between nodes: their environment in a plan, and the firmware of their NICs."""

import pytest
from plan_samples import plan_of

from orchestrator.core.catalog import Catalog
from orchestrator.core.errors import ProfileError
from orchestrator.core.origin import Origin
from orchestrator.plan.plan import EnvVar
from orchestrator.planner.planning import read_networks

NETWORKS = read_networks(Catalog.shipped())
DECODE_CACHE = "layout.decode.flags.disaggregation-decode-enable-radix-cache=true"
WIDE = ("runtime=slurm", "layout.nodes=2", "layout.tp=16", "server.api_key_env=K", "engine.python=/opt/python")


def variables(profile: str, *overrides: str) -> dict[str, EnvVar]:
    return {variable.name: variable for variable in plan_of(profile, *overrides).env}


@pytest.mark.parametrize("name", ["ainic", "thor2", "connectx"])
def test_multi_node_ranks_get_nic_environment(name: str) -> None:
    result = variables("mi355x-tp8", *WIDE, f"hardware.network={name}", "env.NCCL_IB_TIMEOUT=22")
    for variable, setting in NETWORKS[name].rccl_env.items():
        assert (result[variable].value == setting.value) == (variable != "NCCL_IB_TIMEOUT")
    assert (result["NCCL_IB_TIMEOUT"].value, result["NCCL_IB_TIMEOUT"].origin) == ("22", Origin.USER)
    assert result["NCCL_NET_PLUGIN"].origin is Origin.RECIPE
    assert "ROCm/cvs" in result["NCCL_NET_PLUGIN"].source
    assert not [variable for variable in result if variable.endswith("GID_INDEX")]  # it differs between nodes


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (WIDE, True),
        ((*WIDE, "hardware.network=thor2"), False),
        ((*WIDE, "env.NCCL_IB_DISABLE=1"), False),
        ((), False),
    ],
)
def test_ranks_on_several_nodes_without_network_get_a_warning(overrides: tuple[str, ...], *, warned: bool) -> None:
    warnings = [warning for warning in plan_of("mi355x-tp8", *overrides).warnings if warning.id == "network-unknown"]
    assert len(warnings) == warned


def test_ranks_of_a_role_get_environment_of_transfer_nics() -> None:
    roles = ("layout.tp=16", "layout.prefill.nodes=2", "layout.decode.nodes=2", DECODE_CACHE)
    transfer = ("layout.transfer.backend=mori", "layout.transfer.network=ainic")
    result = variables("mi355x-tp8", "runtime=slurm", *WIDE[3:], *roles, *transfer)
    assert result["NCCL_NET_PLUGIN"].value == "librccl-anp.so"


def test_one_node_needs_no_environment_for_nics() -> None:
    assert "NCCL_NET_PLUGIN" not in variables("mi355x-tp8", "hardware.network=ainic")


def test_unknown_network_is_rejected_with_location() -> None:
    with pytest.raises(ProfileError, match="no network `aini` found") as raised:
        plan_of("mi355x-tp8", "hardware.network=aini")
    assert (raised.value.location, raised.value.hint) == ("--set hardware.network", "did you mean `ainic`?")


@pytest.mark.parametrize(
    ("name", "firmware", "good"),
    [
        ("ainic", "1.117.5-a-45", True),
        ("ainic", "1.117.1-a-63", False),
        ("thor2", "231.2.60.0", False),
        ("thor2", "235.2.86.1", True),
        ("thor2", "237.1.100.0", False),
        ("thor2", "240.0.1.0", True),
        ("connectx", "28.39.1002", True),  # no bad version is known
    ],
)
def test_bad_nic_firmware_is_recognized(name: str, firmware: str, *, good: bool) -> None:
    assert NETWORKS[name].is_good(firmware) is good


APART = ("layout.prefill.tp=4", "layout.decode.tp=4", DECODE_CACHE)


@pytest.mark.parametrize(
    ("backend", "network", "variable"),
    [
        ("mooncake", "ainic", "MC_GID_INDEX"),
        ("mooncake", "thor2", "MC_DISABLE_HIP"),
        ("mooncake", "connectx", "MC_DISABLE_HIP"),
        ("mori", "ainic", "MORI_IO_QP_MAX_SGE"),
        ("mori", "connectx", "MORI_IO_QP_MAX_SGE"),
        ("nixl", "connectx", "UCX_TLS"),
        ("mori", "thor2", None),
        ("nixl", "ainic", None),
        ("nixl", "thor2", None),
    ],
)
def test_transfer_has_published_environment_or_a_warning(backend: str, network: str, variable: str | None) -> None:
    chosen = (f"layout.transfer.backend={backend}", f"layout.transfer.network={network}")
    plan = plan_of("mi355x-tp8", *APART, *chosen)
    assert (variable in {item.name for item in plan.env}) == (variable is not None)
    warned = [warning for warning in plan.warnings if warning.id == "transfer-unpublished"]
    assert bool(warned) == (variable is None)
    for warning in warned:
        assert f"for {backend} over {network}" in warning.summary
        assert "mooncake" in warning.hint


def test_known_transfer_values_name_their_publication() -> None:
    for network in NETWORKS.values():
        for settings in network.transfer.values():
            assert all(setting.origin is Origin.INFERRED and setting.source for setting in settings.values())

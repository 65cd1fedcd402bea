"""Checks of a prefill and decode pair, working and defective."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import pytest
from smoke_target import TARGET

from orchestrator.engine.disaggregation import TRANSFERS
from orchestrator.verify import pair as pair_module
from orchestrator.verify.pair import Pair, pair_checks, role_report


@dataclass
class World:
    """A gateway and a prefill server; the correct token after N tokens is N."""

    transfers: float = 3
    exports_count: bool = True
    transfers_cache: bool = True
    damaged: int = 0  # number of wrong tokens in the gateway's answer


class Client:
    """A fake of `EngineClient`."""

    world: World
    sampled: list[int]

    def __init__(self, url: str, **_: object) -> None:
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def exported(self) -> bytes:
        return (
            f'{TRANSFERS}{{engine_type="prefill"}} {self.world.transfers}\n'.encode()
            if self.world.exports_count
            else b""
        )

    def status(self, _: str, __: str, body: Mapping[str, Any], **___: object) -> int:
        assert (body["sampling_params"]["temperature"], "bootstrap_room" in body) == (1.0, True)
        self.sampled.append(body["routed_dp_rank"])
        return 200

    def post(self, _: str, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt, tokens = body.get("input_ids") or body["text"], body["sampling_params"]["max_new_tokens"]
        assert ("bootstrap_room" in body) == (self.url == "prefill"), "a role alone needs a bootstrap room"
        ids = [len(prompt) + number for number in range(tokens)]
        if self.url == "gateway":
            self.world.transfers += self.world.transfers_cache
            ids = [token + 1000 * (number < self.world.damaged) for number, token in enumerate(ids)]
        return {
            "text": "",
            "output_ids": ids,
            "meta_info": {"completion_tokens": tokens, "prompt_tokens": 1, "cached_tokens": 0},
        }


def verdicts(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    *,
    on_gpu: bool = False,
    log: str = "TcpTransport: listen on 1",
    transfer: str = "mooncake over tcp",
) -> dict[str, tuple[str, str]]:
    monkeypatch.setattr(Client, "world", world, raising=False)
    monkeypatch.setattr(pair_module, "EngineClient", Client)
    monkeypatch.setattr(pair_module, "_TIMEOUT", 0)
    pair = Pair(
        model="tiny",
        gateway="gateway",
        prefill=["prefill"],
        decode=["decode"],
        key=None,
        on_gpu=on_gpu,
        transfer=transfer,
        logs=lambda: {"prefill 1": [log]},
    )
    return {check.name.removeprefix("pair: "): (str(check.verdict), check.evidence) for check in pair_checks(pair)}


def test_working_pair_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    results = verdicts(World(), monkeypatch)
    assert {verdict for verdict, _ in results.values()} == {"passed"}
    assert results["KV cache transferred"][1] == "3 transfers before a request, 4 after it"


def test_missing_kv_cache_transfer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(World(transfers_cache=False), monkeypatch)["KV cache transferred"][0] == "failed"
    assert verdicts(World(exports_count=False), monkeypatch)["KV cache transferred"][0] == "warning"


@pytest.mark.parametrize(
    ("damaged", "on_gpu", "verdict"), [(1, False, "failed"), (4, True, "warning"), (5, True, "failed")]
)
def test_corrupt_transfer_changes_the_answer(
    damaged: int, on_gpu: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verdicts(World(damaged=damaged), monkeypatch, on_gpu=on_gpu)["answer of one server"]
    assert result[0] == verdict
    assert result[1].startswith(f"{damaged} of 16 tokens differ")


def test_unexpected_transfer_network_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    result = verdicts(World(), monkeypatch, log="installTransport, type=rdma")["network"]
    assert result[0] == "failed"
    assert result[1].startswith("prefill 1: the profile sets TCP")


@pytest.mark.parametrize(
    ("transfer", "verdict"),
    [("nixl over connectx", "warning"), ("nixl over tcp", "passed"), ("mori over ainic", "passed")],
)
def test_log_without_a_network_does_not_verify_rdma(
    transfer: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdicts(World(), monkeypatch, log="", transfer=transfer)["network"][0] == verdict


@pytest.mark.parametrize(("on_gpu", "sampled"), [(True, [0, 1]), (False, [])])
def test_role_generates_alone(on_gpu: bool, sampled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs each rank first compiles its sampling kernels."""
    monkeypatch.setattr(Client, "world", World(), raising=False)
    monkeypatch.setattr(Client, "sampled", [], raising=False)
    monkeypatch.setattr(pair_module, "EngineClient", Client)
    report = role_report(replace(TARGET, url="prefill", dp=2, on_gpu=on_gpu))
    assert [(check.name, str(check.verdict)) for check in report.checks] == [("generates alone", "passed")]
    assert sorted(Client.sampled) == sampled

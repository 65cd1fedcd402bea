"""Test images/check_server_args.py without sglang: which errors do not concern arguments, and the matching of names.

tests/integration/test_argument_check.py runs it with sglang.
"""

import json
import sys
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import check_server_args as program
import pytest

from orchestrator.engine.server_args import first_rejection


def error_of(action: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any exception
        action()
    return caught.value


def missing_gpu_error(folder: Path) -> BaseException:
    """Return torch's error about a missing GPU, raised from a file in a folder `torch`."""
    module = folder / "torch" / "cuda.py"
    module.parent.mkdir()
    module.write_text("def init():\n    raise RuntimeError('No HIP GPUs are available')\n")
    space: dict[str, Callable[[], object]] = {}
    exec(compile(module.read_text(), str(module), "exec"), space)  # noqa: S102 - its traceback needs the file name
    return error_of(space["init"])


def test_host_errors_are_distinguished_from_argument_errors(tmp_path: Path) -> None:
    def reject_argument() -> None:
        raise ValueError("--dcp-size must be >= 1")

    assert program._is_of_this_host(missing_gpu_error(tmp_path))
    assert program._is_of_this_host(error_of(lambda: Path("/nonexistent/config.json").read_text()))
    assert program._is_of_this_host(error_of(lambda: __import__("no_such_package")))
    assert program._is_of_this_host(error_of(lambda: MagicMock() < 3))
    assert not program._is_of_this_host(error_of(reject_argument))
    assert not program._is_of_this_host(error_of(lambda: 8 % 0))


def test_each_option_except_model_is_omitted_with_values() -> None:
    argv = ["--model-path", "m", "--tp-size", "8", "--enable-metrics", "--cuda-graph-bs", "1", "2"]
    assert dict(program._leave_one_out(argv)) == {
        "tp-size": ["--model-path", "m", "--enable-metrics", "--cuda-graph-bs", "1", "2"],
        "enable-metrics": ["--model-path", "m", "--tp-size", "8", "--cuda-graph-bs", "1", "2"],
        "cuda-graph-bs": ["--model-path", "m", "--tp-size", "8", "--enable-metrics"],
    }


@pytest.mark.parametrize(
    ("option", "matches"), [("tp-size", True), ("tp", False), ("tp-size-x", False), ("tensor-parallel-size", True)]
)
def test_option_name_is_matched_as_whole_word(option: str, matches: bool) -> None:
    assert program._names("argument --tp-size/--tensor-parallel-size: invalid int value", option) == matches


def test_model_files_replace_model_path(tmp_path: Path) -> None:
    request = {
        "argv": [["--model-path", "models/glm", "--tp-size", "8"]],
        "model": {"name": "glm", "files": {"config.json": "{}", "../../out.py": "x"}},
    }
    commands, replaced = program.write_model_files(request, tmp_path)
    assert commands == [["--model-path", str(tmp_path / "glm"), "--tp-size", "8"]]
    assert replaced == {str(tmp_path / "glm"): "models/glm"}
    assert sorted(path.name for path in (tmp_path / "glm").iterdir()) == ["config.json", "out.py"]
    assert program.write_model_files({**request, "model": None}, tmp_path)[0] == request["argv"]


def test_gpu_is_simulated_from_plan_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, arch, capability in (
        ("rocm", "gfx942", (9, 4)),
        ("rocm", "gfx950", (9, 5)),
        ("cuda", "sm100", (10, 0)),
    ):
        torch = MagicMock()
        torch.version.hip = torch.version.cuda = None
        monkeypatch.setitem(sys.modules, "torch", torch)
        program.pretend({"platform": platform, "arch": arch, "gpus": 8, "vram_bytes": 1 << 30, "compute_units": 256})
        assert torch.cuda.get_device_capability() == capability
        assert torch.cuda.get_device_properties(0).gcnArchName == arch
        assert (torch.cuda.device_count(), torch.cuda.is_available()) == (8, True)
        assert (torch.version.hip is None) == (platform == "cuda")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["--chat-template", "/no/such.jinja"], "chat-template"),
        (["--tokenizer-path", "./no-such-folder"], "tokenizer-path"),
        (["--speculative-draft-model-path", "/no/such"], "speculative-draft-model-path"),
        (["--chat-template", "chatml"], None),  # a template that sglang includes
        (["--tokenizer-path", "org/name"], None),  # a repository on the hub
        (["--tokenizer-path", "/models/other"], None),  # below the directory of the checkpoint
        (["--tokenizer-path", __file__], None),
    ],
)
def test_nonexistent_path_argument_is_rejected(words: list[str], missing: str | None, tmp_path: Path) -> None:
    """`ServerArgs` accepts such a path, and the start would fail only after the weights are loaded."""
    (tmp_path / "config.json").write_text("{}")
    module = ModuleType("server_args")
    module.prepare_server_args = lambda _: SimpleNamespace(check_server_args=lambda: None)  # type: ignore[attr-defined]
    checker = program.ArgumentChecker(module, cpu=False, replaced={str(tmp_path): "/models/glm"})
    verdict = checker.verdict(["--model-path", str(tmp_path), *words])
    if missing is None:
        assert verdict == {"accepted": "validated"}
    else:
        assert verdict["rejected"]["options"] == [missing]  # type: ignore[index]
        assert verdict["rejected"]["message"] == f"`{words[1]}` does not exist"  # type: ignore[index]


ALL = {"ionic_0", "ionic_1", "mlx5_0"}
IPV4 = "0000:0000:0000:0000:0000:ffff:c0a8:0101"
LINK_LOCAL = "fe80:0000:0000:0000:0690:81ff:fe4a:72e2"


def make_nic(sysfs: Path, name: str, *, vendor: str = "0x1dd8", routable: int = 1) -> None:
    """A NIC in a tree like the kernel's, with a link; its row `routable` has an IPv4 address."""
    rows = {0: LINK_LOCAL, routable: IPV4}
    files = {"device/vendor": vendor, "ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Ethernet"}
    files |= {f"ports/1/gid_attrs/types/{row}": "RoCE v2" for row in rows}
    files |= {f"ports/1/gids/{row}": gid for row, gid in rows.items()}
    for file, text in files.items():
        (sysfs / name / file).parent.mkdir(parents=True, exist_ok=True)
        (sysfs / name / file).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("visible", "index", "problem"),
    [
        (ALL, None, ""),
        (ALL, "1", ""),
        (ALL, "-1", ""),  # Mooncake's own choice
        (ALL, "0", "MC_GID_INDEX=0 is no row of RoCE v2 with an address on ionic_0, ionic_1"),  # link-local
        (ALL, "3", "MC_GID_INDEX=3 is no row of RoCE v2 with an address on ionic_0, ionic_1"),  # empty
        ({"mlx5_0"}, None, "libibverbs does not see ionic_0, ionic_1: the image lacks the provider libraries"),
        (set(), None, "libibverbs does not see ionic_0, ionic_1, mlx5_0: "),
    ],
)
def test_nics_of_node_are_compared_with_libibverbs(
    visible: set[str], index: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The management network's NIC has other rows; it needs a provider library all the same."""
    for name in ("ionic_0", "ionic_1"):
        make_nic(tmp_path, name)
    make_nic(tmp_path, "mlx5_0", vendor="0x15b3", routable=3)
    monkeypatch.setattr(program, "visible_nics", lambda: visible)
    monkeypatch.delenv("MC_GID_INDEX", raising=False)
    if index is not None:
        monkeypatch.setenv("MC_GID_INDEX", index)
    found = program.rdma_problem(tmp_path)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_node_without_rdma_nic_is_rejected_before_sglang_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "rdma_problem", lambda: "the node has no RDMA NIC")
    monkeypatch.setattr(program, "answer", lambda request: {"verdicts": [{"accepted": request["platform"]}]})
    question, verdict = tmp_path / "question", tmp_path / "verdict"
    for rdma, code in ((True, program.REJECTED), (False, 0)):
        question.write_text(json.dumps({"rdma": rdma, "platform": "cuda"}))
        assert program.first_step(question, verdict) == code
    rejection = first_rejection(verdict.read_text())
    assert rejection is not None
    assert (rejection.summary, rejection.is_of_node) == ("the node has no RDMA NIC", True)


@pytest.mark.skipif(find_library("ibverbs") is None, reason="libibverbs is not installed")
def test_real_libibverbs_lists_the_nics_of_this_machine() -> None:
    nics = {path.name for path in Path("/sys/class/infiniband").glob("*")}
    assert program.visible_nics() <= nics

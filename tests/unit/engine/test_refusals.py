"""What sources refuse of options: read into conditions, and judged by what is set."""

import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from orchestrator.core.errors import ProfileError
from orchestrator.core.paths import data_root
from orchestrator.engine.flags import FlagSpec, FlagTable, FlagValue
from orchestrator.engine.refusals import refused
from orchestrator.planner.planning import load

sys.path.insert(0, str(data_root() / "profiles/engines/flags"))
from refusals import Sources, names_in

SOURCES = """
    CHOICES = ["a", "b"]

    class ServerArgs:
        def __post_init__(self):
            self._check_port()
            if self.size is None:
                self.size = 4
            if self.fast:
                self.pages = 64
            if self.model_path in ("none",):
                return
            hook(self)
            self.late = 1

        def _check_port(self):
            if getattr(self, "_checked", False):
                return
            if not 1 <= self.port2 <= 65535:
                raise ValueError(f"--port2 ({self.port2}) is no port")

        def check_server_args(self):
            assert self.late == 1
            assert self.pages % 2 == 0, "pages are even"
            assert self.size > 0
            try:
                import granian
            except ImportError:
                raise ValueError("no granian")
            names = []
            for name in CHOICES:
                names.append(name)
            assert names, "no name"

    def hook(server_args):
        cfg = resolving_view(server_args)
        assert cfg.late >= 0, "late is not negative"
        kind = cfg.kind
        if kind not in CHOICES and not is_hip():
            raise ValueError("only a and b")
        if config_of(cfg).large:
            return
        assert cfg.count > 0, "not for large ones"
"""
OPTIONS = {name: name for name in ("size", "pages", "port2", "kind", "count", "fast", "late", "model_path")}
DEFAULTS = {"size": None, "pages": 2, "port2": 1, "kind": "a", "count": 1, "fast": False, "late": 0}


@pytest.fixture
def table(tmp_path: Path) -> FlagTable:
    folder = tmp_path / "sglang/srt"
    (folder / "arg_groups").mkdir(parents=True)
    (folder / "server_args.py").write_text(dedent(SOURCES))
    sources = Sources(tmp_path, OPTIONS)
    found = sources.refusals()
    specs = {name: spec(None if name == "kind" else "int", switch=name == "fast") for name in OPTIONS}
    changes = sources.changes(set().union(*map(names_in, found)))
    return FlagTable(version="0.0.1", flags=specs, refusals=found, changes=changes, defaults=DEFAULTS)


def spec(kind: str | None, *, switch: bool) -> FlagSpec:
    return FlagSpec(
        takes_value=not switch, multiple=False, optional=False, type=kind, choices=(), deprecated=False, successor="",
        alias_of=None,
    )  # type: ignore[arg-type] # fmt: skip


@pytest.mark.parametrize(
    ("flags", "platform", "said"),
    [
        ({"port2": 70000}, "rocm", "--port2 (…) is no port"),
        ({"port2": 7}, "rocm", None),
        ({"pages": 3}, "rocm", "pages are even"),
        ({"pages": 3, "fast": True}, "rocm", None),  # sglang makes it 64
        ({"fast": True}, "rocm", None),
        ({"late": -1}, "rocm", "late is not negative"),  # it is changed after that line
        ({"late": 5}, "rocm", None),  # it is changed before that line
        ({"size": 0}, "rocm", "self.size > 0"),
        ({"size": 1}, "rocm", None),
        ({"kind": "c"}, "cuda", "only a and b"),
        ({"kind": "c"}, "rocm", None),
        ({"count": 0}, "rocm", None),  # large models return before that line
        ({"kind": "b", "pages": 4, "port2": 2, "size": 8}, "cuda", None),
        ({"port2": "x"}, "rocm", None),  # that is for the parser
    ],
)
def test_only_what_is_certain_is_refused(
    table: FlagTable, flags: Mapping[str, FlagValue], platform: str, said: str | None
) -> None:
    found = [each.message for each in refused(table, flags, {}, platform)]
    assert found == ([] if said is None else [said])


def test_a_refusal_names_its_option_and_its_line(table: FlagTable) -> None:
    [found] = refused(table, {"pages": 3}, {}, "rocm")
    assert (found.name, found.place) == ("pages", "server_args.py:24")


def test_what_sources_change_in_every_case_is_never_certain(table: FlagTable) -> None:
    always = FlagTable(**{**vars(table), "changes": {"pages": [""]}})
    assert not list(refused(always, {"pages": 3}, {}, "rocm"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dcp-size=0", "must be >= 1"),
        ("grpc-port=70000", "must be between 1 and 65535"),
        ("pp-max-micro-batch-size=0", "must be a positive integer or None"),
        ("retraction-policy=priority", "requires --enable-priority-scheduling"),
        ("tokenizer-worker-num=0", "Tokenizer worker num"),
        ("export-metrics-to-file=true", "--export-metrics-to-file-dir is required"),
    ],
)
def test_a_plan_refuses_what_its_version_says(setting: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load("mi355x-tp8", overrides=["engine=sglang-0.5.16-rocm", f"flags.{setting}"])
    [problem] = [each for each in caught.value.problems if message in each.message]
    assert problem.message.startswith(f"sglang 0.5.16 refuses `--{setting.partition('=')[0]}`: ")
    assert problem.location == f"--set flags.{setting.partition('=')[0]}"

"""images/apply_patches.py: content decides, hunks match to the letter, the receipt is proved."""

import importlib.util
from difflib import unified_diff
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.images.sources import applier_path


def load_applier() -> ModuleType:
    spec = importlib.util.spec_from_file_location("apply_patches", applier_path())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


applier = load_applier()

DIFF = """\
--- a/kernels/copy.cuh
+++ b/kernels/copy.cuh
@@ -1,3 +1,5 @@
 #include <algorithm>
+#ifdef USE_ROCM
 #include <cuda_runtime.h>
+#endif
{blank}
""".replace("{blank}", " ")  # an empty line of context
SOURCE = "#include <algorithm>\n#include <cuda_runtime.h>\n\nint main() {}\n"
MENDED = "#include <algorithm>\n#ifdef USE_ROCM\n#include <cuda_runtime.h>\n#endif\n\nint main() {}\n"


def patch(**changed: object) -> dict[str, Any]:
    return {
        "id": "guard",
        "title": "guards the include",
        "upstream": "owner/project#1",
        "sources": "sglang",
        "detect": {
            "needed": [{"file": "copy.cuh", "match": "^#include <cuda_runtime"}],
            "present": [{"file": "copy.cuh", "match": "^#ifdef USE_ROCM"}],
        },
        "apply": {"kind": "diff", "file": "guard.patch"},
        "verify": [{"file": "copy.cuh", "match": "^#ifdef USE_ROCM"}],
        "diff": DIFF,
        **changed,
    }


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "sglang"
    (root / "kernels").mkdir(parents=True)
    (root / "kernels/copy.cuh").write_text(SOURCE)
    return root


def state(package: Path, asked: dict[str, Any]) -> tuple[str, str]:
    found, evidence = applier.state_of(asked, {"sglang": package})
    return found, "\n".join(evidence)


def test_sources_without_the_fix_need_it_and_the_line_says_so(package: Path) -> None:
    assert state(package, patch()) == ("needed", "kernels/copy.cuh:2: #include <cuda_runtime.h>")


def test_sources_with_the_fix_have_it(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text(MENDED)

    assert state(package, patch()) == ("present upstream", "kernels/copy.cuh:2: #ifdef USE_ROCM")


def test_a_file_that_does_not_exist_has_nothing_to_mend(package: Path) -> None:
    (package / "kernels/copy.cuh").unlink()

    assert state(package, patch()) == ("not applicable", "`copy.cuh` does not exist")


def test_sources_that_look_like_neither_are_a_conflict_for_a_diff_only(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text("#include <something_else.h>\n")

    assert state(package, patch())[0] == "conflict"
    assert state(package, patch(apply={"kind": "environment", "env": []}))[0] == "not applicable"


def test_a_context_that_changed_is_a_conflict_that_shows_both_sides(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text(SOURCE.replace("<algorithm>", "<vector>"))

    found, evidence = state(package, patch())

    assert found == "conflict"
    assert "    | #include <algorithm>\n    | #include <cuda_runtime.h>" in evidence
    assert "    | #include <vector>\n    | #include <cuda_runtime.h>" in evidence


def test_a_context_in_two_places_is_refused_rather_than_guessed(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text(SOURCE + SOURCE)

    assert "2 times" in state(package, patch())[1]


def test_applying_writes_the_file_its_hashes_and_leaves_no_bytecode(package: Path) -> None:
    stale = package / "kernels/__pycache__/copy.cpython-310.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"old")

    (entry,) = applier.apply([patch()], {"sglang": package})

    assert (package / "kernels/copy.cuh").read_text() == MENDED
    assert entry["state"] == "applied"
    assert entry["files"][0]["after"] == applier.sha256(package / "kernels/copy.cuh") != entry["files"][0]["before"]
    assert not stale.exists()


def test_applying_twice_changes_nothing(package: Path) -> None:
    applier.apply([patch()], {"sglang": package})
    (entry,) = applier.apply([patch()], {"sglang": package})

    assert (entry["state"], entry["files"]) == ("present upstream", [])
    assert (package / "kernels/copy.cuh").read_text() == MENDED


def test_every_diff_that_fits_nowhere_is_named_and_nothing_is_written(package: Path) -> None:
    lost = patch(id="lost", detect={"needed": [{"file": "gone.py", "match": "x"}], "present": []})
    torn = patch(id="torn", detect={"needed": [{"file": "copy.cuh", "match": "no such line"}], "present": []})

    with pytest.raises(applier.Refusal) as refused:
        applier.apply([patch(), lost, torn], {"sglang": package})

    assert "patch `lost` neither applies nor is present\n  `gone.py` does not exist" in str(refused.value)
    assert "patch `torn`" in str(refused.value)
    assert "upstream: owner/project#1" in str(refused.value)
    assert (package / "kernels/copy.cuh").read_text() == SOURCE


def test_a_file_patch_is_applied_by_the_file_that_was_given(package: Path, tmp_path: Path) -> None:
    table = patch(apply={"kind": "file", "input": "moe-table", "destination": str(tmp_path / "t.csv"), "env": []})

    assert applier.apply([table], {"sglang": package})[0]["state"] == "needed"
    (tmp_path / "t.csv").write_text("gfx,cu_num\n")
    assert applier.apply([table], {"sglang": package})[0]["state"] == "applied"


class TestVerify:
    @pytest.fixture
    def receipt(self, package: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        monkeypatch.setattr(applier, "installed", lambda _name: package.resolve())
        return {"patches": applier.apply([patch()], {"sglang": package})}

    def test_what_was_written_is_there(self, package: Path, receipt: dict[str, Any]) -> None:
        applier.verify([patch()], {"sglang": package}, receipt)

    def test_a_file_that_was_changed_afterwards(self, package: Path, receipt: dict[str, Any]) -> None:
        (package / "kernels/copy.cuh").write_text(SOURCE)
        with pytest.raises(applier.Refusal, match="is not what was written"):
            applier.verify([patch()], {"sglang": package}, receipt)

    def test_bytecode_that_came_back(self, package: Path, receipt: dict[str, Any]) -> None:
        (package / "kernels/__pycache__").mkdir()
        (package / "kernels/__pycache__/copy.cpython-311.pyc").touch()
        with pytest.raises(applier.Refusal, match="stale bytecode"):
            applier.verify([patch()], {"sglang": package}, receipt)

    def test_python_imports_other_sources(
        self, package: Path, receipt: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(applier, "installed", lambda _name: tmp_path / "elsewhere")
        with pytest.raises(applier.Refusal, match="elsewhere, the patches went to"):
            applier.verify([patch()], {"sglang": package}, receipt)


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "x = 1\n"]), min_size=1, max_size=12)


@given(before=LINES, after=LINES)
@settings(max_examples=200)
def test_the_diff_between_two_texts_makes_one_of_the_other(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str]
) -> None:
    """With the whole file as context, so that every hunk has one place only."""
    root = tmp_path_factory.mktemp("diff")
    (root / "file").write_text("".join(before))
    diff = "".join(unified_diff(before, after, "a/file", "b/file", n=20))

    assert applier.patched_texts(root, diff).get(root / "file", "".join(before)) == "".join(after)

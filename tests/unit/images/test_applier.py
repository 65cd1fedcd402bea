"""Test images/apply_patches.py: content decides the state, hunks match exactly, and the receipt is verified."""

import errno
import os
from difflib import unified_diff
from pathlib import Path
from typing import Any

import apply_patches as applier
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
FIXED = "#include <algorithm>\n#ifdef USE_ROCM\n#include <cuda_runtime.h>\n#endif\n\nint main() {}\n"


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


def state(package: Path, patch_: dict[str, Any]) -> tuple[str, str]:
    result, evidence = applier.state_of(patch_, {"sglang": package})
    return result, "\n".join(evidence)


def test_unpatched_sources_are_needed_with_evidence(package: Path) -> None:
    assert state(package, patch()) == ("needed", "kernels/copy.cuh:2: #include <cuda_runtime.h>")


def test_patched_sources_are_upstream(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text(FIXED.replace("#endif", "#endif  // USE_ROCM"))

    assert state(package, patch()) == ("upstream", "kernels/copy.cuh:2: #ifdef USE_ROCM")


def test_patch_for_missing_file_is_not_applicable(package: Path) -> None:
    (package / "kernels/copy.cuh").unlink()

    assert state(package, patch()) == ("not applicable", "there is no file `copy.cuh`")


def test_unrecognized_sources_conflict_with_file_patches(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text("#include <something_else.h>\n")

    assert state(package, patch())[0] == "conflict"
    assert state(package, patch(apply={"kind": "config", "transform": "t"}))[0] == "conflict"
    assert state(package, patch(apply={"kind": "environment", "env": []}))[0] == "not applicable"


def test_changed_context_is_a_conflict_showing_both_sides(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text(SOURCE.replace("<algorithm>", "<vector>"))

    result, evidence = state(package, patch())

    assert result == "conflict"
    assert "    | #include <algorithm>\n    | #include <cuda_runtime.h>" in evidence
    assert "    | #include <vector>\n    | #include <cuda_runtime.h>" in evidence


def test_ambiguous_context_is_rejected(package: Path) -> None:
    (package / "kernels/copy.cuh").write_text(SOURCE + SOURCE)

    assert "2 times" in state(package, patch())[1]


def test_apply_records_hashes_and_removes_bytecode(package: Path) -> None:
    stale = package / "kernels/__pycache__/copy.cpython-310.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"old")

    (entry,) = applier.apply([patch()], {"sglang": package})

    assert (package / "kernels/copy.cuh").read_text() == FIXED
    assert entry["state"] == "applied"
    assert entry["files"][0]["after"] == applier.sha256(package / "kernels/copy.cuh") != entry["files"][0]["before"]
    assert not stale.exists()


def test_apply_is_idempotent(package: Path) -> None:
    (first,) = applier.apply([patch()], {"sglang": package})
    (second,) = applier.apply([patch()], {"sglang": package})

    assert (package / "kernels/copy.cuh").read_text() == FIXED
    assert second["files"] == first["files"]
    assert (second["state"], second["evidence"]) == (
        "applied",
        ["kernels/copy.cuh:2: #ifdef USE_ROCM, as this diff writes it"],
    )


def test_unexpected_inapplicable_patch_does_not_fail_build(package: Path) -> None:
    missing = patch(id="missing", expected=False, detect={"needed": [{"file": "gone.py", "match": "x"}], "present": []})
    conflicting = patch(
        id="conflicting", expected=False, detect={"needed": [{"file": "copy.cuh", "match": "other"}], "present": []}
    )

    applied = applier.apply([patch(expected=False), missing, conflicting], {"sglang": package})

    assert [entry["state"] for entry in applied] == ["applied", "not applicable", "conflict"]


def test_all_failing_diffs_are_reported_without_writing(package: Path) -> None:
    missing = patch(id="missing", detect={"needed": [{"file": "gone.py", "match": "x"}], "present": []})
    conflicting = patch(
        id="conflicting", detect={"needed": [{"file": "copy.cuh", "match": "no such line"}], "present": []}
    )

    with pytest.raises(applier.SourceError) as error:
        applier.apply([patch(), missing, conflicting], {"sglang": package})

    assert "patch `missing` neither applies nor is present\n  there is no file `gone.py`" in str(error.value)
    assert "patch `conflicting`" in str(error.value)
    assert "upstream: owner/project#1" in str(error.value)
    assert (package / "kernels/copy.cuh").read_text() == SOURCE


def test_file_patch_requires_its_input(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = patch(apply={"kind": "file", "input": "moe-table", "destination": str(tmp_path / "t.csv"), "env": []})

    with pytest.raises(applier.SourceError, match=r"guard` cannot be applied: no `moe-table` was given.*\n  make it$"):
        applier.apply([{**table, "hint": "make it"}], {"sglang": package})
    monkeypatch.setenv("ALLOW_UNTUNED", "1")
    assert applier.apply([table], {"sglang": package})[0]["state"] == "needed"
    (tmp_path / "t.csv").write_text("gfx,cu_num\n")
    assert applier.apply([table], {"sglang": package})[0]["state"] == "applied"


class TestUnexpectedFiles:
    """Each file is either patched or rejected with a reason; none causes a traceback."""

    def test_non_utf8_bytes_are_preserved(self, package: Path) -> None:
        file = package / "kernels/copy.cuh"
        file.write_bytes(SOURCE.encode() + b"// caf\xe9\n")

        applier.apply([patch()], {"sglang": package})

        assert file.read_bytes() == FIXED.encode() + b"// caf\xe9\n"

    def test_evidence_is_valid_text_for_any_bytes(self, package: Path) -> None:
        (package / "kernels/copy.cuh").write_bytes(
            SOURCE.replace("time.h>", "time.h> // caf").encode()[:-14] + b"\xe9\n"
        )

        evidence = state(package, patch(diff=""))[1]

        assert evidence.encode()

    def test_directory_in_place_of_file_is_not_applicable(self, package: Path) -> None:
        (package / "kernels/copy.cuh").unlink()
        (package / "kernels/copy.cuh").mkdir()

        assert state(package, patch()) == ("not applicable", "there is no file `copy.cuh`")

    def test_unreadable_file_is_a_conflict(self, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: Path) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", fail)

        assert state(package, patch()) == (
            "conflict",
            f"cannot read `{package / 'kernels/copy.cuh'}`: Permission denied",
        )

    def test_unwritable_file_is_rejected_and_left_unchanged(
        self, package: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Path, __: Path) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "replace", fail)

        with pytest.raises(
            applier.SourceError, match=r"patch `guard` cannot be applied\n.*cannot write `.*`: Read-only"
        ):
            applier.apply([patch()], {"sglang": package})
        assert (package / "kernels/copy.cuh").read_text() == SOURCE
        assert [path.name for path in (package / "kernels").iterdir()] == ["copy.cuh"]

    def test_patching_keeps_mode_and_breaks_hard_links(self, package: Path, tmp_path: Path) -> None:
        file = package / "kernels/copy.cuh"
        file.chmod(0o444)
        os.link(file, tmp_path / "cached.cuh")

        applier.apply([patch()], {"sglang": package})

        assert (file.read_text(), file.stat().st_mode & 0o777) == (FIXED, 0o444)
        assert (tmp_path / "cached.cuh").read_text() == SOURCE

    def test_link_inside_sources_is_followed(self, package: Path) -> None:
        (package / "old").mkdir()
        (package / "old/copy.cuh").symlink_to(package / "kernels/copy.cuh")

        applier.apply([patch()], {"sglang": package})

        assert (package / "old/copy.cuh").is_symlink()
        assert (package / "kernels/copy.cuh").read_text() == FIXED

    def test_link_outside_sources_is_a_conflict(self, package: Path, tmp_path: Path) -> None:
        (tmp_path / "shared.cuh").write_text(SOURCE)
        (package / "kernels/copy.cuh").unlink()
        (package / "kernels/copy.cuh").symlink_to(tmp_path / "shared.cuh")

        result, evidence = state(package, patch())

        assert (result, "is a link that leads out of the sources" in evidence) == ("conflict", True)
        assert (tmp_path / "shared.cuh").read_text() == SOURCE

    def test_crlf_line_endings_are_preserved(self, package: Path) -> None:
        (package / "kernels/copy.cuh").write_bytes(SOURCE.replace("\n", "\r\n").encode())

        applier.apply([patch()], {"sglang": package})

        assert (package / "kernels/copy.cuh").read_bytes() == FIXED.replace("\n", "\r\n").encode()

    def test_empty_or_unterminated_file_is_a_conflict(self, package: Path) -> None:
        (package / "kernels/copy.cuh").write_text("")
        assert (
            state(package, patch(detect={"needed": [{"file": "copy.cuh", "match": "$"}], "present": []}))[0]
            == "conflict"
        )
        (package / "kernels/copy.cuh").write_text(SOURCE[: SOURCE.index("\n\n")])
        assert "the file ends without a newline" in state(package, patch())[1]

    def test_ambiguous_file_name_is_a_conflict(self, package: Path) -> None:
        (package / "copy.cuh").write_text(SOURCE)

        assert state(package, patch()) == ("conflict", f"`copy.cuh` exists in 2 places below {package}")

    def test_version_is_read_from_non_utf8_file(self, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_git(*_: object, **__: object) -> str:
            raise OSError

        monkeypatch.setattr(applier.subprocess, "check_output", no_git)
        (package / "_version.py").write_bytes(b"# caf\xe9\n__version__ = version = '0.5.14'\n")

        assert applier.describe(package) == {"root": str(package), "version": "0.5.14", "commit": None}


def test_diff_without_final_newline_is_applied(package: Path) -> None:
    (package / "end").write_text("a\nb")
    no_newline = "\\ No newline at end of file\n"
    diff = f"--- a/end\n+++ b/end\n@@ -1,2 +1,2 @@\n a\n-b\n{no_newline}+c\n{no_newline}"

    assert applier.patched_texts(package, diff) == {package.resolve() / "end": "a\nc"}


class TestVerify:
    @pytest.fixture
    def receipt(self, package: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        monkeypatch.setattr(applier, "installed", lambda _name: package.resolve())
        return {"patches": applier.apply([patch()], {"sglang": package})}

    def test_verify_accepts_patched_files(self, package: Path, receipt: dict[str, Any]) -> None:
        applier.verify([patch()], {"sglang": package}, receipt)

    def test_verify_rejects_file_modified_after_patching(self, package: Path, receipt: dict[str, Any]) -> None:
        (package / "kernels/copy.cuh").write_text(SOURCE)
        with pytest.raises(applier.SourceError, match="has changed since it was patched"):
            applier.verify([patch()], {"sglang": package}, receipt)

    def test_verify_rejects_stale_bytecode(self, package: Path, receipt: dict[str, Any]) -> None:
        (package / "kernels/__pycache__").mkdir()
        (package / "kernels/__pycache__/copy.cpython-311.pyc").touch()
        with pytest.raises(applier.SourceError, match="stale bytecode"):
            applier.verify([patch()], {"sglang": package}, receipt)

    def test_verify_rejects_sources_that_python_does_not_import(
        self, package: Path, receipt: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(applier, "installed", lambda _name: tmp_path / "elsewhere")
        with pytest.raises(applier.SourceError, match="elsewhere, but the patched sources are in"):
            applier.verify([patch()], {"sglang": package}, receipt)


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "x = 1\n", "form\x0cfeed\n"]), min_size=1, max_size=12)


@given(before=LINES, after=LINES)
@settings(max_examples=200)
def test_generated_diff_transforms_one_text_into_other(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str]
) -> None:
    """The whole file is context, so every hunk matches at one place only."""
    root = tmp_path_factory.mktemp("diff")
    (root / "file").write_text("".join(before))
    diff = "".join(unified_diff(before, after, "a/file", "b/file", n=20))

    assert applier.patched_texts(root, diff).get((root / "file").resolve(), "".join(before)) == "".join(after)

"""Detection of the `eagle-verify-broadcast` patch in every form of sglang's verify step."""

import ast
import json
from pathlib import Path
from typing import Any

import apply_patches as applier
import pytest

from orchestrator.patches.ledger import manifest, read_diffs, read_ledger

LEDGER = read_ledger()
BROADCAST: dict[str, Any] = next(
    patch for patch in json.loads(manifest(LEDGER, read_diffs(LEDGER))) if patch["id"] == "eagle-verify-broadcast"
)
BROADCASTS = """
tp_group = get_group()
if tp_group.world_size > 1:
    tp_group.broadcast(predict, src=0)
    tp_group.broadcast(accept_index, src=0)
    tp_group.broadcast(num_correct_drafts, src=0)
"""


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip().splitlines())


def eagle_sample(after_greedy: str = "") -> str:
    """Return `eagle_sample` as in sglang 0.5.14 to 0.5.17, with `after_greedy` at the end of its greedy branch."""
    return f"""\
def eagle_sample(verify_input):
    if greedy:
        target_predict = torch.argmax(next_token_logits, dim=-1)
        target_predict = target_predict.reshape(bs, verify_input.draft_token_num)
        predict, accept_index, num_correct_drafts = verify_tree_greedy_func(
            predicts=predict,  # mutable
            topk=verify_input.tree_topk,
        )
{after_greedy}    else:
        from sgl_kernel import (
            top_k_renorm_prob,
        )
{indented(BROADCASTS, 8)}"""


PATCH_LINES = "".join(
    line[1:]
    for line in BROADCAST["diff"].splitlines(keepends=True)
    if line.startswith("+") and not line.startswith("+++")
)
FIXED = eagle_sample(indented(f"if _is_hip:\n{indented(BROADCASTS, 4)}", 8))
FORMS = {
    "unpatched": (eagle_sample(), "needed"),
    "upstream": (FIXED, "upstream"),
    "on every platform": (eagle_sample(indented(BROADCASTS, 8)), "upstream"),
    "our patch": (eagle_sample(PATCH_LINES), "applied"),
    "our patch, reformatted": (ast.unparse(ast.parse(eagle_sample(PATCH_LINES))), "upstream"),
    "in comments": ("".join(f"# {line}\n" for line in FIXED.splitlines()) + eagle_sample(), "needed"),
    "two of three broadcasts": (
        eagle_sample(indented(BROADCASTS.replace("    tp_group.broadcast(accept_index, src=0)\n", ""), 8)),
        "conflict",
    ),
    "from rank 1": (eagle_sample(indented(BROADCASTS.replace("src=0", "src=1"), 8)), "conflict"),
    "on every platform but ROCm": (
        eagle_sample(indented(f"if not _is_hip:\n{indented(BROADCASTS, 4)}", 8)),
        "conflict",
    ),
    "file without the verify step": ("def build_tree():\n    pass\n", "not applicable"),
}


@pytest.mark.parametrize("form", FORMS)
def test_state(tmp_path: Path, form: str) -> None:
    text, expected = FORMS[form]
    (tmp_path / "srt/speculative").mkdir(parents=True)
    (tmp_path / "srt/speculative/eagle_utils.py").write_text(text)

    state, evidence = applier.state_of(BROADCAST, {"sglang": tmp_path})

    assert state == expected, evidence
    assert evidence

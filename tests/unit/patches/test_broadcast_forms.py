"""The verify step in every form it may have: only one whose greedy branch sends rank 0's verdict counts as mended."""

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
SENT = """
tp_group = get_group()
if tp_group.world_size > 1:
    tp_group.broadcast(predict, src=0)
    tp_group.broadcast(accept_index, src=0)
    tp_group.broadcast(num_correct_drafts, src=0)
"""


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip().splitlines())


def eagle_sample(after_greedy: str = "") -> str:
    """As in 0.5.14 to 0.5.17, with something after the greedy branch's verdict; the other branch sends its own."""
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
{indented(SENT, 8)}"""


OURS = "".join(
    line[1:]
    for line in BROADCAST["diff"].splitlines(keepends=True)
    if line.startswith("+") and not line.startswith("+++")
)
FIXED = eagle_sample(indented(f"if _is_hip:\n{indented(SENT, 4)}", 8))
FORMS = {
    "as it was": (eagle_sample(), "needed"),
    "upstream": (FIXED, "upstream"),
    "on every platform": (eagle_sample(indented(SENT, 8)), "upstream"),
    "ours": (eagle_sample(OURS), "applied"),
    "ours, by another formatter": (ast.unparse(ast.parse(eagle_sample(OURS))), "upstream"),
    "in comments": ("".join(f"# {line}\n" for line in FIXED.splitlines()) + eagle_sample(), "needed"),
    "two of three": (
        eagle_sample(indented(SENT.replace("    tp_group.broadcast(accept_index, src=0)\n", ""), 8)),
        "conflict",
    ),
    "from another rank": (eagle_sample(indented(SENT.replace("src=0", "src=1"), 8)), "conflict"),
    "everywhere but on ROCm": (eagle_sample(indented(f"if not _is_hip:\n{indented(SENT, 4)}", 8)), "conflict"),
    "before the step moved here": ("def build_tree():\n    pass\n", "not applicable"),
}


@pytest.mark.parametrize("form", FORMS)
def test_state(tmp_path: Path, form: str) -> None:
    text, expected = FORMS[form]
    (tmp_path / "srt/speculative").mkdir(parents=True)
    (tmp_path / "srt/speculative/eagle_utils.py").write_text(text)

    state, evidence = applier.state_of(BROADCAST, {"sglang": tmp_path})

    assert state == expected, evidence
    assert evidence

"""Verify different drafts on two ranks with sglang's `eagle_sample`. The engine's Python runs this file.

    eagle_ranks.py PACKAGES FOLDER …    with the sglang in PACKAGES, each rank writes the accepted tokens to
                                        FOLDER/<rank>.json; several pairs run one after another

The function, sglang's gloo groups and the two processes are real. Two things are faked because they need a GPU: the
`sgl_kernel` kernel that walks a tree of drafts (a loop below), and an AMD platform, for which the function takes its
greedy branch and that kernel. Both ranks have the same logits, but rank 1 has drafted another token.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from draft_model import stub

VOCABULARY, DRAFTS = 16, 3
DRAFTED = {0: [3, 5, 7], 1: [3, 9, 7]}  # the first token is the last accepted one
ANSWERS = [5, 7, 11]  # the target model's next tokens: rank 0 drafted two of them, rank 1 none


def verify_tree_greedy(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept the drafts that match the target model's tokens, and then its next token."""
    for row in range(len(candidates)):
        accepted = [0]
        at = int(retrive_next_token[row, 0])
        while at != -1:
            if candidates[row, at] == target_predict[row, accepted[-1]]:
                accepted.append(at)
                at = int(retrive_next_token[row, at])
            else:
                at = int(retrive_next_sibling[row, at])
        locations = retrive_index[row, accepted]
        predicts[locations] = target_predict[row, accepted].int()
        accept_index[row, : len(accepted)] = locations
        accept_token_num[row] = len(accepted) - 1


def verify_on_both(packages: str, folder: Path) -> None:
    """Import sglang, fork both ranks, and exit with 0 if both did."""
    sys.path.insert(0, packages)
    stub("xgrammar")
    kernels = sys.modules["sgl_kernel"] = ModuleType("sgl_kernel")
    kernels.verify_tree_greedy = verify_tree_greedy  # type: ignore[attr-defined]
    from sglang.srt.speculative import eagle_utils

    assert Path(eagle_utils.__file__).is_relative_to(packages)
    sys.exit(any(code != 0 for code in forked([(verify, rank, folder) for rank in DRAFTED])))


def verify(rank: int, folder: Path) -> None:
    """Join the group, verify the drafts, and write the accepted tokens."""
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
    from sglang.srt.speculative import eagle_utils

    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu", tp_size=2))
    store = f"file://{folder}/rendezvous"
    init_distributed_environment(
        world_size=2, rank=rank, local_rank=rank, backend="gloo", distributed_init_method=store
    )
    initialize_model_parallel(tensor_model_parallel_size=2)
    eagle_utils._is_hip, eagle_utils._is_cpu = True, False
    predict, lengths, index = eagle_utils.eagle_sample(*_batch(DRAFTED[rank]))
    accepted = [int(at) for at in index[0] if at != -1]
    tokens = [int(predict[at]) for at in accepted]
    result = {"length": int(lengths[0]), "accepted": accepted, "tokens": tokens}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    # A normal exit may abort while a gloo thread runs: "terminate called without an active exception".
    os._exit(0)


def _batch(drafted: list[int]) -> tuple[SimpleNamespace, SimpleNamespace, SimpleNamespace]:
    """Return a request with a chain of drafts, its batch, and the target model's logits."""
    logits = torch.zeros(DRAFTS, VOCABULARY)
    logits[range(DRAFTS), ANSWERS] = 1.0
    requested = SimpleNamespace(
        draft_token=torch.tensor(drafted),
        draft_token_num=DRAFTS,
        max_tree_depth=DRAFTS,
        tree_topk=1,
        retrieve_index=torch.arange(DRAFTS).unsqueeze(0),
        retrieve_next_token=torch.tensor([[1, 2, -1]]),
        retrieve_next_sibling=torch.full((1, DRAFTS), -1),
    )
    sampling = SimpleNamespace(
        is_all_greedy=True, acc_additive_penalties=None, acc_scaling_penalties=None, logit_bias=None
    )
    mode = SimpleNamespace(is_idle=lambda: False)
    batch = SimpleNamespace(device="cpu", forward_mode=mode, seq_lens=torch.tensor([8]), sampling_info=sampling)
    return requested, batch, SimpleNamespace(next_token_logits=logits)


def forked(calls: list[tuple[Callable[..., None], *tuple[object, ...]]]) -> list[int | None]:
    """Run the calls concurrently, each in a fork of this process; return the exit codes."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=call, args=requested) for call, *requested in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


if __name__ == "__main__":
    pairs = [(sys.argv[at], Path(sys.argv[at + 1]).absolute()) for at in range(1, len(sys.argv), 2)]
    sys.exit(any(forked([(verify_on_both, *pair)]) != [0] for pair in pairs))

"""Answer questions greedily with transformers: the reference answers for a server with the same weights.

Run with the engine's Python: `python greedy_answers.py DIRECTORY < QUESTIONS`. QUESTIONS is a JSON list of objects with
`prompt` (the user's chat message) and `tokens` (length of the answer). The output is a JSON list with one object for
each question:

    prompt_ids   token ids of the prompt, by the checkpoint's own chat template and tokenizer
    ids, text    the answer
    margin       smallest lead of the best token over the second best in the answer, in logits
    bf16         whether transformers gives the same tokens when it computes in bf16, as a server does

The answer is computed in float32. If its margin is small compared with the rounding error of bf16, another answer may
be just as right.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def greedy(model: PreTrainedModel, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """Generate `tokens` tokens greedily; return them and the smallest lead of a best token, in logits."""
    answer: list[int] = []
    margins: list[float] = []
    given, past = torch.tensor([prompt]), None
    with torch.inference_mode():
        for _ in range(tokens):
            seen = model(input_ids=given, past_key_values=past, use_cache=True, logits_to_keep=1)
            best, second = seen.logits[0, -1].float().topk(2).values.tolist()
            answer.append(int(seen.logits[0, -1].argmax()))
            margins.append(best - second)
            given, past = torch.tensor([answer[-1:]]), seen.past_key_values
    return answer, min(margins)


def main(directory: Path, questions: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return one answer for each question."""
    words = AutoTokenizer.from_pretrained(directory)
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=kind) for kind in (torch.float32, torch.bfloat16)
    )
    answers = []
    for question in questions:
        said = [{"role": "user", "content": question["prompt"]}]
        prompt = words.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        ids, margin = greedy(exact, prompt, question["tokens"])
        same = greedy(rounded, prompt, question["tokens"])[0] == ids
        answers.append({"prompt_ids": prompt, "ids": ids, "text": words.decode(ids), "margin": margin, "bf16": same})
    return answers


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: greedy_answers.py DIRECTORY < QUESTIONS")
    json.dump(main(Path(sys.argv[1]), json.load(sys.stdin)), sys.stdout)

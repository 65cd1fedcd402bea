"""Answer questions greedily with transformers: the reference answers for a server with the same weights.

Run with the engine's Python: `python greedy_answers.py DIRECTORY < QUESTIONS`. QUESTIONS is a JSON list of objects with
`prompt` (the user's chat message) and `tokens` (length of the answer). The output is a JSON list with one object for
each question:

    prompt_ids   token ids of the prompt, by the checkpoint's own chat template and tokenizer
    ids, text    the answer
    margin       smallest difference between the best and the second best token in the answer, in logits
    bf16         whether transformers gives the same tokens when it computes in bf16, as a server does

The answer is computed in float32. If its margin is small compared with the rounding error of bf16, another answer may
be equally correct.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def greedy(model: PreTrainedModel, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """Generate `tokens` tokens greedily; return them and the smallest margin, in logits."""
    answer: list[int] = []
    margins: list[float] = []
    inputs, cache = torch.tensor([prompt]), None
    with torch.inference_mode():
        for _ in range(tokens):
            output = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            best, second = output.logits[0, -1].float().topk(2).values.tolist()
            answer.append(int(output.logits[0, -1].argmax()))
            margins.append(best - second)
            inputs, cache = torch.tensor([answer[-1:]]), output.past_key_values
    return answer, min(margins)


def main(directory: Path, questions: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return one answer for each question."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    float32, bf16 = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    answers = []
    for question in questions:
        messages = [{"role": "user", "content": question["prompt"]}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        ids, margin = greedy(float32, prompt, question["tokens"])
        same, text = greedy(bf16, prompt, question["tokens"])[0] == ids, tokenizer.decode(ids)
        answers.append({"prompt_ids": prompt, "ids": ids, "text": text, "margin": margin, "bf16": same})
    return answers


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: greedy_answers.py DIRECTORY < QUESTIONS")
    json.dump(main(Path(sys.argv[1]), json.load(sys.stdin)), sys.stdout)

"""Answer questions by transformers, greedily, token by token: what a server of the same weights has to answer.

Run with the engine's Python: `python greedy_answers.py DIRECTORY < QUESTIONS`. QUESTIONS is a JSON list of objects with
`prompt` (what a user says in a chat) and `tokens` (of the answer); what is written is one object for each:

    prompt_ids   the prompt as the checkpoint's own chat template and tokenizer write it
    ids, text    the answer
    margin       by how much the best token was ahead of the second best, in logits, where that was closest
    bf16         whether transformers gives the same tokens where it reckons in bf16, as a server does

The tokens are float32's. An answer whose margin is small compared with what bf16 rounds off is no one right answer.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def greedy(model: PreTrainedModel, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """The best next token, so many times, and the smallest margin by which one was the best."""
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
    """One answer for each question."""
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

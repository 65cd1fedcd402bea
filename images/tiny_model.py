"""Make a tiny Llama checkpoint with random weights and a tokenizer of its own. Nothing is downloaded.

Run with the engine's Python: `python tiny_model.py DIRECTORY`. What it says makes no sense; it is there to exercise a
real server. The seed is fixed and every file is written the same way, so two runs give the same bytes. The directory
appears complete or not at all.
"""

import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20
VOCABULARY = 512
CONTEXT = 32768
BOS, EOS, USER, ASSISTANT, SYSTEM = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TEXT = (
    "the server answers a request with tokens one after another while its cache keeps every prefix it has seen and "
    "a scheduler decides which sequence runs next on the device so that memory is never exceeded and latency stays low "
    "expert layers route each hidden state through few weights because attention reads past keys values from pages "
    "drafts propose several words then verification accepts most of them throughput grows until queue time dominates"
)


def corpus() -> Iterator[str]:
    """Sentences to learn merges from: the same ones every time."""
    dice = random.Random(SEED)
    for _ in range(400):
        yield " ".join(dice.choices(TEXT.split(), k=12)).capitalize() + "."


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text can be written with it, and reads back the same."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, USER, ASSISTANT, SYSTEM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=EOS)
    fast.model_max_length = CONTEXT
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model(words: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two layers of random bf16 weights that answer in whole words.

    Queries and keys are eight times as long as they are born: attention then looks somewhere instead of averaging over
    all it has seen, so that an answer behind a long text depends on what was asked, and on where.

    The output rows of single bytes and special tokens are zero: a word always scores higher, so a greedy answer never
    ends inside a UTF-8 character, where a streamed and an unstreamed text may differ.
    """
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        dtype="bfloat16",
    )
    llama = LlamaForCausalLM(config).to(torch.bfloat16)
    for layer in llama.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 8  # exact in bf16
    silent = [number for token, number in words.get_vocab().items() if not re.fullmatch(r"Ġ?[A-Za-z]{2,}", token)]
    llama.lm_head.weight.data[silent] = 0
    return llama


def write(target: Path) -> None:
    """Write the checkpoint beside `target`, then rename it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        words = tokenizer()
        words.save_pretrained(scratch)
        model(words).save_pretrained(scratch)
        for path in (scratch, *scratch.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)  # a container may read it as another user
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: tiny_model.py DIRECTORY")
    write(Path(sys.argv[1]).absolute())

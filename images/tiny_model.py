"""Make a tiny Llama checkpoint with random weights and its own tokenizer. Nothing is downloaded.

Run with the engine's Python: `python tiny_model.py DIRECTORY`. The checkpoint exercises a real server; its output is
meaningless text. Two runs write the same bytes, since the seed is fixed.
"""

import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Yield the sentences that the tokenizer is trained on."""
    dice = random.Random(SEED)
    for _ in range(400):
        yield " ".join(dice.choices(TEXT.split(), k=12)).capitalize() + "."


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which encodes and decodes any text without loss."""
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


def word_ids(tokens: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids of tokens that are words or parts of words, not single bytes or special tokens."""
    return [number for token, number in tokens.get_vocab().items() if re.fullmatch(r"Ġ?[A-Za-z]{2,}", token)]


def model(tokens: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return two layers of random bf16 weights that answer in whole words.

    Queries and keys are scaled by eight: attention is then concentrated instead of uniform, so that an answer after a
    long text depends on the position and content of the prompt.

    The output rows of single bytes and special tokens are zero: a word always scores higher, so a greedy answer never
    ends inside a UTF-8 character, where streamed and unstreamed text may differ.
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
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        dtype="bfloat16",
    )
    llama = LlamaForCausalLM(config).to(torch.bfloat16)
    for layer in llama.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 8  # exact in bf16
    words = set(word_ids(tokens))
    llama.lm_head.weight.data[[number for number in tokens.get_vocab().values() if number not in words]] = 0
    return llama


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory next to `target`, which becomes `target` at the end, readable by all users."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)  # a container may read it as another user
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(target: Path) -> None:
    """Write the checkpoint atomically."""
    with new_directory(target) as folder:
        tokens = tokenizer()
        tokens.save_pretrained(folder)
        model(tokens).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: tiny_model.py DIRECTORY")
    write(Path(sys.argv[1]).absolute())

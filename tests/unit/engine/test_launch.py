"""Test the complete launch command."""

import dataclasses

from orchestrator.engine.launch import Launch, launch_argv

LAUNCH = Launch(
    model_path="/models/glm",
    served_name="glm-5.2",
    host="0.0.0.0",
    port=30000,
    tp=4,
    dp=2,
    ep=2,
    dp_attention=True,
    flags=(("kv-cache-dtype", ("fp8_e4m3",)), ("enable-metrics", ())),
)


def test_launch_line_contains_all_options() -> None:
    assert " ".join(launch_argv(LAUNCH, python="python3")) == (
        "python3 -m sglang.launch_server --model-path /models/glm --served-model-name glm-5.2 "
        "--host 0.0.0.0 --port 30000 --tp-size 4 --dp-size 2 --ep-size 2 --enable-dp-attention "
        "--kv-cache-dtype fp8_e4m3 --enable-metrics"
    )


def test_sizes_of_one_are_omitted() -> None:
    single = dataclasses.replace(LAUNCH, tp=1, dp=1, ep=1, dp_attention=False, flags=())
    assert launch_argv(single, python="/env/bin/python")[-2:] == ("--tp-size", "1")


def test_dp_attention_uses_attn_dp_size_if_supported() -> None:
    """`--dp-size N --enable-dp-attention` is deprecated there; after 2026 `--dp-size` alone means whole replicas."""
    newer = launch_argv(dataclasses.replace(LAUNCH, dp_option="attn-dp-size"), python="python3")
    assert newer[newer.index("--tp-size") :][:6] == ("--tp-size", "4", "--attn-dp-size", "2", "--ep-size", "2")
    assert "--enable-dp-attention" not in newer

"""Plans, table rows and log lines for tests of kernels."""

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.core.errors import Problem
from orchestrator.core.origin import Origin
from orchestrator.kernels.keys import Shape
from orchestrator.kernels.rows import TABLE_COLUMNS, RowOrigin, TunedRow, read_rows
from orchestrator.plan.plan import (
    ContainerRequirements,
    Engine,
    Flag,
    Hardware,
    HttpEndpoint,
    Layout,
    Model,
    ModelSource,
    Moe,
    Plan,
    Ulimit,
)
from orchestrator.profiles.timeouts import RestartPolicySection, TimeoutsSection

GLM = Moe(hidden_size=6144, intermediate_size=2048, routed_experts=256, shared_experts=1, experts_per_token=8)
# The values of GLM-5.2's config.json that determine the key of a row.
CONFIG = {
    "hidden_size": 6144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "quark", "exclude": ["lm_head"]},
}
WHOLE_CONFIG = CONFIG | {"num_hidden_layers": 78, "index_topk": 2048}  # with the values that a profile also has
FUSED_TP8 = Shape(model_dim=6144, inter_dim=256, expert=257, topk=9)
UNFUSED_TP8 = Shape(model_dim=6144, inter_dim=256, expert=256, topk=8)
STAGE1 = "flydsl_moe1_afp4_wfp4_bf16_t32x64x256_w4"
STAGE1_KW = "flydsl_moe1_afp4_wfp4_bf16_t32x32x256_w4_kw2_fp4"
STAGE2 = "flydsl_moe2_afp4_wfp4_bf16_t32x128x256_reduce"
HEADER = ",".join(TABLE_COLUMNS)


def glm_plan(
    *, tp: int = 8, dp: int = 1, ep: int = 1, version: str = "0.5.14", commit: str = "9127c94a", **flags: str | None
) -> Plan:
    """Return a plan of GLM-5.2 MXFP4 on eight MI355X; flags have `_` for `-`, and None is a switch without a value."""
    return Plan(
        profile="glm",
        description="",
        runtime="docker",
        hardware=Hardware(
            name="mi355x",
            vendor="amd",
            arch="gfx950",
            gpus=8,
            compute_units=256,
            vram_bytes=288 << 30,
            gpu_product=None,
            container=ContainerRequirements(
                devices=("/dev/kfd", "/dev/dri"),
                all_gpus=False,
                groups=("video", "render"),
                ipc="host",
                shm_bytes=16 << 30,
                ulimits=(Ulimit(name="memlock", soft=-1, hard=-1),),
                security_opt=("seccomp=unconfined",),
                cap_add=("SYS_PTRACE",),
            ),
        ),
        model=Model(
            name="glm",
            served_name="glm",
            checkpoint=ModelSource(source="hub", path="amd/GLM-5.2-MXFP4", revision=None),
            weight_bytes=438 << 30,
            quantization="quark-mxfp4",
            context_length=1 << 20,
            layers=78,
            attention_heads=64,
            kv_heads=None,
            sparse_attention=True,
            mtp_layer=78,
            gated=False,
            moe=GLM,
            questions=(),
        ),
        engine=Engine(
            name="rocm",
            version=version,
            platform="rocm",
            image="sglang-rocm:test",
            image_digest=None,
            dockerfile="sglang-rocm",
            requirements=None,
            python=None,
            source_dir="/sgl-workspace/sglang/python",
            aiter_dir="/sgl-workspace/aiter",
            aiter_commit=commit,
        ),
        layout=Layout(tp=tp, dp=dp, ep=ep, dp_attention=False),
        replicas=1,
        gateway=None,
        server=HttpEndpoint(host="127.0.0.1", port=30000, allow_unauthenticated=False, api_key_env=None),
        flags=tuple(
            Flag(name=name.replace("_", "-"), values=() if value is None else (value,), origin=Origin.USER, source="")
            for name, value in flags.items()
        ),
        env=(),
        patches=(),
        warnings=(),
        wrong_answers=(),
        nondeterministic=(),
        timeouts=TimeoutsSection(progress_deadline=60, termination_grace=5, health_deadline=120),
        restart_policy=RestartPolicySection(unhealthy_after=60, max_attempts=3, window=600),
        kubernetes=None,
        slurm=None,
        prebuilt_image=None,
    )


def line(
    token: int,
    *,
    shape: Shape = FUSED_TP8,
    kernels: tuple[str, str] = (STAGE1, STAGE2),
    us: str = "50.5",
    tag: str = "",
) -> str:
    """Return one line of a table, without the newline."""
    dims = f"{token},{shape.model_dim},{shape.inter_dim},{shape.expert},{shape.topk}"
    types = "ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0"
    return f"gfx950,256,{dims},{types},32,0,30.1,{kernels[0]},0.9%,20.4,{kernels[1]},1.5%,{us},0,0,0,10.0,20.0,{tag}"


def rows(lines: Iterable[str], *, origin: RowOrigin = RowOrigin.UPSTREAM, header: str = HEADER) -> list[TunedRow]:
    """Return the rows of a valid table."""
    problems: list[Problem] = []
    found = list(read_rows([header, *lines], name="t.csv", origin=origin, problems=problems))
    assert not problems, problems
    return found


def every_bucket(shape: Shape, *, origin: RowOrigin = RowOrigin.UPSTREAM) -> list[TunedRow]:
    """Return a row for each token bucket from 1 to 32768."""
    return rows([line(1 << exponent, shape=shape) for exponent in range(16)], origin=origin)


def of(found: Iterable[TunedRow], origin: RowOrigin) -> list[TunedRow]:
    """Return the rows with another origin."""
    return [replace(row, origin=origin) for row in found]


LOG_KEY = (
    "('gfx950', 256, 16, 6144, 256, 257, 9, <ActivationType.Silu: 0>, 'torch.bfloat16', "
    "'torch.float4_e2m1fn_x2', 'torch.float4_e2m1fn_x2', 'QuantType.per_1x32', True, False)"
)
HIT = f"[aiter] [fused_moe] using 2stage (kernelName1='{STAGE1}', kernelName2='{STAGE2}') for {LOG_KEY} "
MISS = f"[aiter] [fused_moe] using 2stage default for {LOG_KEY} "
FALLBACK = (
    f"[aiter] [fused_moe] no tuned FlyDSL config for {LOG_KEY}, "
    f"using heuristic FlyDSL fallback (kn1='{STAGE1}', kn2='{STAGE2}')"
)
MTP_KEY = (
    "('gfx950', 256, 16, 6144, 256, 257, 9, <ActivationType.Silu: 0>, 'torch.bfloat16', "
    "'torch.bfloat16', 'torch.bfloat16', 'QuantType.No', True, False)"
)
MTP = f"[aiter] [fused_moe] using 2stage default for {MTP_KEY} "
GEMM = (
    "[aiter] shape is M:16, N:6144, K:2048 dtype=torch.bfloat16 otype=torch.bfloat16 bias=False, scaleAB=False, "
    "bpreshuffle=False, not found tuned config in /tmp/aiter_configs/bf16_tuned_gemm.csv, "
    "will use default config! using torch solution:0"
)


# From a8w8_blockscale_tuned_fmoe_glm5_1.csv of aiter at c16d44b9: block FP8 on gfx942 with 304 CUs.
FP8_KEY = (
    "gfx942,304,{token},6144,256,257,9,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz"
)
FP8_ROW = FP8_KEY + (
    ",QuantType.per_1x128,1,0,32,0,340.6476,_ZN5aiter49fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_32x256E,"
    "0.0%,0.0,,0.0%,340.6476,1,0,2,63.83,3573.77,"
)

#!/bin/sh
# mi355x-qwen3.5-397b-tp4: Qwen3.5-397B MXFP4 on 4 of 8x MI355X, the recipe of InferenceX; never run by this project
#
# recipe     --attention-backend aiter              InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --chunked-prefill-size 32768           InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --cuda-graph-max-bs-decode 40          InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# inferred   --enable-cache-report
# inferred   --enable-metrics
# recipe     --kv-cache-dtype fp8_e4m3              InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --max-prefill-tokens 32768             InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --max-running-requests 80              InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --mem-fraction-static 0.8              InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --page-size 16                         InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --reasoning-parser qwen3               InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --speculative-algorithm EAGLE          InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --speculative-eagle-topk 1             InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --speculative-num-draft-tokens 4       InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --speculative-num-steps 3              InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --tokenizer-worker-num 6               InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --tool-call-parser qwen3_coder         InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --trust-remote-code                    InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     --watchdog-timeout 1200                InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     AITER_FLYDSL_FORCE=1                   InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0  sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                 InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_MAMBA_SSM_DTYPE=bfloat16        InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX
# recipe     SGLANG_USE_AITER=1                     sglang docker/rocm.Dockerfile
# recipe     SGLANG_USE_AITER_UNIFIED_ATTN=1        InferenceX qwen3.5_fp4_mi355x_sglang_mtp.sh
#
# warning speculation-is-greedy: requests are decoded greedily during speculative decoding; `temperature` and `top_p`
#   are ignored (sglang #31214, #37134; wheels 0.5.10 to 0.5.20 (0.5.14: srt/speculative/eagle_utils.py, eagle_sample))
# hint: if sampling matters, use sglang 0.5.21 or newer, or disable speculative decoding
#
# warning draft-ranks-diverge: ranks may draft different tokens under load and hang without a log line; the request
#   count freezes (sglang #35079, open, one author: MI355X, GLM-5.2-MXFP4, TP4×DP2, EAGLE 5/1/6; no wheel up to 0.5.23
#   has its fix)
# hint: `deploy watch` restarts a server that stalls; `speculative-num-steps` 1 should avoid it, with one draft per step
#
# warning graph-capture-race: graph capture may fail with `hipErrorStreamCaptureInvalidated`: a race of ROCm up to 7.2.0
#   (aiter #2941, #2857; sglang #23580, #29235; fixed in ROCm 7.2.1; `rocm720` images have 7.2.0)
# hint: start the server again; `rocm724` and `rocm10` images do not have it; `SGLANG_USE_AITER_AR=false` makes it rarer
#   and loses the fused all-reduce
#
# warning qwen-aiter-attention-fault: aiter's attention faults within minutes (`FmhaBatchPrefillWithPagedKVCache`), in 6
#   of 6 runs (sglang #39517, open, read through AMD-AGI/Infera: Qwen3.5-122B, TP1)
# hint: `--set flags.attention-backend=triton`: Triton was 54 % faster there
set -eu
export AITER_FLYDSL_FORCE=1
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_MAMBA_SSM_DTYPE=bfloat16
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
export SGLANG_USE_AITER_UNIFIED_ATTN=1
exec python3 -m sglang.launch_server \
  --model-path /models/qwen3.5-397b-mxfp4 \
  --served-model-name qwen3.5-397b \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 4 \
  --attention-backend aiter \
  --chunked-prefill-size 32768 \
  --cuda-graph-max-bs-decode 40 \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype fp8_e4m3 \
  --max-prefill-tokens 32768 \
  --max-running-requests 80 \
  --mem-fraction-static 0.8 \
  --page-size 16 \
  --reasoning-parser qwen3 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 4 \
  --speculative-num-steps 3 \
  --tokenizer-worker-num 6 \
  --tool-call-parser qwen3_coder \
  --trust-remote-code \
  --watchdog-timeout 1200

#!/bin/sh
# mi355x-kimi-k2.7-tp4: Kimi-K2.7-Code MXFP4 on 4 of 8x MI355X, the cookbook's command; never run by this project
#
# recipe     --attention-backend aiter              sglang #36246
# inferred   --cuda-graph-max-bs-decode 64
# recipe     --enable-aiter-allreduce-fusion        sglang #36246
# inferred   --enable-cache-report
# inferred   --enable-metrics
# recipe     --kv-cache-dtype fp8_e4m3              sglang #36246
# inferred   --max-running-requests 64
# recipe     --mem-fraction-static 0.765            sglang #36246
# recipe     --reasoning-parser kimi_k2             sglang cookbook, kimi-k27-code-deployment.jsx
# recipe     --tool-call-parser kimi_k2             sglang cookbook, kimi-k27-code-deployment.jsx
# recipe     --trust-remote-code                    sglang cookbook, kimi-k27-code-deployment.jsx
# inferred   --watchdog-timeout 1800
# recipe     AITER_AR_1STAGE_MAX_KB=512             sglang #36246
# recipe     AITER_MXFP4_INTERMEDIATE=1             sglang #36246
# recipe     AITER_QUICK_REDUCE_QUANTIZATION=INT4   sglang #36246
# recipe     AITER_USE_FLYDSL_MOE_SORTING=1         sglang #36246
# recipe     HIP_FORCE_DEV_KERNARG=1                sglang #36246
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0  sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                 InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX
# recipe     SGLANG_USE_AITER=1                     sglang docker/rocm.Dockerfile
# recipe     SGLANG_USE_DYNAMIC_MXFP4_LINEAR=0      sglang #36246
# recipe     TORCH_BLAS_PREFER_HIPBLASLT=1          sglang #36246
#
# warning graph-capture-race: graph capture may fail with `hipErrorStreamCaptureInvalidated`: a race of ROCm up to 7.2.0
#   (aiter #2941, #2857; sglang #23580, #29235; fixed in ROCm 7.2.1; `rocm720` images have 7.2.0)
# hint: start the server again; `rocm724` and `rocm10` images do not have it; `SGLANG_USE_AITER_AR=false` makes it rarer
#   and loses the fused all-reduce
set -eu
export AITER_AR_1STAGE_MAX_KB=512
export AITER_MXFP4_INTERMEDIATE=1
export AITER_QUICK_REDUCE_QUANTIZATION=INT4
export AITER_USE_FLYDSL_MOE_SORTING=1
export HIP_FORCE_DEV_KERNARG=1
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
export SGLANG_USE_DYNAMIC_MXFP4_LINEAR=0
export TORCH_BLAS_PREFER_HIPBLASLT=1
exec python3 -m sglang.launch_server \
  --model-path /models/kimi-k2.7-code-mxfp4 \
  --served-model-name kimi-k2.7-code \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 4 \
  --attention-backend aiter \
  --cuda-graph-max-bs-decode 64 \
  --enable-aiter-allreduce-fusion \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype fp8_e4m3 \
  --max-running-requests 64 \
  --mem-fraction-static 0.765 \
  --reasoning-parser kimi_k2 \
  --tool-call-parser kimi_k2 \
  --trust-remote-code \
  --watchdog-timeout 1800

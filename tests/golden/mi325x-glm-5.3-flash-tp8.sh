#!/bin/sh
# mi325x-glm-5.3-flash-tp8: GLM-5.3-Flash FP8 on 8x MI325X, one replica, the cookbook's command for MI300X; never run
#
# inferred   --cuda-graph-max-bs-decode 64
# recipe     --dsa-decode-backend tilelang          sglang #36608
# recipe     --dsa-prefill-backend tilelang         sglang #36608
# inferred   --enable-cache-report
# inferred   --enable-metrics
# recipe     --kv-cache-dtype bfloat16              sglang #36608
# recipe     --linear-attn-backend triton           sglang #36712
# inferred   --max-running-requests 64
# inferred   --mem-fraction-static 0.8
# recipe     --moe-runner-backend triton            sglang #36608
# recipe     --reasoning-parser glm45               sglang #36608
# recipe     --tool-call-parser glm47               sglang #36608
# recipe     --trust-remote-code                    sglang #36608
# inferred   --watchdog-timeout 1800
# inferred   ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX
# recipe     SGLANG_USE_AITER=1                     sglang docker/rocm.Dockerfile
#
# warning block-fp8-moe-fault: aiter's fused MoE writes out of bounds at 304 and 336 tokens: `Memory access fault`
#   within minutes of mixed load. Seen with vLLM, not shown for sglang (aiter #4783, open: GLM-5.2-FP8, 8×MI325X, vLLM;
#   against it: InferenceX #3362 validated v0.5.20-rocm720-mi30x)
# hint: `deploy watch` restarts the server; a kernel table with rows for these sizes avoids the default kernel
set -eu
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
exec python3 -m sglang.launch_server \
  --model-path /models/glm-5.3-flash-fp8 \
  --served-model-name glm-5.3-flash \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --ep-size 8 \
  --cuda-graph-max-bs-decode 64 \
  --dsa-decode-backend tilelang \
  --dsa-prefill-backend tilelang \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype bfloat16 \
  --linear-attn-backend triton \
  --max-running-requests 64 \
  --mem-fraction-static 0.8 \
  --moe-runner-backend triton \
  --reasoning-parser glm45 \
  --tool-call-parser glm47 \
  --trust-remote-code \
  --watchdog-timeout 1800

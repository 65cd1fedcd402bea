#!/bin/sh
# mi325x-tp8: GLM-5.2 FP8 on 8x MI325X, one replica with the whole context of a million tokens; never run by this project
#
# recipe     --chunked-prefill-size 131072          InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --context-length 1048576               InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --cuda-graph-max-bs-decode 16          InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --dsa-decode-backend tilelang          InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --dsa-prefill-backend tilelang         InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --dsa-topk-backend torch               InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --enable-cache-report                  InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --enable-metrics                       InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --kv-cache-dtype bfloat16              InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --max-running-requests 16              InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --max-total-tokens 1048576             InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --mem-fraction-static 0.85             InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --reasoning-parser glm45               sglang cookbook GLM-5.2.mdx
# recipe     --speculative-algorithm EAGLE          InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --speculative-eagle-topk 1             InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --speculative-num-draft-tokens 4       InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --speculative-num-steps 3              InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     --tool-call-parser glm47               sglang cookbook GLM-5.2.mdx
# recipe     --trust-remote-code                    sglang cookbook GLM-5.2.mdx
# recipe     --watchdog-timeout 1800                InferenceX glm5.2_fp8_mi325x_mtp.sh
# inferred   ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
# recipe     SGLANG_DSA_FUSE_TOPK=false             InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     SGLANG_OPT_USE_TOPK_V2=false           InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX glm5.2_fp8_mi325x_mtp.sh
# recipe     SGLANG_USE_AITER=1                     sglang docker/rocm.Dockerfile
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
# warning block-fp8-moe-fault: aiter's fused MoE writes out of bounds at 304 and 336 tokens: `Memory access fault`
#   within minutes of mixed load. Seen with vLLM, not shown for sglang (aiter #4783, open: GLM-5.2-FP8, 8×MI325X, vLLM;
#   against it: InferenceX #3362 validated v0.5.20-rocm720-mi30x)
# hint: `deploy watch` restarts the server; a kernel table with rows for these sizes avoids the default kernel
set -eu
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SGLANG_DSA_FUSE_TOPK=false
export SGLANG_OPT_USE_TOPK_V2=false
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
exec python3 -m sglang.launch_server \
  --model-path /models/glm-5.2-fp8 \
  --served-model-name glm-5.2 \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --chunked-prefill-size 131072 \
  --context-length 1048576 \
  --cuda-graph-max-bs-decode 16 \
  --dsa-decode-backend tilelang \
  --dsa-prefill-backend tilelang \
  --dsa-topk-backend torch \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype bfloat16 \
  --max-running-requests 16 \
  --max-total-tokens 1048576 \
  --mem-fraction-static 0.85 \
  --reasoning-parser glm45 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 4 \
  --speculative-num-steps 3 \
  --tool-call-parser glm47 \
  --trust-remote-code \
  --watchdog-timeout 1800

#!/bin/sh
# mi355x-tp4dp2: GLM-5.2 MXFP4 on 8x MI355X, two DP ranks of four GPUs, for aggregate throughput; never run by this project
#
# recipe     --chunked-prefill-size 32768           sglang cookbook GLM-5.2.mdx, balanced cell
# inferred   --cuda-graph-max-bs-decode 80
# recipe     --dsa-decode-backend tilelang          sglang cookbook GLM-5.2.mdx
# recipe     --dsa-prefill-backend tilelang         sglang cookbook GLM-5.2.mdx
# inferred   --enable-aiter-allreduce-fusion
# inferred   --enable-cache-report
# recipe     --enable-metrics                       sglang cookbook GLM-5.2.mdx
# inferred   --kv-cache-dtype fp8_e4m3
# inferred   --load-balance-method round_robin
# recipe     --max-running-requests 80              sglang cookbook GLM-5.2.mdx, balanced cell
# recipe     --mem-fraction-static 0.85             sglang cookbook GLM-5.2.mdx, balanced cell
# recipe     --reasoning-parser glm45               sglang cookbook GLM-5.2.mdx
# inferred   --speculative-algorithm EAGLE
# recipe     --speculative-eagle-topk 1             sglang cookbook GLM-5.2.mdx
# recipe     --speculative-num-draft-tokens 6       sglang cookbook GLM-5.2.mdx
# recipe     --speculative-num-steps 5              sglang cookbook GLM-5.2.mdx
# recipe     --tool-call-parser glm47               sglang cookbook GLM-5.2.mdx
# recipe     --trust-remote-code                    sglang cookbook GLM-5.2.mdx
# recipe     --watchdog-timeout 1800                sglang cookbook GLM-5.2.mdx
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0  sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                 InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX glm5.2_fp4_mi355x_sglang_mtp.sh
# recipe     SGLANG_USE_AITER=1                     sglang docker/rocm.Dockerfile
#
# warning custom-all-reduce-hang: aiter's custom all-reduce can hang in the verify step of EAGLE, seen from 16
#   concurrent requests with 4/1/5 and from 32 with 3/1/4; only the watchdog ends the hang (sglang #29313, MI355X; ranks
#   that accept different numbers of drafts look the same (sglang #34238); price: AMD-AGI/Infera)
# hint: if the server hangs, `--set flags.disable-custom-all-reduce=true` uses RCCL instead and disables the fused all-
#   reduce; it cost 4.2 % at 56 concurrent requests and nothing at 40
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
# warning indexer-logits-2-gib-unknown: one cold prompt above 23,170 tokens may abort every rank; shown for 0.5.17 and
#   0.5.18, not known for this version (sglang #36960; against it: InferenceX #2272, 48 prompts of 120,000 tokens passed
#   on v0.5.14, image of 20260710)
# hint: send one prompt of 33,000 tokens to test it; `chunked-prefill-size` 4096 avoids it (slower prefill)
set -eu
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
exec python3 -m sglang.launch_server \
  --model-path /models/glm-5.2-mxfp4 \
  --served-model-name glm-5.2 \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 4 \
  --dp-size 2 \
  --chunked-prefill-size 32768 \
  --cuda-graph-max-bs-decode 80 \
  --dsa-decode-backend tilelang \
  --dsa-prefill-backend tilelang \
  --enable-aiter-allreduce-fusion \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype fp8_e4m3 \
  --load-balance-method round_robin \
  --max-running-requests 80 \
  --mem-fraction-static 0.85 \
  --reasoning-parser glm45 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 6 \
  --speculative-num-steps 5 \
  --tool-call-parser glm47 \
  --trust-remote-code \
  --watchdog-timeout 1800

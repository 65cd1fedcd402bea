#!/bin/sh
# b200-tp8: GLM-5.2 NVFP4 on 8x B200, the comparison; engine and flags of the published B200 figure are unknown; never run by this project
#
# recipe     --bf16-gemm-backend cutedsl       sglang cookbook GLM-5.2.mdx
# recipe     --chunked-prefill-size 8192       InferenceX glm5.2_fp4_b200_sglang_mtp.sh
# recipe     --cuda-graph-max-bs-decode 64     InferenceX glm5.2_fp4_b200_sglang_mtp.sh
# inferred   --enable-cache-report
# recipe     --enable-metrics                  sglang cookbook GLM-5.2.mdx
# recipe     --kv-cache-dtype fp8_e4m3         InferenceX glm5.2_fp4_b200_sglang_mtp.sh
# recipe     --max-prefill-tokens 8192         InferenceX glm5.2_fp4_b200_sglang_mtp.sh
# recipe     --max-running-requests 96         InferenceX glm5.2_fp4_b200_sglang_mtp.sh
# recipe     --mem-fraction-static 0.83        InferenceX glm5.2_fp4_b200_sglang_mtp.sh
# recipe     --quantization modelopt_fp4       sglang cookbook GLM-5.2.mdx
# recipe     --reasoning-parser glm45          sglang cookbook GLM-5.2.mdx
# recipe     --speculative-algorithm EAGLE     sglang cookbook GLM-5.2.mdx
# recipe     --speculative-eagle-topk 1        sglang cookbook GLM-5.2.mdx
# recipe     --speculative-num-draft-tokens 6  sglang cookbook GLM-5.2.mdx
# recipe     --speculative-num-steps 5         sglang cookbook GLM-5.2.mdx
# recipe     --tool-call-parser glm47          sglang cookbook GLM-5.2.mdx
# recipe     --trust-remote-code               sglang cookbook GLM-5.2.mdx
# recipe     --watchdog-timeout 1800           sglang cookbook GLM-5.2.mdx
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900     InferenceX
# recipe     TORCH_CUDA_ARCH_LIST=10.0         sglang cookbook GLM-5.2.mdx
set -eu
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export TORCH_CUDA_ARCH_LIST=10.0
exec python3 -m sglang.launch_server \
  --model-path /models/glm-5.2-nvfp4 \
  --served-model-name glm-5.2 \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --bf16-gemm-backend cutedsl \
  --chunked-prefill-size 8192 \
  --cuda-graph-max-bs-decode 64 \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype fp8_e4m3 \
  --max-prefill-tokens 8192 \
  --max-running-requests 96 \
  --mem-fraction-static 0.83 \
  --quantization modelopt_fp4 \
  --reasoning-parser glm45 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 6 \
  --speculative-num-steps 5 \
  --tool-call-parser glm47 \
  --trust-remote-code \
  --watchdog-timeout 1800

#!/bin/sh
# mi355x-glm-5.3-flash-tp1x8: GLM-5.3-Flash MXFP4 on 8x MI355X, eight servers of one GPU behind a cache-aware gateway; never run with sglang
#
# inferred   --chunked-prefill-size 8192
# inferred   --cuda-graph-max-bs-decode 30
# inferred   --enable-cache-report
# inferred   --enable-metrics
# recipe     --kv-cache-dtype bfloat16                                            Jacob0226/SGLang-benchmarks, ix_agentx_glm53flash.sh
# recipe     --linear-attn-backend triton                                         Jacob0226/SGLang-benchmarks, ix_agentx_glm53flash.sh
# recipe     --mamba-full-memory-ratio 0.9                                        Jacob0226/SGLang-benchmarks, ix_agentx_glm53flash.sh
# inferred   --max-running-requests 30
# recipe     --mem-fraction-static 0.85                                           Jacob0226/SGLang-benchmarks, ix_agentx_glm53flash.sh
# recipe     --moe-runner-backend aiter                                           Jacob0226/SGLang-benchmarks, ix_agentx_glm53flash.sh
# recipe     --reasoning-parser glm45                                             sglang #36608
# recipe     --speculative-algorithm EAGLE                                        sglang #39273
# recipe     --speculative-eagle-topk 1                                           sglang #39273
# inferred   --speculative-num-draft-tokens 3
# recipe     --speculative-num-steps 2                                            vLLM #53906
# recipe     --tool-call-parser glm47                                             sglang #36608
# recipe     --trust-remote-code                                                  sglang #36608
# inferred   --watchdog-timeout 1800
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0                                sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                                               InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_OPT_GLM53_KDA_PTPC_MODULES=qkv_proj,f_a_proj,g_a_proj,o_proj  Jacob0226/SGLang-benchmarks
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900                                        InferenceX
# recipe     SGLANG_USE_AITER=1                                                   sglang docker/rocm.Dockerfile
#
# warning kpool-logits-2-gib: one cold prompt above some 262,000 tokens (chunks of 8192; fewer with longer chunks) may
#   abort every rank: the k-pool indexer lacks a limit of its logits (sglang #37478; wheel 0.5.20 has no limit, 0.5.21
#   and newer lack it in one caller)
# hint: limit `context-length` to 262144, or use shorter chunks (slower prefill)
#
# warning mixed-load-gpu-fault: `Memory access fault by GPU node` after 24 to 86 minutes of mixed load; the HTTP server
#   keeps running (sglang #37648 (GLM-5.3-MXFP4, 0.5.18) and AMD-AGI/Infera (GLM-5.2-MXFP4, 0.5.19): 5 faults, none in
#   11.5 h with the override. A correlation; no kernel is named)
# hint: `deploy watch` restarts the server; `--json-model-override-args '{"index_share_for_mtp_iteration": false}'` may
#   avoid it and costs about 0.3 %
set -eu
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_OPT_GLM53_KDA_PTPC_MODULES=qkv_proj,f_a_proj,g_a_proj,o_proj
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
exec python3 -m sglang.launch_server \
  --model-path /models/glm-5.3-flash-mxfp4 \
  --served-model-name glm-5.3-flash \
  --host 0.0.0.0 \
  --port 30008 \
  --tp-size 1 \
  --chunked-prefill-size 8192 \
  --cuda-graph-max-bs-decode 30 \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype bfloat16 \
  --linear-attn-backend triton \
  --mamba-full-memory-ratio 0.9 \
  --max-running-requests 30 \
  --mem-fraction-static 0.85 \
  --moe-runner-backend aiter \
  --reasoning-parser glm45 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 3 \
  --speculative-num-steps 2 \
  --tool-call-parser glm47 \
  --trust-remote-code \
  --watchdog-timeout 1800

#!/bin/sh
set -eu
DEPLOY_HOME="${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
RUN_DIR="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"
docker run --detach --init --name deploy-b200-tp8 \
  --label deploy.name=b200-tp8 \
  --label deploy.plan=5000d9f4eee541ecae94c83fd6a2eb33ea24c85b00a0c68a01cc6a6b642377e9 \
  --label deploy.profile=b200-tp8 \
  --label deploy.url=http://127.0.0.1:30000 \
  --label deploy.version=0.1.0 \
  --label deploy.run-dir="$RUN_DIR" \
  --gpus all \
  --ipc host \
  --ulimit memlock=-1:-1 \
  --ulimit stack=67108864:67108864 \
  --restart on-failure:3 \
  --stop-timeout 300 \
  --log-driver json-file \
  --log-opt max-size=128m \
  --log-opt max-file=8 \
  --publish 127.0.0.1:30000:30000 \
  --mount type=bind,source="$DEPLOY_HOME"/models/glm-5.2-nvfp4,target=/models/glm-5.2-nvfp4,readonly \
  --mount type=volume,source=deploy-cache-d5ef1ce1900a-sm100-jit,target=/root/.cache \
  --mount type=volume,source=deploy-cache-d5ef1ce1900a-sm100-triton,target=/root/.triton \
  --env PYTHONUNBUFFERED=1 \
  --env SGLANG_TIMEOUT_KEEP_ALIVE=900 \
  --env TORCH_CUDA_ARCH_LIST=10.0 \
  deploy/b200-tp8:9f4d2c8df494 \
  sh -c 'used() {
  for d in /sys/class/drm/card[0-9]*/device; do
    [ ! -r "$d/mem_info_vram_used" ] || echo $(cat "$d/mem_info_vram_used" "$d/mem_info_vram_total")
  done
  nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader,nounits 2>/dev/null | tr , " "
}
busy() { used | sed -n 1,8p | while read -r used total; do [ $((used * 10)) -le "$total" ] || echo busy; done; }
end=$(($(date +%s) + 900))
while [ -n "$(busy)" ] && [ "$(date +%s)" -lt $end ]; do
  echo "deploy: waiting for the VRAM of the run before to drain"
  sleep 5
done
exec "$@"
' sh python3 -m sglang.launch_server \
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

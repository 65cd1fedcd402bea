#!/bin/sh
set -eu
DEPLOY_HOME="${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
RUN_DIR="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"
docker run --detach --init --name deploy-mi355x-tp4dp2 \
  --label deploy.name=mi355x-tp4dp2 \
  --label deploy.plan=a5adc073332d3a0555d8a7b73a763180b280492aca2739a6ecf288a122d4aef2 \
  --label deploy.profile=mi355x-tp4dp2 \
  --label deploy.url=http://127.0.0.1:30000 \
  --label deploy.version=0.1.0 \
  --label deploy.run-dir="$RUN_DIR" \
  --device /dev/kfd \
  --device /dev/dri \
  --group-add "$(getent group video | cut -d: -f3)" \
  --group-add "$(getent group render | cut -d: -f3)" \
  --ipc host \
  --shm-size 17179869184 \
  --security-opt seccomp=unconfined \
  --cap-add SYS_PTRACE \
  --restart on-failure:3 \
  --stop-timeout 300 \
  --log-driver json-file \
  --log-opt max-size=128m \
  --log-opt max-file=8 \
  --publish 127.0.0.1:30000:30000 \
  --mount type=bind,source="$DEPLOY_HOME"/models/glm-5.2-mxfp4,target=/models/glm-5.2-mxfp4,readonly \
  --mount type=volume,source=deploy-cache-204a2c649198-gfx950-aiter,target=/sgl-workspace/aiter/aiter/jit \
  --mount type=volume,source=deploy-cache-204a2c649198-gfx950-flydsl,target=/root/.flydsl \
  --mount type=volume,source=deploy-cache-204a2c649198-gfx950-jit,target=/root/.cache \
  --mount type=volume,source=deploy-cache-204a2c649198-gfx950-miopen,target=/root/.config/miopen \
  --mount type=volume,source=deploy-cache-204a2c649198-gfx950-templates,target=/root/.aiter \
  --mount type=volume,source=deploy-cache-204a2c649198-gfx950-triton,target=/root/.triton \
  --env PYTHONUNBUFFERED=1 \
  --env ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0 \
  --env SAFETENSORS_FAST_GPU=1 \
  --env SGLANG_TIMEOUT_KEEP_ALIVE=900 \
  --env SGLANG_USE_AITER=1 \
  deploy/mi355x-tp4dp2:a61923b9de92 \
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

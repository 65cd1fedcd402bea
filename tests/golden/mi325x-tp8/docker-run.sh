#!/bin/sh
set -eu
DEPLOY_HOME="${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
RUN_DIR="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"
docker run --detach --init --name deploy-mi325x-tp8 \
  --label deploy.name=mi325x-tp8 \
  --label deploy.plan=feccaf1d949f7e28e1da5debbefbc8024dd364fcea4211e42fd422ef70889bf2 \
  --label deploy.profile=mi325x-tp8 \
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
  --mount type=bind,source="$DEPLOY_HOME"/models/glm-5.2-fp8,target=/models/glm-5.2-fp8,readonly \
  --mount type=volume,source=deploy-cache-dd489f3ef1e3-gfx942-aiter,target=/sgl-workspace/aiter/aiter/jit \
  --mount type=volume,source=deploy-cache-dd489f3ef1e3-gfx942-flydsl,target=/root/.flydsl \
  --mount type=volume,source=deploy-cache-dd489f3ef1e3-gfx942-jit,target=/root/.cache \
  --mount type=volume,source=deploy-cache-dd489f3ef1e3-gfx942-miopen,target=/root/.config/miopen \
  --mount type=volume,source=deploy-cache-dd489f3ef1e3-gfx942-templates,target=/root/.aiter \
  --mount type=volume,source=deploy-cache-dd489f3ef1e3-gfx942-triton,target=/root/.triton \
  --env PYTHONUNBUFFERED=1 \
  --env ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0 \
  --env SGLANG_DSA_FUSE_TOPK=false \
  --env SGLANG_OPT_USE_TOPK_V2=false \
  --env SGLANG_TIMEOUT_KEEP_ALIVE=900 \
  --env SGLANG_USE_AITER=1 \
  deploy/mi325x-tp8:7856c9730663 \
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

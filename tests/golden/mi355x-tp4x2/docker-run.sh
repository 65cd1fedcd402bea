#!/bin/sh
set -eu
DEPLOY_HOME="${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
RUN_DIR="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"
docker run --detach --init --name deploy-mi355x-tp4x2 \
  --label deploy.name=mi355x-tp4x2 \
  --label deploy.plan=a00c792864a3f25ee8c04bbd9265eec938e851e6b0e034760bc950395168724f \
  --label deploy.profile=mi355x-tp4x2 \
  --label deploy.url=http://127.0.0.1:30000 \
  --label deploy.version=0.1.0 \
  --label deploy.run-dir="$RUN_DIR" \
  --restart on-failure:3 \
  --stop-timeout 300 \
  --log-driver json-file \
  --log-opt max-size=128m \
  --log-opt max-file=8 \
  --network host \
  --env PYTHONPATH=/opt/deploy/gateway/packages \
  --env PYTHONUNBUFFERED=1 \
  deploy/mi355x-tp4x2:8369423516cd \
  python3 /opt/deploy/gateway/launch_gateway.py \
  --host 127.0.0.1 \
  --port 30000 \
  --worker-urls http://127.0.0.1:30008 http://127.0.0.1:30016 \
  --prometheus-host 127.0.0.1 \
  --prometheus-port 30001 \
  --shutdown-grace-period-secs 300 \
  --health-check-interval-secs 1 \
  --health-check-timeout-secs 25 \
  --health-failure-threshold 2 \
  --health-success-threshold 1 \
  --policy cache_aware

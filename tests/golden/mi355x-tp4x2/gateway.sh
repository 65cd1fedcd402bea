#!/bin/sh
# mi355x-tp4x2: the gateway before 2 servers, started when all of them serve
#
# inferred   --health-check-interval-secs 1  with smg's 60 a dead replica is noticed after a minute
# inferred   --health-check-timeout-secs 25  sglang answers a health request within 20 s, behind a long prefill
# inferred   --health-failure-threshold 2    one may meet a moment without memory or a port; a dead replica fails both
# inferred   --health-success-threshold 1    sglang has generated a token when it says that it is healthy
# inferred   --policy cache_aware
set -eu
CDPATH= cd -- "$(dirname -- "$0")"
export PYTHONPATH=/opt/deploy/gateway/packages
exec python3 /opt/deploy/gateway/launch_gateway.py \
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

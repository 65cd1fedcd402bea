#!/bin/sh
# h200-tiny: a tiny random model on one H200, the shortest way to a server on a GPU
#
# inferred   --chunked-prefill-size 2048
# inferred   --enable-cache-report
# inferred   --enable-metrics
# inferred   --max-total-tokens 1000000
set -eu
CDPATH= cd -- "${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
export PYTHONSAFEPATH=1  # nothing in that folder is imported
exec python3 -m sglang.launch_server \
  --model-path models/tiny \
  --served-model-name tiny \
  --host 127.0.0.1 \
  --port 30020 \
  --tp-size 1 \
  --chunked-prefill-size 2048 \
  --enable-cache-report \
  --enable-metrics \
  --max-total-tokens 1000000

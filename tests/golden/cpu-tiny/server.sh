#!/bin/sh
# cpu-tiny: the embedded default, a tiny random model on a real sglang server on this host's CPU
#
# inferred   --attention-backend torch_native
# inferred   --chunked-prefill-size 2048
# inferred   --device cpu
# inferred   --disable-overlap-schedule
# inferred   --enable-cache-report
# inferred   --enable-metrics
# inferred   --grammar-backend llguidance
# inferred   --max-total-tokens 65536
# inferred   --mem-fraction-static 0.3
# inferred   --sleep-on-idle
# inferred   LRU_CACHE_CAPACITY=1
# inferred   OMP_NUM_THREADS=1
# inferred   ONEDNN_PRIMITIVE_CACHE_CAPACITY=8
# inferred   SGLANG_USE_CPU_ENGINE=1
# inferred   TORCHDYNAMO_DISABLE=1
set -eu
CDPATH= cd -- "${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
export PYTHONSAFEPATH=1  # nothing in that folder is imported
export LRU_CACHE_CAPACITY=1
export OMP_NUM_THREADS=1
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=8
export SGLANG_USE_CPU_ENGINE=1
export TORCHDYNAMO_DISABLE=1
exec python3 -m sglang.launch_server \
  --model-path models/tiny \
  --served-model-name tiny \
  --host 127.0.0.1 \
  --port 30010 \
  --tp-size 1 \
  --attention-backend torch_native \
  --chunked-prefill-size 2048 \
  --device cpu \
  --disable-overlap-schedule \
  --enable-cache-report \
  --enable-metrics \
  --grammar-backend llguidance \
  --max-total-tokens 65536 \
  --mem-fraction-static 0.3 \
  --sleep-on-idle

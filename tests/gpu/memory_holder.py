"""Allocate GIB of memory on the first GPU until killed: `python memory_holder.py GIB`. Uses the driver, not torch."""

import ctypes
import signal
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
for result in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 30)),
):
    if result:
        sys.exit(f"the driver returns {result}")
print("held", flush=True)
signal.pause()

"""Reduce the CPU time of sglang 0.5.14 and vLLM without changing their responses.

Their processes are forked instead of spawned, so that they do not import torch again. sglang's data parallel controller
and idle prefill and decode servers wait instead of busy polling. The argument check is a fork of `torch_forks`. With
SPAWNED_RANKS in its environment, a server is unchanged.

Python imports this module if its directory is on PYTHONPATH (see Python's `site`). `rocm_image` adds it
to the images that serve real sglang, where each argument check is a separate process.
"""

import os
import sys

CHECK = "check_server_args.py QUESTION"  # occurs in the source of that program
program = sys.orig_argv[1:3]
if program == ["-m", "sglang.launch_server"] and "SPAWNED_RANKS" not in os.environ:  # not the scripted engine
    import gc
    import multiprocessing
    import time
    from multiprocessing.process import BaseProcess
    from typing import Any

    import zmq

    set_start_method, run, receive = multiprocessing.set_start_method, BaseProcess.run, zmq.Socket.recv_pyobj

    def wait_and_receive(socket: Any, flags: int) -> object:  # noqa: ANN401
        socket.poll(100)
        return receive(socket, flags)

    def run_frugally(process: BaseProcess) -> None:
        target = getattr(process, "_target")  # noqa: B009
        name = getattr(target, "__name__", "")
        zmq.Socket.recv_pyobj = wait_and_receive if name == "run_data_parallel_controller_process" else receive
        if name == "run_scheduler_process":
            kind = sys.modules["sglang.srt.managers.scheduler"].Scheduler
            on_idle = kind.on_idle

            def wait_on_idle(scheduler: Any) -> None:  # noqa: ANN401
                on_idle(scheduler)
                if not scheduler.is_fully_idle():
                    time.sleep(0.005)

            kind.on_idle = wait_on_idle
        run(process)

    def fork(_: str, force: bool = False) -> None:
        gc.freeze()  # the imported objects
        gc.enable()
        set_start_method("fork", force)

    gc.disable()  # during the imports, where collections are a tenth of the time
    multiprocessing.set_start_method = fork
    BaseProcess.run = run_frugally
elif program and program[0].endswith("/bin/vllm"):
    import multiprocessing

    context_of = multiprocessing.get_context

    def context_of_engines(method: "str | None" = None) -> object:
        """Fork only engines: API servers read the metrics directory when they import `prometheus_client`."""
        engines = sys._getframe(1).f_globals["__name__"] == "vllm.utils.system_utils"
        return context_of("fork" if engines else method)

    multiprocessing.get_context = context_of_engines
elif program[:1] == ["-c"] and CHECK in program[1] and "TORCH_FORKS" in os.environ:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    import torch_forks

    code = torch_forks.run(sys.executable, program[1], (), environ=os.environ, streams=(0, 1, 2))
    os._exit(code if code >= 0 else 128 - code)

"""Let sglang 0.5.14 and vLLM take less CPU time, with the same answers.

They spawn their processes, and each imports torch and all else anew: here they fork them. sglang's controller of data
parallelism asks for requests without a pause, and a prefill or decode server for the end of a transfer: here they wait.
Its check of arguments is a fork of `torch_forks`. With SPAWNED_RANKS in its environment a server is as it always is.

Python imports this module where its directory is on PYTHONPATH (docs: `site`). `standin` puts it into the images that
serve real sglang, where each check of arguments is a process of its own.
"""

import os
import sys

CHECK = "check_server_args.py QUESTION"  # in the text of that program
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
        gc.freeze()  # what was imported
        gc.enable()
        set_start_method("fork", force)

    gc.disable()  # until all is imported: collections are a tenth of that time
    multiprocessing.set_start_method = fork
    BaseProcess.run = run_frugally
elif program and program[0].endswith("/bin/vllm"):
    import multiprocessing

    context_of = multiprocessing.get_context

    def context_of_engines(method: "str | None" = None) -> object:
        """Not of API servers, which read where their common metrics are when they import `prometheus_client`."""
        engines = sys._getframe(1).f_globals["__name__"] == "vllm.utils.system_utils"
        return context_of("fork" if engines else method)

    multiprocessing.get_context = context_of_engines
elif program[:1] == ["-c"] and CHECK in program[1] and "TORCH_FORKS" in os.environ:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    import torch_forks

    code = torch_forks.run(sys.executable, program[1], (), environ=os.environ, streams=(0, 1, 2))
    os._exit(code if code >= 0 else 128 - code)

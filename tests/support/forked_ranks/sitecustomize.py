"""Let sglang 0.5.14 take less CPU time, with the same answers.

It spawns its processes, and each imports torch and sglang anew: here it forks them. Its controller of data parallelism
asks for requests without a pause: here it waits for them. Its check of arguments is a fork of `torch_forks`.

Python imports this module where its directory is on PYTHONPATH (docs: `site`); `standin` puts it in images
that serve real sglang, where each check of arguments is a process of its own.
"""

import os
import sys

CHECK = "check_server_args.py QUESTION"  # in the text of that program
if sys.orig_argv[1:3] == ["-m", "sglang.launch_server"]:  # not the scripted engine
    import multiprocessing
    from multiprocessing.process import BaseProcess
    from typing import Any

    import zmq

    set_start_method, run, receive = multiprocessing.set_start_method, BaseProcess.run, zmq.Socket.recv_pyobj

    def wait_and_receive(socket: Any, flags: int) -> object:  # noqa: ANN401
        socket.poll(100)
        return receive(socket, flags)

    def run_frugally(process: BaseProcess) -> None:
        target = getattr(process, "_target")  # noqa: B009
        controls = getattr(target, "__name__", "") == "run_data_parallel_controller_process"
        zmq.Socket.recv_pyobj = wait_and_receive if controls else receive
        run(process)

    multiprocessing.set_start_method = lambda _, force=False: set_start_method("fork", force)
    BaseProcess.run = run_frugally
elif (
    sys.orig_argv[1:2] == ["-c"] and "check_server_args.py QUESTION" in sys.orig_argv[2] and "TORCH_FORKS" in os.environ
):
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    import torch_forks

    code = torch_forks.run(sys.executable, sys.orig_argv[2], (), environ=os.environ, streams=(0, 1, 2))
    os._exit(code if code >= 0 else 128 - code)

"""Let sglang 0.5.14 take less CPU time, with the same answers.

It spawns its processes, and each imports torch and sglang anew: here it forks them. Its controller of data parallelism
asks for requests without a pause: here it waits for them.

Python imports this module at its start, where its directory is on PYTHONPATH (docs: `site`). Servers in containers, and
those with a PYTHONPATH of their own, as in test_planted_faults.py, have neither.
"""

import sys

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

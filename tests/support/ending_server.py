"""End an asyncio server without leaving a socket open."""

import asyncio


async def end_server(server: asyncio.Server) -> None:
    """Accept nothing more, let what was accepted begin, and close the server.

    A connection whose task begins after `close` fails in asyncio (an assertion in `Server._attach`), with its socket
    open: the warning of that fails some later test.
    """
    loop = asyncio.get_running_loop()
    for socket in server.sockets:
        loop.remove_reader(socket.fileno())
    for _ in range(5):  # turns of the loop from `accept` to the first line of the task that serves
        await asyncio.sleep(0)
    server.close()

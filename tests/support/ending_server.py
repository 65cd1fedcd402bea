"""End an asyncio server without leaving a socket open."""

import asyncio


async def end_server(server: asyncio.Server) -> None:
    """Stop accepting, let accepted connections start, and close the server.

    A connection whose task starts after `close` fails in asyncio (an assertion in `Server._attach`) and leaves its
    socket open; the warning about this would fail a later test.
    """
    loop = asyncio.get_running_loop()
    for socket in server.sockets:
        loop.remove_reader(socket.fileno())
    for _ in range(5):  # iterations of the loop from `accept` to the first line of the connection's task
        await asyncio.sleep(0)
    server.close()

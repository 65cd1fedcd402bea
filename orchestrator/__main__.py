"""`deploy`, and `python -m orchestrator`.

The imports of the command line take a third of a second. Ctrl-C in that time ends the process as it ends any program:
nothing has been started, and there is nothing to say. (`signal` itself imports much: `_signal` is what it wraps.)
"""

import _signal  # type: ignore[import-not-found]
import gc
import sys

# Objects between two garbage collections: Python's 700 cost a seventh of the time of `deploy status`. mypy raises it as
# well (mypy/build.py, `build_inner`).
_GC_THRESHOLD = 200_000


def main() -> None:
    """Run the command line."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    gc.set_threshold(_GC_THRESHOLD)
    from orchestrator.core.streams import install_streams  # noqa: PLC0415 - after SIGINT is handled

    install_streams()
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # httpx's own command line: a tenth of what is imported
    from orchestrator.cli.main import main as run  # noqa: PLC0415 - after the lines above

    run()


if __name__ == "__main__":
    main()

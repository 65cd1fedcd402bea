"""Separate servers for prefill and decode: sglang's options for each role, and the transfer of the KV cache.

A prefill server processes a prompt and sends its KV cache to a decode server, which generates. A router (SGLang's
gateway) sends each request to both; the decode server finds the prefill server at its bootstrap port. Without the
router, both reject a request: `400 Disaggregated request received without bootstrap room id` (0.5.14).
"""

import re
from collections.abc import Container, Iterable, Iterator
from typing import Final

from orchestrator.engine.options import Meaning

PREFILL: Final = "prefill"
DECODE: Final = "decode"
ROLES: Final = (PREFILL, DECODE)
MODE: Final = "disaggregation-mode"
BACKEND: Final = "disaggregation-transfer-backend"
BOOTSTRAP_PORT: Final = "disaggregation-bootstrap-port"
DECODE_CACHE: Final = "disaggregation-decode-enable-radix-cache"  # without it, a decode server has no prefix cache
RDMA_ONLY: Final = "mori"  # sglang 0.5.14, disaggregation/mori/conn.py:372; newer versions too
# Gateway policies that send equal prefixes to the same server (smg 1.13.0). With others, on two prefill servers, 151
# prefixes were saved to the host tier and none was read again (ROCm/ATOM, recipes/DeepSeek-V4-Agentic-PD-Max.md).
PREFIX_AFFINE: Final = ("cache_aware", "prefix_hash", "consistent_hashing")
# Lines of a server's log: they alone show TCP instead of RDMA, which is 5 to 20 times slower (AMD-AGI/Infera).
_TCP: Final = re.compile(r"MC_FORCE_TCP|TcpTransport: listen|GID is NULL")
_RDMA: Final = re.compile(r"installTransport, type=rdma")  # Mooncake

# A prefill server's transfers to decode servers, without health checks (seen in 0.5.14 and 0.5.16 with Mooncake).
TRANSFERS: Final = "sglang:kv_transfer_latency_ms_count"


def direct_request_problem(role: str) -> tuple[str, str]:
    """Return why a server of this role cannot be measured alone, and a hint."""
    problem = f"a {role} server rejects requests that do not come from its gateway (no bootstrap room)"
    return problem, "use the name or the URL of its gateway"


def missing_decode_cache(flags: Container[str], options: Container[str]) -> str:
    """Return the option for a prefix cache in a decode server if the version has it and `flags` omit it, else ""."""
    return DECODE_CACHE if DECODE_CACHE in options and DECODE_CACHE not in flags else ""


def has_decode_cache(flags: Container[str]) -> bool:
    """Return whether a decode server with these flags has a prefix cache."""
    return DECODE_CACHE in flags


def sets_first_gpu(flags: Container[str]) -> bool:
    """Return whether the flags of a role select its first GPU."""
    return Meaning.FIRST_GPU in flags


def gateway_words(prefill: Iterable[tuple[str, int]], decode: Iterable[str]) -> Iterator[str]:
    """Yield the gateway's options for its workers; a prefill server has a URL and a bootstrap port."""
    yield "--pd-disaggregation"
    for url, port in prefill:
        yield from ("--prefill", url, str(port))
    for url in decode:
        yield from ("--decode", url)


def worker_fields(role: str, bootstrap_port: int | None) -> dict[str, object]:
    """Return the fields that tell the gateway the role of a new worker."""
    port = {} if bootstrap_port is None else {"bootstrap_port": bootstrap_port}
    return {"worker_type": role, **port}


def network_unknown(backend: str, *, tcp: bool) -> str:
    """Return why the log does not show a backend's network; "" if it does, or if the backend has only one network."""
    return "the log of nixl names no network: it may be TCP" if backend == "nixl" and not tcp else ""


def transfer_problem(log: Iterable[str], *, backend: str, tcp: bool) -> str:
    """Return the contradiction between a server's log and the network of its profile; "" if there is none."""
    over_tcp = over_rdma = ""
    for line in log:
        over_tcp = over_tcp or (line.strip() if _TCP.search(line) else "")
        over_rdma = over_rdma or (line.strip() if _RDMA.search(line) else "")
    if tcp:
        return f"the profile sets TCP, but the log shows RDMA: {over_rdma}" if over_rdma else ""
    if over_tcp:
        return f"the KV cache is transferred over TCP: {over_tcp}"
    return "no line of the log shows the use of RDMA" if backend == "mooncake" and not over_rdma else ""

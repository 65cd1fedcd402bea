"""Estimate failures, placement and drains on 100 and 1,000 nodes of 8 GPUs, by formulas and by simulation.

    python tests/benchmarks/fleet_simulation.py [--nodes 100,1000] [--node-days 2e7] [--seed 1]

A discrete-event simulation with a heap of events. Nodes fail at random: either the server restarts on the same node, or
the node is lost until it is repaired, and its server waits for enough free nodes. A server has one node or two; or each
node is a prefill or a decode server, and the smaller of the two pools limits the capacity. A rolling update drains and
restarts a number of servers at a time. Columns with both values have `formula ~ simulated`; the rows below them have
only formulas. `Inputs` names the source of each value; none was measured on MI355X.
"""

import argparse
import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the estimate. Times in seconds, sizes in GB, rates in GB/s."""

    # Llama 3: 419 unexpected interruptions in 54 days on 2,048 nodes of 8 H100 (arXiv 2407.21783, table 5). For
    # comparison, A100: 6.5 per 1,000 node-days (arXiv 2410.21680, RSC-1).
    faults_per_node_day: float = 419 / 54 / 2048
    # "GPU host replacement" among the faults of an H200 cluster (Crusoe, GTC 2025, in glennklockwood.com/garden).
    lost_share: float = 0.415
    repair_s: float = 4 * DAY_S  # physical replacement takes 3 to 5 days (arXiv 2504.06095)
    # Kubernetes 1.20: a node is unreachable after 40 s (`--node-monitor-grace-period`), its pods are evicted 300 s
    # later (default toleration).
    node_lost_after_s: float = 340.0
    weights_gb: float = 438.0  # GLM-5.2 in MXFP4 (profiles/models/glm-5.2-mxfp4.yaml)
    disk_gb_s: float = 1560 / 502  # Kimi-K3's 1.56 TB from NVMe in 502 s (AMD-AGI/Infera)
    nfs_gb_s: float = 1560 / (95 * 60)  # the same over NFS in about 95 min
    link_gb_s: float = 12.5  # 100 Gb/s: assumed, for a node and for the one origin
    engine_start_s: float = 65.0  # measured with compiled kernels, one H100 (docs/verified.md)
    compile_s: float = 633.0  # aiter's 16 modules, none compiled (sglang #34586)
    # The load of wafer.ai/blog/glm52-amd: 2.4 requests/s of 1,000 output tokens on a node, of which at most 80 run
    # (profile mi355x-tp4dp2): 80 x 1,000 / 2,626 tok/s = 30 s for a request. Assumption: exponential durations.
    requests_per_node_s: float = 2.4
    input_tokens: int = 20_000
    running: int = 80
    request_s: float = 80 * 1000 / 2626
    drain_bound_s: float = 300.0  # `timeouts.termination_grace` of mi355x-tp4dp2
    default_drain_bound_s: float = 120.0  # of other profiles
    cached_tokens: float = 2_713_536  # on the GPUs of a DP rank of mi355x-tp4dp2 (`deploy show --capacity`)
    prefill_s_per_token: float = 71e-6  # GLM-5.2 on 4 MI355X (ROCm/ATOM, recipes/Agentic-GLM-5.2.md)
    kv_bytes_per_token: int = 55_932  # fp8, GLM-5.2 with MTP (`deploy show mi355x-tp4dp2 --capacity`)
    image_gb: float = 75.3  # unpacked (sglang #22037)
    gateway_s: float = 0.028  # CPU time of a streamed request in smg 1.13.0 (gateway_cost.py)
    # Each decode rank polls each known prefill server (sglang 0.5.14, disaggregation/common/conn.py).
    heartbeat_interval_s: float = 5.0
    ranks: int = 8
    metrics_bytes: int = 61_000  # `/metrics` of sglang 0.5.14 on a CPU, one rank
    scrape_interval_s: float = 15.0  # `deploy monitoring`

    @property
    def restart_s(self) -> float:
        """Startup time on a node with the weights and the compiled kernels."""
        return self.weights_gb / self.disk_gb_s + self.engine_start_s

    @property
    def lost_node_share(self) -> float:
        """Mean share of the nodes that wait for repair."""
        expected = self.faults_per_node_day * self.lost_share * self.repair_s / DAY_S
        return expected / (1 + expected)


@dataclass(frozen=True, kw_only=True)
class Layout:
    name: str
    nodes_per_server: int = 1
    pools: int = 1  # 2: prefill and decode, one node each


LAYOUTS = (
    Layout(name="undivided, 1 node"),
    Layout(name="undivided, 2 nodes", nodes_per_server=2),
    Layout(name="prefill and decode", pools=2),
)


@dataclass(eq=False)
class Server:
    pool: int
    nodes: list[int] = field(default_factory=list)
    up: bool = True
    generation: int = 0  # a start that was scheduled by an earlier generation is ignored


@dataclass
class Fleet:
    """The nodes, the servers on them, and future events."""

    inputs: Inputs
    layout: Layout
    nodes: int
    spares: int
    rng: random.Random
    now: float = 0.0
    lost_s: Counter[int] = field(default_factory=Counter)  # seconds, by the number of lost nodes
    capacity_s: Counter[float] = field(default_factory=Counter)  # seconds, by the available share of the capacity
    faults: int = 0
    updated_after_s: float | None = None
    aborted: int = 0  # requests that a drain aborted

    def __post_init__(self) -> None:
        count = (self.nodes - self.spares) // self.layout.nodes_per_server
        self.servers = [Server(pool=index % self.layout.pools) for index in range(count)]
        self.planned = Counter(server.pool for server in self.servers)
        self.serving = Counter(self.planned)
        self.owner: dict[int, Server] = {}
        self.free = list(range(self.nodes))
        self.lost: set[int] = set()
        self.waiting: list[Server] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.to_update: deque[Server] = deque()
        self.in_update = 0
        for server in self.servers:
            self._take_nodes(server)
        self._next_fault()

    @property
    def capacity(self) -> float:
        """Available share of the planned capacity: that of the smaller pool."""
        return min(self.serving[pool] / planned for pool, planned in self.planned.items())

    def run(self, until_s: float = math.inf) -> "Fleet":
        """Run the simulation until this time, or until a rolling update has ended."""
        while self.events and self.events[0][0] <= until_s and self.updated_after_s is None:
            at, _, act = heapq.heappop(self.events)
            self.lost_s[len(self.lost)] += at - self.now
            self.capacity_s[self.capacity] += at - self.now
            self.now = at
            act()
        return self

    def update(self, at_once: int) -> "Fleet":
        """Start a rolling update of `at_once` servers at a time."""
        self.to_update = deque(self.servers)
        self.in_update = at_once
        for _ in range(at_once):
            self._update_next()
        return self

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, self.rng.getrandbits(62), act))

    def _next_fault(self) -> None:
        if rate := self.inputs.faults_per_node_day * self.nodes / DAY_S:
            self._after(self.rng.expovariate(rate), self._fault)

    def _fault(self) -> None:
        self._next_fault()
        node = self.rng.randrange(self.nodes)
        if node in self.lost:  # a lost node cannot fail again
            return
        self.faults += 1
        server, is_lost = self.owner.get(node), self.rng.random() < self.inputs.lost_share
        if server is not None:
            self._stop(server)
            if is_lost:
                self._release(server)
                self._after(self.inputs.node_lost_after_s, lambda: self._wait_for_nodes(server))
            else:
                self._start_after(server, self.inputs.restart_s)
        if is_lost:
            self.free.remove(node)
            self.lost.add(node)
            self._after(self.rng.expovariate(1 / self.inputs.repair_s), lambda: self._repaired(node))

    def _repaired(self, node: int) -> None:
        self.lost.remove(node)
        self.free.append(node)
        self.assign_nodes()

    def _wait_for_nodes(self, server: Server) -> None:
        self.waiting.append(server)
        self.assign_nodes()

    def assign_nodes(self) -> None:
        """Assign free nodes to waiting servers, of the smaller pool first."""
        self.waiting.sort(key=lambda server: self.serving[server.pool])
        while self.waiting and len(self.free) >= self.layout.nodes_per_server:
            server = self.waiting.pop(0)
            self._take_nodes(server)
            self._start_after(server, self.inputs.restart_s)

    def _take_nodes(self, server: Server) -> None:
        server.nodes = [self.free.pop() for _ in range(self.layout.nodes_per_server)]
        self.owner.update(dict.fromkeys(server.nodes, server))

    def _release(self, server: Server) -> None:
        for node in server.nodes:
            del self.owner[node]
        self.free += server.nodes
        server.nodes = []

    def _stop(self, server: Server) -> None:
        self.serving[server.pool] -= server.up
        server.up = False
        server.generation += 1

    def _start_after(self, server: Server, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        generation = server.generation

        def started() -> None:
            if server.generation == generation:
                server.up = True
                self.serving[server.pool] += 1
            then()

        self._after(seconds, started)

    def _update_next(self) -> None:
        while self.to_update:
            server = self.to_update.popleft()
            if server.up:  # otherwise its pending start updates it
                self._drain(server)
                return
        self.in_update -= 1
        if not self.in_update:
            self.updated_after_s = self.now

    def _drain(self, server: Server) -> None:
        rest = [self.rng.expovariate(1 / self.inputs.request_s) for _ in range(self.inputs.running)]
        self.aborted += sum(duration > self.inputs.drain_bound_s for duration in rest)
        self._after(min(max(rest), self.inputs.drain_bound_s), lambda: self._drained(server))

    def _drained(self, server: Server) -> None:
        if server.up:
            self._stop(server)
            self._start_after(server, self.inputs.restart_s, self._update_next)
        else:  # it failed during the drain: its restart is the update
            self._update_next()


def spares_needed(inputs: Inputs, nodes: int, shortage: float = 1e-3) -> int:
    """Return the number of spares that lost nodes exceed for at most `shortage` of the time: a binomial quantile."""
    share, covered = inputs.lost_node_share, 0.0
    for lost in range(nodes + 1):
        covered += math.comb(nodes, lost) * share**lost * (1 - share) ** (nodes - lost)
        if covered >= 1 - shortage:
            return lost
    return nodes


def capacity_with_spares(inputs: Inputs, layout: Layout) -> float:
    """Return the mean available share of the capacity if there is always a free node."""
    down_s = inputs.restart_s + inputs.lost_share * inputs.node_lost_after_s
    return 1 / (1 + layout.nodes_per_server * inputs.faults_per_node_day * down_s / DAY_S)


def capacity_without_spares(inputs: Inputs, layout: Layout, nodes: int) -> float:
    """Return the mean available share of the capacity if every node is in use.

    With two pools, the smaller one counts: the larger of two equal normal deviates exceeds their mean by
    sigma / sqrt(pi). With servers of two nodes, a single remaining node is unused if an odd number of nodes is lost.
    """
    share, servers = inputs.lost_node_share, nodes // layout.nodes_per_server
    lost = share
    if layout.pools == 2:
        lost += math.sqrt(share * (1 - share) / (servers / 2)) / math.sqrt(math.pi)
    if layout.nodes_per_server == 2:
        share_of_pairs = (1 - (1 - 2 * share) ** nodes) / 2  # probability that an odd number of nodes is lost
        lost += share_of_pairs / nodes
    return (1 - lost) * capacity_with_spares(inputs, layout)


def drain_s(inputs: Inputs) -> float:
    """Return the mean time until all running requests end, at most the bound: the integral of P(not all ended)."""
    steps = 1000
    step = inputs.drain_bound_s / steps
    times = (step * (index + 0.5) for index in range(steps))
    return sum(step * (1 - (1 - math.exp(-time / inputs.request_s)) ** inputs.running) for time in times)


def update_s(inputs: Inputs, servers: int, at_once: int) -> float:
    """Return the time of a rolling update of `at_once` servers at a time."""
    return servers / at_once * (drain_s(inputs) + inputs.restart_s)


def guaranteed_capacity(fleet: Fleet, share: float = 0.999) -> float:
    """Return the capacity that is available for at least this share of the time."""
    rest = (1 - share) * sum(fleet.capacity_s.values())
    for capacity in sorted(fleet.capacity_s):
        rest -= fleet.capacity_s[capacity]
        if rest < 0:
            return capacity
    return 1.0


def mean_capacity(fleet: Fleet) -> float:
    return sum(capacity * seconds for capacity, seconds in fleet.capacity_s.items()) / sum(fleet.capacity_s.values())


def short_of_nodes(fleet: Fleet) -> float:
    """Return the share of the time with more lost nodes than spares."""
    short = sum(seconds for lost, seconds in fleet.lost_s.items() if lost > fleet.spares)
    return short / sum(fleet.lost_s.values())


def print_simulation(inputs: Inputs, nodes: int, node_days: float, seed: int) -> None:
    until, spares = node_days / nodes * DAY_S, spares_needed(inputs, nodes)
    print(f"\n{nodes} nodes: {inputs.faults_per_node_day * nodes:.2f} faults a day, {spares} spares")
    print(f"{'':<20}{'servers':>8}{'capacity with spares':>26}{'without spares':>26}{'99.9 % of time':>16}{'short':>9}")
    for layout in LAYOUTS:
        rng = random.Random(seed)
        with_spares = Fleet(inputs=inputs, layout=layout, nodes=nodes, spares=spares, rng=rng).run(until)
        full = Fleet(inputs=inputs, layout=layout, nodes=nodes, spares=0, rng=rng).run(until)
        values = (
            f"{capacity_with_spares(inputs, layout):.5%} ~ {mean_capacity(with_spares):.5%}",
            f"{capacity_without_spares(inputs, layout, nodes):.3%} ~ {mean_capacity(full):.3%}",
        )
        print(f"{layout.name:<20}{len(with_spares.servers):>8}{values[0]:>26}{values[1]:>26}", end="")
        print(f"{guaranteed_capacity(full):>16.2%}{short_of_nodes(with_spares):>9.3%}")
    default = replace(inputs, drain_bound_s=inputs.default_drain_bound_s)
    twentieth = max(nodes // 20, 1)
    for at_once, bounded in ((1, inputs), (twentieth, inputs), (twentieth, default)):
        fleet = Fleet(inputs=bounded, layout=LAYOUTS[0], nodes=nodes, spares=spares, rng=random.Random(seed))
        fleet.update(at_once).run()
        assert fleet.updated_after_s is not None
        formula = update_s(bounded, len(fleet.servers), at_once)
        aborted = fleet.aborted / len(fleet.servers) / inputs.running
        took = f"{formula / 3600:.1f} h ~ {fleet.updated_after_s / 3600:.1f} h"
        print(f"rolling update, {at_once} at a time, drains of {bounded.drain_bound_s:.0f} s at most: {took}", end="")
        print(f"; least capacity {min(fleet.capacity_s):.1%}; {aborted:.2%} of the running requests aborted")


def print_formulas(inputs: Inputs, nodes: int) -> None:
    rate, half = inputs.requests_per_node_s * nodes, nodes // 2
    heartbeats = inputs.ranks * half / inputs.heartbeat_interval_s
    kv_gb = inputs.input_tokens * inputs.kv_bytes_per_token / 1e9
    copy_gb = inputs.weights_gb + inputs.image_gb
    cached_gb = inputs.cached_tokens * inputs.kv_bytes_per_token / 1e9
    rows = (
        ("gateway: cores for all requests", f"{rate * inputs.gateway_s:.0f}"),
        ("heartbeats to each prefill server, to all (1/s)", f"{heartbeats:.0f}, {heartbeats * half:.0f}"),
        ("KV cache from each prefill node (GB/s)", f"{2 * inputs.requests_per_node_s * kv_gb:.1f}"),
        ("metrics (MB/s)", f"{nodes * inputs.metrics_bytes / inputs.scrape_interval_s / 1e6:.1f}"),
        ("image and weights from one origin (h)", f"{nodes * copy_gb / inputs.link_gb_s / 3600:.1f}"),
        ("the same from peers (min)", f"{copy_gb / min(inputs.link_gb_s, inputs.disk_gb_s) / 60:.1f}"),
        ("start: restart, nothing compiled, weights over NFS (s)", starts(inputs)),
        ("prefill to fill the lost cache of a DP rank (s)", f"{inputs.cached_tokens * inputs.prefill_s_per_token:.0f}"),
        ("the same from a cache tier on NVMe (GB, s)", f"{cached_gb:.0f}, {cached_gb / inputs.disk_gb_s:.0f}"),
        ("requests aborted by faults, of a million", f"{aborted_by_faults(inputs):.1f}"),
    )
    for name, value in rows:
        print(f"{name:<56}{value}")


def starts(inputs: Inputs) -> str:
    over_nfs = inputs.weights_gb / inputs.nfs_gb_s + inputs.engine_start_s
    return f"{inputs.restart_s:.0f}, {inputs.restart_s + inputs.compile_s:.0f}, {over_nfs:.0f}"


def aborted_by_faults(inputs: Inputs) -> float:
    """Return the requests that run on a server when it fails, of each million requests."""
    return inputs.faults_per_node_day * inputs.running / (inputs.requests_per_node_s * DAY_S) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000")
    parser.add_argument("--node-days", type=float, default=2e7, help="simulated, for each capacity")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for nodes in map(int, chosen.nodes.split(",")):
        print_simulation(Inputs(), nodes, chosen.node_days, chosen.seed)
        print_formulas(Inputs(), nodes)


if __name__ == "__main__":
    main()

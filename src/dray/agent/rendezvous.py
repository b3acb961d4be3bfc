"""What a member of a gang finds in its environment: who it is among the others, and where they meet.

Spelled as torchrun and JAX read it. One process per node: what a member starts on its own cards is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.wire.hub_messages import GangPlace, Peer


def name_peers(place: GangPlace, peers: Sequence[Peer]) -> dict[str, str]:
    """The variables of one member; all meet at the first port of rank 0."""
    first = min(peers, key=lambda peer: peer.rank)
    host, port = first.address, str(first.ports[0] if first.ports else 0)
    rank, size = str(place.rank), str(place.size)
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": rank,
        "WORLD_SIZE": size,
        "NODE_RANK": rank,
        "GROUP_RANK": rank,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "JAX_COORDINATOR_ADDRESS": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "JAX_NUM_PROCESSES": size,
        "JAX_PROCESS_ID": rank,
        "DRAY_GANG_GENERATION": str(place.generation),
    }

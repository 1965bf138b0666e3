"""Where a test runs: a server, and the modes that read the group there."""

PLACES = {
    "claiming-8.10": ("redis-8.10", ("claiming",)),
    "recovering-8.10": ("redis-8.10", ("recovering",)),
    "recovering-8.2": ("redis-8.2", ("recovering",)),
    "recovering-7.0": ("redis-7.0", ("recovering",)),
    "recovering-valkey": ("valkey-9.1", ("recovering",)),
    "new+reclaim-8.10": ("redis-8.10", ("new", "reclaim")),
    "new+reclaim-8.2": ("redis-8.2", ("new", "reclaim")),
    "new+reclaim-7.0": ("redis-7.0", ("new", "reclaim")),
}


def places(*names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Pick these places, in this order, as the parameters of a test."""
    return {name: PLACES[name] for name in names}

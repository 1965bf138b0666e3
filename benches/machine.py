"""What a run must name beside its figures: the machine, the versions, the date."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruststream._core import BUILD_PROFILE

PACKAGES = ("ruststream", "redis", "hiredis", "msgspec", "uvloop", "faststream")
CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """Return the CPU's name."""
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def surroundings(server: str) -> dict[str, Any]:
    """Return all of it, as it is now, before the first bench."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
        "nice": os.nice(0),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "build": BUILD_PROFILE,
        "packages": {package: version(package) for package in PACKAGES},
        "server": server,
    }


def sentence(run: dict[str, Any]) -> str:
    """Say it in one paragraph."""
    packages = ", ".join(f"{name} {number}" for name, number in run["packages"].items())
    niceness = f", nice {run['nice']}" if run["nice"] else ""
    build = "" if run["build"] == "release" else f" ({run['build']} build: these figures mean nothing)"
    return (
        f"{run['date']}, {run['processor']}, {run['cores']} cores, {run['system']}, load {run['load_before']} before "
        f"the run{niceness}; {run['python']}, {packages}{build}; {run['server']} on the same machine. "
        f"Rounds: {run['rounds']}, in turn, each a fresh process; medians. Messages: {run['messages']:,}."
    )

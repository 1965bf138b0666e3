"""Time one import statement in an interpreter that has done nothing else, and name the modules it brings in."""

import json
import subprocess
import sys
from typing import Any

from benches.measure import Job, main

TIMEOUT = 60

# Nothing is imported there but sys and time, so that what the statement needs is counted as the statement's.
PROGRAM = """
import sys, time
before = set(sys.modules)
begun = time.perf_counter()
exec(sys.argv[1])
seconds = time.perf_counter() - begun
modules = sorted(set(sys.modules) - before)
import json
print(json.dumps({"seconds": seconds, "modules": modules}))
"""


def fresh(statement: str) -> dict[str, Any]:
    """Run the statement in an interpreter of its own."""
    command = [sys.executable, "-c", PROGRAM, statement]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    return json.loads(done.stdout)


async def time_import(job: Job) -> dict[str, Any]:
    """Run the statement of the job."""
    answer = fresh(job.options["statement"])
    modules = answer["modules"]
    return {
        "milliseconds": answer["seconds"] * 1000,
        "modules": len(modules),
        "packages": sorted({name.partition(".")[0] for name in modules} - sys.stdlib_module_names),
        "standard": sorted({name.partition(".")[0] for name in modules} & sys.stdlib_module_names),
    }


if __name__ == "__main__":
    main(time_import)

"""The programs that are measured. Each run is a fresh process: `python -m benches.contenders.NAME JOB`."""

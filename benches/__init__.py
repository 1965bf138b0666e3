"""Benches: this package, hand-written redis-py and FastStream at the same work, in the same run, on the same machine.

`make bench` runs all of them and writes `results/redis.md`; `BENCH_QUICK=1 make bench` only shows that they run.
A bench asserts that the work was done, never how long it took.
"""

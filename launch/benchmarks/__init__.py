"""The benchmarks of launch/benchmark.py, one per module."""

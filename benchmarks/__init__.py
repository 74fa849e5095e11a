"""Benchmarks. `make bench` measures every bar; `make bench ARGS="--device cuda"` climbs to 64k tokens."""

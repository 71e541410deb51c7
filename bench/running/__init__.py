"""Parts that benchmarks run: servers, the whole server as users start it, its load, and the floor below all figures."""

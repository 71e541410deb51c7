"""Parts that benchmarks run: servers, the whole server as users start it, phones, and the floor below all figures."""

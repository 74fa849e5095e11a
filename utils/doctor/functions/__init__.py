"""An attention function f(q, k, v, mask?, causal?)."""

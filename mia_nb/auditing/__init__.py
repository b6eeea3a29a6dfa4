"""Audits: empirical lower bounds on epsilon, the ladder, per-sample vulnerability, canaries. NumPy only."""

"""Measured sweeps that warm the policy up; empty until one has been recorded."""

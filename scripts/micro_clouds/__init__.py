"""Micro-clouds in one process: real training of a small model in simulated time."""

"""Brings a run's data to a node: from a folder, an object store or the web into a cache."""

"""Authenticated streams between all ranks of a run, over one or several networks.

`mesh.open_mesh` is the way in. `handshake.py` and `companion.py` are also run on their own, by a
bare Python without the launcher's packages, so they import nothing but the standard library.
"""

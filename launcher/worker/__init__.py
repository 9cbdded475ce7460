"""Everything that runs inside the training processes."""

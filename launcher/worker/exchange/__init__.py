"""Ways to exchange gradients between workers."""

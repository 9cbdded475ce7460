"""Tests on real Ray clusters."""

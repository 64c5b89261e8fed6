"""Differential privacy accounting for ratewise."""

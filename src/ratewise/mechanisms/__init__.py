"""Noise, sampling and randomness: the only way from private sums to released values."""

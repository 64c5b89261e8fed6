"""Classifiers under differential privacy that hold limits on prediction rates across groups."""

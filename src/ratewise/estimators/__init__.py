"""Scikit-learn estimators, private search and persistence."""

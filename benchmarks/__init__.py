"""Scripts that measure, and the suite that compares; no part of the package."""

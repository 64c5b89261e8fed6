"""A run, or anybody's predictions, as one page: asked against reached, rates by group, what privacy cost.

`content` holds what is said, as plain data; `measure`, `spending`, `curves` and `build` make it; `page`,
`card` and `figures` show it. None of the makers draws, and none of the renderers computes.
"""

from ratewise.report.report import Report

__all__ = ["Report"]

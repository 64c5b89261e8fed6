"""Reports on constraints, rates by group, shape functions and privacy, as one page.

`content` is what is shown, as plain data; `evaluation` and `build` make it; `page`, `views` and `plots` draw.
"""

from ratewise.report.report import Report

__all__ = ["Report"]

"""Reports: what predictions reach of what was requested, by group, and what privacy cost.

`content` is what is shown, as plain data; `evaluation` and `build` make it; `page`, `views` and `plots` draw.
"""

from ratewise.report.report import Report

__all__ = ["Report"]

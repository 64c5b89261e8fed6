"""Reports: what predictions reach of what was requested, rates by group, shape functions, and what privacy cost.

`content` holds everything that is shown, as plain data; `evaluation` and `build` make it; `page`, `views`, `plots` and
`figures` show it.
"""

from ratewise.report.report import Report

__all__ = ["Report"]

"""Tables that are larger than memory or spread over machines: Arrow data sets, Dask and Spark data frames.

`open_rows` turns such a table into a source of rows for a session (`ratewise.training.session.RowSource`). Rows stay
where they are; a session asks for sums over units. Sums are exact, membership in a sample is a keyed function of
the unit, and noise is added once, by the session: results do not depend on how rows are spread.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ratewise.distributed.arrow import ArrowRows, open_parquet
from ratewise.distributed.clusters import open_dask, open_spark
from ratewise.distributed.partitions import ARROW, DASK, layout_of, table_kind

__all__ = ["ArrowRows", "open_parquet", "open_rows", "table_kind"]


def open_rows(
    table: Any,
    y: Any,
    *,
    sensitive_features: Any = None,
    privacy_ids: Any = None,
    needed: Collection[str] | None = None,
    leave_out: Collection[str] = (),
) -> Any:
    """Return the rows of a table as a source for a session; nothing but names and types is read.

    Parameters
    ----------
    table : pyarrow.dataset.Dataset, dask.dataframe.DataFrame or pyspark.sql.DataFrame
    y, sensitive_features, privacy_ids : names of columns
    needed : collection of str, optional
        Sensitive columns that constraints read; all by default.
    leave_out : collection of str
        Columns that are not used.
    """
    kind = table_kind(table)
    columns = [name for name in (table.schema.names if kind == ARROW else table.columns) if name not in leave_out]
    layout = layout_of(columns, y, sensitive_features, privacy_ids, needed)
    if kind == ARROW:
        return ArrowRows(table, layout)
    return open_dask(table, layout) if kind == DASK else open_spark(table, layout)

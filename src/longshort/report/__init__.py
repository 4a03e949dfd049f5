"""One offline HTML page, and its figures, from the folders that training runs leave behind.

`longshort.runs` reads them, `thinning` makes long curves small, `comparison` computes the numbers, `charts` draws,
`page` writes. Only drawing and writing need the packages of `pip install 'longshort[report]'`.
"""

from longshort.report.charts import ReportError
from longshort.report.page import ReportFiles, write_report

__all__ = ["ReportError", "ReportFiles", "write_report"]

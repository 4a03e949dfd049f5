"""One offline HTML page, and its figures, from the folders that training runs leave behind.

`runs` reads them, `thinning` makes long curves small, `comparison` computes the numbers, `charts` draws, `page` writes.
Only drawing and writing need the packages of `pip install 'longshort[report]'`.
"""

from longshort.report.page import ReportFiles, write_report
from longshort.runs.reading import ReportError, Run, load_run, load_runs

__all__ = ["ReportError", "ReportFiles", "Run", "load_run", "load_runs", "write_report"]

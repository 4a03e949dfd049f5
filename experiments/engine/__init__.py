"""The paper's experiments as small recipes: `python -m experiments NAME`.

A recipe says which runs there are and what their numbers show; `sweep` runs them, `pack` makes them small enough to
travel, `publish` writes the table, the figure and the verdicts. Training and figures are apart: a GPU machine without
Altair trains and packs, another draws. Importing this package loads nothing: the command line does it at each start.
"""

"""What the experiments share: running sweeps, packing results for transport, reading runs into data, building pages.

Training and figures are apart: a GPU machine without Altair trains and packs, another one draws. The engine knows no
experiment: it is handed one.
"""

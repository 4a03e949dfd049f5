"""What the experiments share: running sweeps, packing results for transport, reading runs into data, building pages.

Training and drawing are separate: a GPU machine without Altair trains and packs, another one draws. The engine knows
no experiment by name; each is passed to it.
"""

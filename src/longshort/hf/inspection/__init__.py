"""Looking into a causal language model of transformers: how far each head looks, and what limiting it costs.

`longshort inspect` measures a folder, proposes a plan and writes a record; `longshort convert` applies a plan, trains
for a short while and writes a folder. Any architecture that uses transformers' attention interface is served, and our
own.
"""

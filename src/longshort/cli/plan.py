"""`longshort plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from longshort.cli.train import CONFIG_HELP, OVERRIDES_HELP


def plan(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP)],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=65_536, help="Number of GPUs (default: try 1, 2, 4, ... 1,024).")
    ] = None,
    gpu: Annotated[str, typer.Option(help="h200, h100, b200, a100, l40s or 4090.")] = "h200",
    per_node: Annotated[int, typer.Option(min=1, max=65_536, help="GPUs per node.")] = 8,
    memory: Annotated[float | None, typer.Option(help="GB per GPU (default: its data sheet's).")] = None,
    link: Annotated[
        float | None, typer.Option(help="GB/s per GPU and direction within a node (default: its data sheet's).")
    ] = None,
    network: Annotated[
        float | None, typer.Option(help="GB/s per GPU and direction between nodes (default: its usual adapter's).")
    ] = None,
    fix: Annotated[list[str] | None, typer.Option(help="Keep this setting, such as cp=4; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")] = None,
) -> None:
    """Estimate memory, traffic and time of training on other machines.

    Prints memory per GPU, bytes sent per step, step time and tokens per day of the fastest settings that fit, and where
    each number comes from: measured, assumed or computed.

    Example: longshort plan gpt2-small --gpus 8

    Example: longshort plan gpt2-small model.context=131072 data.batch_size=8 --gpu h100 --fix cp=4
    """
    from longshort.files import check_replaceable, write_json
    from longshort.planning import Machines, planned
    from longshort.planning.search import check_not_set
    from longshort.train import TrainConfig

    check_not_set(overrides or [])
    # A plan chooses run.accumulate, so that of the file need not divide the batch.
    settings = TrainConfig.load(config, ["run.accumulate=1", *(overrides or [])], typer.echo)
    if out is not None:
        check_replaceable(out, '"gpu_hours_per_billion_tokens":')
    given = {"memory": memory, "link": link, "network": network}
    for name, size in given.items():
        if size is not None and not 0 < 1e9 * size < float("inf"):
            raise ValueError(f"--{name} must be a number above 0, got {size:g}")
    sizes: dict[str, Any] = {name: None if size is None else 1e9 * size for name, size in given.items()}
    machines = Machines(gpu=gpu, per_node=per_node, **sizes)
    text, numbers = planned(settings, machines, gpus=gpus, fix=fix or [])
    typer.echo(text)
    if out is not None:
        typer.echo(f"wrote {write_json(out, numbers)}")

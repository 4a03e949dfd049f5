"""`longshort import`: a model of others as a run at step 0, which the other verbs take like any run.

The importers read and convert; here the result gets a checkpoint, a config.yaml and a tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longshort.data.tokenizer import Tokenizer
    from longshort.model import GPT

CONFIG = "config.yaml"


def import_(
    source: Annotated[Path, typer.Argument(help="Folder or file of GPT-2's safetensors; or the author's .pt file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run that is made; it must not hold one.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="tokenizer.json or its folder, or bytes (default: the one beside SOURCE).")
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Of a .pt file that does not say: heads a layer.")] = None,
    global_heads: Annotated[int | None, typer.Option(min=0, help="Likewise: how many of them are global.")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Likewise: keys a local head sees, its own too.")] = None,
    span: Annotated[int | None, typer.Option(min=0, help="Likewise: or the keys before its own.")] = None,
    activation: Annotated[
        str | None, typer.Option(help="Of a .pt file: gelu (default), or gelu_tanh of older code.")
    ] = None,
) -> None:
    """Make a run at step 0 of GPT-2's weights or of a checkpoint of the paper's author: for generate, evaluate, train.

    Example: longshort import gpt2/ --out runs/gpt2 && longshort generate runs/gpt2 --prompt "Once"
    """
    from longshort.data.tokenizer import load_tokenizer
    from longshort.hf.importers import from_author, from_gpt2

    reach = {"n_heads": heads, "n_global": global_heads, "window": window, "span": span}
    if source.suffix in (".pt", ".pth", ".ckpt"):
        model = from_author(source, **reach, activation=activation or "gelu")
    else:
        given = [name for name, value in (reach | {"activation": activation}).items() if value is not None]
        if given:
            raise ValueError(f"{', '.join(given)} belong to the author's .pt files; {source} is read as GPT-2")
        model = from_gpt2(source)
    beside = source if source.is_dir() else source.parent
    if tokenizer is None and (beside / "tokenizer.json").is_file():
        tokenizer = str(beside / "tokenizer.json")
    found = None if tokenizer is None else load_tokenizer(tokenizer)
    checkpoint = save_as_run(model, out, tokenizer=found, source=source.name)
    typer.echo(f"{model.n_parameters():,} parameters, {model.config.layer_plans[0]}")
    typer.echo(
        f"wrote {checkpoint}\nwrote {out / CONFIG}: longshort train {out / CONFIG} data.path=... goes on from it"
    )
    if found is None:
        typer.echo("no tokenizer: generate, export and train need one, which import takes with --tokenizer", err=True)


def save_as_run(model: GPT, out: Path, *, tokenizer: Tokenizer | None = None, source: str = "") -> Path:
    """Write the model as a run's checkpoint of step 0, with a config.yaml to go on from; returns the checkpoint."""
    import yaml

    from longshort.files import write_atomically, write_json
    from longshort.stability import SpikeGuard
    from longshort.train import TrainConfig
    from longshort.train.checkpoint import save_checkpoint

    if (out / "checkpoints").is_dir():
        raise ValueError(f"out must not hold a run yet, got {out}, which has checkpoints")
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"tokenizer must have no more tokens than the model, {model.config.vocab_size}, got {tokenizer.vocab_size}"
        )
    config = TrainConfig.from_dict({"model": model.config.to_dict(), "run": {"out": str(out)}})
    if tokenizer is not None:
        write_json(out / "tokenizer.json", tokenizer.to_dict())
    sections = {"model": _set(config.to_dict()["model"]), "run": {"out": str(out)}}
    write_atomically(out / CONFIG, yaml.safe_dump(sections, sort_keys=False))
    state = {
        "config": config.to_dict(),
        "progress": {},
        "guard": SpikeGuard().state_dict(),
        "vocabulary": None if tokenizer is None else tokenizer.fingerprint,
        "imported": source,
    }
    return save_checkpoint(out / "checkpoints", step=0, model=model.state_dict(), trainer={}, state=state)


def _set(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}

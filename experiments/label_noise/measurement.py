"""The measurement of `label-noise`: which data sets, models and conditions there are, and one file for each pair.

A pair that is already in the folder with the same settings, seeds and images is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.engine.measurement import keep_seeds, machine, on_one_thread
from experiments.engine.measures import read_json
from experiments.engine.records import Message, Options
from experiments.engine.sweep import chosen
from experiments.label_noise.data import Condition, Dataset, digits, fingerprint, images, mixture
from experiments.label_noise.losses import LOSSES
from experiments.label_noise.models import ARCHITECTURES
from experiments.label_noise.training import Settings, train_all
from longshort.files import write_json

DATASETS = ("mixture", "mnist", "digits")
SIZES, QUICK_SIZES = (1000, 500, 1000), (100, 50, 50)
"""Training, validation and test points of one seed."""
CLEAN, NOISY = Condition(kind="clean", share=0.0), Condition(kind="symmetric", share=0.4)
OUTLIERS = Condition(kind="outliers", share=0.2)
CONDITIONS = (
    CLEAN,
    *(Condition(kind="symmetric", share=share) for share in (0.2, 0.4, 0.6)),
    *(Condition(kind="asymmetric", share=share) for share in (0.2, 0.4)),
    OUTLIERS,
)
FEW = (CLEAN, NOISY, Condition(kind="asymmetric", share=0.4), OUTLIERS)
"""For the transformer, which takes longest."""
SETTINGS = Settings(epochs=40)
TRANSFORMER_SETTINGS = Settings(epochs=30)
QUICK_SETTINGS = Settings(epochs=2, batch=50, look_every=1)


def pairs(options: Options) -> list[tuple[str, str]]:
    """The data sets and models of a call: real images from --data, else scikit-learn's where it is installed."""
    real = ("mnist",) if options.data is not None else ("digits",) if find_spec("sklearn") else ()
    every = [(dataset, model) for dataset in ("mixture", *real) for model in ARCHITECTURES]
    names = {"-".join(pair): pair for pair in every}
    return [names[name] for name in chosen(names, options.variants or ("*",))]


def measure(options: Options, message: Message) -> None:
    """Train what is missing, pair by pair."""
    wanted = pairs(options)
    known = None if options.data is None else fingerprint(options.data)
    sizes = QUICK_SIZES if options.quick else SIZES
    for dataset, model in wanted:
        keep_seeds(options.out / f"{dataset}-{model}.json", options)
    with on_one_thread(options):
        for dataset, model in wanted:
            settings = QUICK_SETTINGS if options.quick else TRANSFORMER_SETTINGS if model == "transformer" else SETTINGS
            conditions = FEW if options.quick or model == "transformer" else CONDITIONS
            path = options.out / f"{dataset}-{model}.json"
            pictures = known if dataset == "mnist" else None
            if is_there(path, settings, options.seeds, pictures):
                message(f"{path.stem} is already there")
                continue
            drawn = _draw(dataset, options.data, options.seeds, sizes)
            results = train_all(drawn, ARCHITECTURES[model], LOSSES, conditions, options.seeds, settings, message)
            write_json(path, results | {"pictures": pictures, "machine": machine()})


def is_there(path: Path, settings: Settings, seeds: Sequence[int], pictures: str | None) -> bool:
    """Were exactly these models trained already? Results of earlier versions do not say on which images."""
    if not path.is_file():
        return False
    found = read_json(path)
    same = found["settings"] == vars(settings) and found["seeds"] == list(seeds)
    return bool(same and found.get("pictures", pictures) == pictures)


def read_all(folder: Path) -> list[dict[str, Any]]:
    """The results of every pair in the folder, in the order of the experiment."""
    paths = [folder / f"{dataset}-{model}.json" for dataset in DATASETS for model in ARCHITECTURES]
    return [read_json(path) for path in paths if path.is_file()]


def _draw(dataset: str, data: Path | None, seeds: Sequence[int], sizes: Sequence[int]) -> Dataset:
    if dataset == "mnist":
        assert data is not None
        return images(data, seeds, sizes)
    return mixture(seeds, sizes) if dataset == "mixture" else digits(seeds, sizes)

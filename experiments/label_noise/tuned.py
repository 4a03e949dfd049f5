"""The measurement of `label-noise-images`: rates chosen on noisy validation data, then models trained at them.

There is one file for each data set and share of wrong labels; one that is already in the folder with the same settings,
seeds and images is not made again. Letters: L losses, R rates, S seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.engine.base import on_cuda
from experiments.engine.measurement import keep_seeds, machine, on_one_thread
from experiments.engine.measures import read_json
from experiments.engine.records import Message, Options
from experiments.engine.sweep import chosen
from experiments.label_noise.data import Condition, Dataset, Split, corrupted, fingerprint, images, mixture
from experiments.label_noise.losses import BASE, LOSSES, RIVALS, LossVariant
from experiments.label_noise.models import CONVOLUTIONAL
from experiments.label_noise.training import Settings, fit, read_off
from longshort.files import write_json
from longshort.train import ConfigError

EXPONENTIATED = ("e 0.25", "e 0.5", "e 0.75")
ROBUST = RIVALS[:3]
COMPARED = tuple(loss for loss in LOSSES if loss.name in (BASE, *EXPONENTIATED, *ROBUST))
SHARES = (0.0, 0.2, 0.4, 0.6)
ENDS = ("last", "stopped")
"""After the last epoch, and where early stopping stops."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A data set of square images."""

    name: str
    """Its file is NAME.npz."""
    side: int
    sizes: tuple[int, int, int]
    """Training, validation and test points of one seed."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How rates are chosen."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    """None of them is reported."""


PICTURES = (
    Pictures(name="mnist", side=28, sizes=(55_000, 5_000, 10_000)),
    Pictures(name="cifar10-gray", side=32, sizes=(45_000, 5_000, 10_000)),
)
GENERATED = Pictures(name="mixture", side=8, sizes=(200, 100, 100))
QUICK_SIZES, QUICK_SHARES = GENERATED.sizes, (0.0, 0.4)
SETTINGS, QUICK_SETTINGS = Settings(epochs=20, batch=250, look_every=1), Settings(epochs=2, batch=50, look_every=1)
SEARCH = Search(rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2), seeds=(100, 101))
QUICK_SEARCH = Search(rates=(1e-3, 1e-2), seeds=(100,))


def measure(options: Options, message: Message) -> None:
    """Make what is missing, file by file, until the time is over."""
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    search = QUICK_SEARCH if options.quick else SEARCH
    if shared := set(search.seeds) & set(options.seeds):
        raise ConfigError(f"--seeds must leave out those that choose the rates, got {sorted(shared)}")
    device = "cuda" if on_cuda(options.device) else "cpu"
    settings = QUICK_SETTINGS if options.quick else SETTINGS
    drawn: dict[str, tuple[Dataset, Dataset]] = {}
    pieces = _pieces(options)
    sources = {} if options.data is None else {p.name: _file(p, options.data) for p, _ in pieces.values()}
    known = {name: fingerprint(file) for name, file in sources.items()}
    for name in pieces:
        keep_seeds(options.out / f"{name}.json", options)
    with on_one_thread(options):
        for name, (pictures, share) in pieces.items():
            path = options.out / f"{name}.json"
            about = _about(pictures, share, options, settings, search) | {"pictures": known.get(pictures.name)}
            if path.is_file() and read_json(path).items() >= about.items():
                message(f"{name} is already there")
                continue
            if time.monotonic() > until:
                message("stopped; run the same command again to resume")
                return
            if pictures.name not in drawn:  # the other data set's are not needed any more
                drawn = {pictures.name: _draw(pictures, options, search, device)}
            tuning, reported = drawn[pictures.name]
            made = piece(tuning, reported, share, options.seeds, settings, search, _prefixed(message, name))
            write_json(path, about | made | {"machine": machine(device)})


def piece(
    tuning: Dataset,
    reported: Dataset,
    share: float,
    seeds: Sequence[int],
    settings: Settings,
    search: Search,
    message: Message,
) -> dict[str, Any]:
    """Choose the rates on the data of some seeds, then train and test with the others'."""
    start = time.perf_counter()
    condition = Condition(kind="symmetric", share=share)
    train, validation = (corrupted(split, condition, search.seeds) for split in (tuning.train, tuning.validation))
    tried = tune(train, validation, settings, search, message)
    rates = {end: best_rates(tried[end], search.rates) for end in ENDS}
    pairs = [(loss, rate) for loss in COMPARED for rate in sorted({rates[end][loss.name] for end in ENDS})]
    train, validation = (corrupted(split, condition, seeds) for split in (reported.train, reported.validation))
    variants, at = zip(*pairs, strict=True)
    looks = fit(CONVOLUTIONAL, variants, at, train, (validation, reported.test), seeds, settings, message)
    found = {end: values.view(len(pairs), len(seeds)).tolist() for end, values in read_off(looks).items()}
    places = {(loss.name, rate): place for place, (loss, rate) in enumerate(pairs)}
    return {
        "tuning": {end: {name: _rounded(by_rate) for name, by_rate in tried[end].items()} for end in ENDS},
        "chosen_rates": rates,
        "chosen_exponents": {end: max(EXPONENTIATED, key=lambda name: max(tried[end][name])) for end in ENDS},
        **{end: {name: _rounded(found[end][places[name, rates[end][name]]]) for name in rates[end]} for end in ENDS},
        "seconds": round(time.perf_counter() - start, 1),
    }


def tune(
    train: Split, validation: Split, settings: Settings, search: Search, message: Message
) -> dict[str, dict[str, list[float]]]:
    """The accuracy on noisy validation data [end][loss][rate], the mean over seeds."""
    variants: list[LossVariant] = [loss for loss in COMPARED for _ in search.rates]
    rates = search.rates * len(COMPARED)
    say = _prefixed(message, "choosing rates")
    looks = fit(CONVOLUTIONAL, variants, rates, train, (validation,), search.seeds, settings, say)
    found = torch.stack([look[0] for look in looks]).view(len(looks), len(COMPARED), len(search.rates), -1)
    of_ends: dict[str, Tensor] = {"last": found[-1].mean(-1), "stopped": found.amax(0).mean(-1)}
    return {end: {loss.name: of_ends[end][i].tolist() for i, loss in enumerate(COMPARED)} for end in ENDS}


def best_rates(tried: dict[str, list[float]], rates: Sequence[float]) -> dict[str, float]:
    """The rate of the highest accuracy for each loss, the lowest of equals.

    >>> best_rates({"e 0.5": [0.6, 0.7, 0.7]}, (0.001, 0.003, 0.01))
    {'e 0.5': 0.003}
    """
    return {name: rates[max(range(len(rates)), key=found.__getitem__)] for name, found in tried.items()}


def read_all(folder: Path) -> list[dict[str, Any]]:
    """The results of every file in the folder, in the order of the experiment."""
    paths = [folder / f"{_name(pictures, share)}.json" for pictures in (*PICTURES, GENERATED) for share in SHARES]
    return [read_json(path) for path in paths if path.is_file()]


def _name(pictures: Pictures, share: float) -> str:
    return f"{pictures.name}-{100 * share:.0f}"


def _pieces(options: Options) -> dict[str, tuple[Pictures, float]]:
    """The data sets whose files --data holds, else generated ones, at every share."""
    if options.data is None and not options.quick:
        raise ConfigError("label-noise-images needs --data, a folder with mnist.npz, cifar10-gray.npz or both")
    found = [GENERATED]
    if options.data is not None:
        found = [pictures for pictures in PICTURES if _file(pictures, options.data).is_file()]
        if not found:
            raise ConfigError(f"--data must be a folder with mnist.npz, cifar10-gray.npz or both, got {options.data}")
    shares = QUICK_SHARES if options.quick else SHARES
    every = {_name(pictures, share): (pictures, share) for pictures in found for share in shares}
    return {name: every[name] for name in chosen(every, options.variants or ("*",))}


def _file(pictures: Pictures, folder: Path) -> Path:
    return folder / f"{pictures.name}.npz"


def _prefixed(message: Message, name: str) -> Message:
    return lambda text: message(f"{name}: {text}")


def _about(pictures: Pictures, share: float, options: Options, settings: Settings, search: Search) -> dict[str, Any]:
    """What was made, as JSON has it; the same is not made again."""
    kept = {key: value for key, value in asdict(settings).items() if key != "rate"}  # each loss has its own
    return {
        "dataset": pictures.name,
        "model": CONVOLUTIONAL.name,
        "share": share,
        "seeds": list(options.seeds),
        "sizes": list(QUICK_SIZES if options.quick else pictures.sizes),
        "settings": kept | {"rates": list(search.rates), "tuning_seeds": list(search.seeds)},
    }


def _draw(pictures: Pictures, options: Options, search: Search, device: str) -> tuple[Dataset, Dataset]:
    """The data of the seeds that choose the rates, and of those that are reported, on the device."""
    sizes = QUICK_SIZES if options.quick else pictures.sizes
    both = []
    for seeds in (search.seeds, options.seeds):
        if options.data is None:
            dataset = mixture(seeds, sizes, features=pictures.side**2)
        else:
            dataset = images(
                _file(pictures, options.data), seeds, sizes, name=pictures.name, side=pictures.side, whole=True
            )
        both.append(_placed(dataset, device))
    return both[0], both[1]


def _placed(dataset: Dataset, device: str) -> Dataset:
    """The data set on the device; on a GPU in bf16, the dtype of the hidden layers."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    parts = (Split(s.x.to(device, dtype), s.y.to(device)) for s in (dataset.train, dataset.validation, dataset.test))
    return Dataset(name=dataset.name, train=next(parts), validation=next(parts), test=next(parts))


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]

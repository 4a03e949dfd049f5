"""The command line, drawn: whatever is typed either works or ends in exactly one line and a non-zero exit.

Configurations, options and paths of every kind, most of them wrong; each command runs in this process, in a folder of
its own, with a model that takes milliseconds. LONGSHORT_EXAMPLES sets how many commands are drawn for each verb.
"""

import json
import os
import pickle
import resource
import shutil
import sys
import tempfile
import typing
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longshort import GPTConfig, report
from longshort.cli import VERBS, app
from longshort.data.prepare import prepare
from longshort.losses import LossSettings
from longshort.model.config import POSITIONS
from longshort.nn.block import ACTIVATIONS, PLACEMENTS
from longshort.nn.norms import NORMS, QK_NORMS
from longshort.ops.api import BACKENDS
from longshort.ops.smoothing import SIDES, STAGES
from longshort.train import TrainConfig, train
from longshort.train.sweeps import processes

EXAMPLES = int(os.environ.get("LONGSHORT_EXAMPLES", "25"))
MODEL = {"context": 8, "n_layers": 1, "width": 8, "n_heads": 2, "n_global": 1, "window": 2}
RL = {"task": "chains", "task_options": {"modulus": 3, "operations": 1, "constants": 1}, "prompts": 2, "group": 2}
RL |= {"eval_problems": 2}
RUN = {"steps": 1, "device": "cpu", "eval_batches": 1, "out": "new"}
ROOM = 4 * 2**30
"""Bytes that a command may take: what no machine has must not be asked for, either."""

NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "8",
    "-1",
    "0.5",
    "1e-3",
    "-0.0",
    "1e-300",
    "1e300",
    ".nan",
    ".inf",
    "-.inf",
    "nan",
    "1_0",
]
HUGE = [str(n) for n in (2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**18, 10**30, 10**400)]
WORDS = ["", "true", "null", "cpu", "cuda", "auto", "off", "skip", "rollback", "reference", "sdpa", "rotary", "alibi"]
WORDS += ["[", "{", "{}", "[]", "[1, 2]", "{a: 1}", "{1: 2, a: 3}", "&a [*a]", "!!int x", "!!python/name:os.system"]
WORDS += [
    "2020-99-99",
    "2020-01-01",
    "ü\N{SNOWMAN}",
    "a b",
    "'",
    "\\",
    "%s",
    "{0}",
    "\udcff",
    "\0",
    "x" * 300,
    "[" * 3000,
]
ENDLESS = ("run.steps", "run.eval_batches", "task.", "rl.")
"""Where a large number is right, and takes for ever."""
PLACES = ["", ".", "..", "empty", "empty.txt", "binary", "text.txt", "deep.json", "deep.yaml", "list.json", "tokens"]
PLACES += ["run", "run/checkpoints", "notes", "good.yaml", "twice.yaml", "evil.pt", "broken.safetensors", "gpt2"]
PLACES += ["broken.txt.gz", "tokens/train.tokens", "nowhere", "no/where", "text.txt/in", "/dev/null", "/proc/self/mem"]
PLACES += ["ü\N{SNOWMAN}", "\udcff", "x" * 300, "-", "~", "bytes", "hf:", "%s", "all splits"]
NEW = ["new", "new/deeper", "empty", "text.txt", "run", "notes", "tokens", "ü\N{SNOWMAN}", "x" * 300, "", "text.txt/in"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with one of everything, and nothing that is worth much."""
    root = tmp_path_factory.mktemp("drawn")
    here = root / "a" / "world"
    (here / "empty").mkdir(parents=True)
    (here / "notes").mkdir()
    (here / "notes" / "metrics.jsonl").write_text("precious\n")
    (here / "empty.txt").write_text("")
    (here / "binary").write_bytes(bytes(range(256)) * 4)
    (here / "text.txt").write_text("what each head can see, and what it cannot " * 40)
    (here / "broken.txt.gz").write_bytes(b"\x1f\x8b\x08 nothing of the kind")
    (here / "deep.json").write_text("[" * 100_000)
    (here / "deep.yaml").write_text("model: " + "{a: " * 3000)
    (here / "list.json").write_text("[1, 2]")
    (here / "twice.yaml").write_text("model: {preset: tiny}\nmodel: {preset: tiny}\n")
    (here / "evil.pt").write_bytes(pickle.dumps(print))
    (here / "broken.safetensors").write_bytes(b"\xff" * 64)
    (here / "gpt2").mkdir()
    (here / "gpt2" / "config.json").write_text("{}")
    (here / "gpt2" / "model.safetensors").write_bytes(b"\xff" * 64)
    prepare(here / "text.txt", here / "tokens", split=(0.6, 0.2, 0.2))
    good = {"model": MODEL, "data": {"path": "tokens", "batch_size": 2}, "run": RUN}
    (here / "good.yaml").write_text(yaml.safe_dump(good))
    (here / "rl.yaml").write_text(yaml.safe_dump({"model": MODEL, "data": {"batch_size": 2}, "rl": RL, "run": RUN}))
    values = good | {"data": {"path": str(here / "tokens"), "batch_size": 2}, "run": RUN | {"out": str(here / "run")}}
    train(TrainConfig.from_dict(values))
    return here


@contextmanager
def little_memory():
    """Within the limit, an allocation fails as on a machine that has no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


WRITES = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "shutil.rmtree": 0, "os.truncate": 0}
watched: dict[str, Path] = {}
escaped: list[str] = []


def watch(event: str, arguments: tuple) -> None:
    """Note what is written outside the folder of the command."""
    if not watched or (event != "open" and event not in WRITES):
        return
    if event == "open" and not (
        isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
        return
    path = arguments[0 if event == "open" else WRITES[event]]
    if isinstance(path, str | bytes | os.PathLike):
        place = os.path.realpath(os.fsdecode(path))
        if not place.startswith((str(watched["root"]), "/dev/", "/proc/")) and "__pycache__" not in place:
            escaped.append(f"{event} {place}")


sys.addaudithook(watch)


def in_process(configs, **options):
    """As `run_all`, without processes."""
    for config in configs:
        try:
            train(config)
        except ValueError as error:
            raise processes.RunFailed(f"the run {config.run.out} failed: {error}") from None
    return True


def try_command(world, monkeypatch, arguments):
    """Run it in a copy of the world; anything but success or one line is a failure."""
    with tempfile.TemporaryDirectory(dir=world.parents[1]) as folder, monkeypatch.context() as patch:
        here = Path(folder) / "a" / "here"
        here.parent.mkdir()
        shutil.copytree(world, here)
        patch.chdir(here)
        patch.setenv("LONGSHORT_CACHE", str(world.parents[1] / "cache"))
        patch.setattr(tempfile, "tempdir", folder)
        patch.setattr(processes, "run_all", in_process)
        if arguments[0] == "compare":  # a page takes seconds; `report` is drawn too
            patch.setattr(report, "write_report", lambda runs, out, **options: SimpleNamespace(html=out))
        escaped.clear()
        watched["root"] = Path(os.path.realpath(world.parents[1]))
        try:
            # A page takes the engine that draws, which reserves more than it will ever use.
            with nullcontext() if arguments[0] == "report" else little_memory():
                shown = CliRunner().invoke(app, arguments, prog_name="longshort")
        finally:
            watched.clear()
        precious = (here / "notes" / "metrics.jsonl").read_text()
    if shown.exception is not None and not isinstance(shown.exception, SystemExit):
        raise AssertionError(f"longshort {' '.join(map(repr, arguments))}") from shown.exception
    assert not escaped, (arguments, escaped)
    assert precious == "precious\n", arguments
    if shown.exit_code:
        lines = shown.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), (arguments, shown.stderr)
    return shown


CHOICES = {
    "model.positions": POSITIONS,
    "model.backend": BACKENDS,
    "model.qk_norm": QK_NORMS,
    "model.mlp": tuple(ACTIVATIONS),
    "model.norm": NORMS,
    "model.norm_placement": PLACEMENTS,
    "model.rope_scaling": ("{kind: linear, factor: 2}", "{kind: llama3, factor: 8}", "{kind: yarn, factor: 2}"),
    "model.smoothing_side": SIDES,
    "model.smoothing_stage": STAGES,
    "model.preset": ("tiny",),
    "model.plan": (
        "{windows: [1, 2]}",
        "{windows: [null, 4]}",
        "{windows: [1]}",
        "{windows: [2, 2], decays: [0, 0.1]}",
    ),
    "model.plans": ("[{windows: [1, 2]}]", "[]"),
    "schedule.kind": ("cosine", "wsd"),
    "run.precision": ("fp32", "bf16"),
    "stability.guard": ("warn", "skip", "rollback"),
    "stability.clip": ("tensor", "none"),
    "run.device": ("cpu", "cuda:0", "cpu:1", "cuda:x"),
    "optimizer.betas": ("[0, 0]", "[0.5, 0.999]", "[1, 1]", "[.nan, 0]"),
}


def plausible(key):
    """Values that the key may well take."""
    if key in CHOICES:
        return CHOICES[key]
    return ("1", "2", "0.5", "true", "null") if key != "run.compile" else ("false",)


def keys():
    sections = {**typing.get_type_hints(TrainConfig), "loss": LossSettings, "model": GPTConfig}
    names = [f"{section}.{field.name}" for section, kind in sections.items() for field in fields(kind)]
    return [*names, "model.preset", "model.z_loss", "task", "run.step", "modle.width", "run.", ".x", "", "run"]


@st.composite
def overrides(draw):
    key = draw(st.sampled_from(keys()))
    if key == "run.out":
        return f"{key}={draw(st.sampled_from(NEW))}"
    small = key.startswith(ENDLESS) or key in ("task", "run.compile")
    values = [*NUMBERS, *([] if small else HUGE), *(word for word in WORDS if not (small and word == "true"))]
    odd = st.one_of(st.sampled_from(values), st.sampled_from([*PLACES, "tiny", "recall"]))
    value = draw(st.one_of(st.sampled_from(plausible(key)), st.sampled_from(plausible(key)), odd))
    return draw(st.sampled_from([f"{key}={value}"] * 9 + [f"{key}", f"{key}==", f"{key}:{value}"]))


configs = st.sampled_from([*["good.yaml"] * 5 * len(PLACES), "tiny", "listops", *PLACES])
places, news = st.sampled_from(PLACES), st.sampled_from(NEW)
numbers = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(HUGE), st.sampled_from(WORDS))
texts = st.one_of(st.sampled_from(WORDS), st.text(max_size=5))


def options(**choices):
    """Some of the options, each with a value that is drawn for it; now and then one that is none."""

    @st.composite
    def some(draw):
        names = draw(st.lists(st.sampled_from([*choices, *choices, "nope"]), max_size=4))
        return [part for name in names for part in (f"--{name.replace('_', '-')}", draw(choices.get(name, numbers)))]

    return some()


SMALL = st.sampled_from(["0", "1", "2", "-1", "x", "", "1.5", "nan"])
DEVICES = st.sampled_from(["cpu", "auto", "cuda", "cuda:7", "gpu", "", "meta", "mps", "\udcff"])
COMMANDS = {
    "config": st.tuples(
        st.lists(st.one_of(st.sampled_from(keys()), st.sampled_from(["run", "model", "loss"]), texts), max_size=2),
        options(preset=st.one_of(st.sampled_from(["tiny", "recall"]), texts)),
        st.sampled_from([[], [], ["--preset"]]),
    ),
    "show": st.tuples(configs, st.lists(overrides(), max_size=5), options(context=numbers, out=news)),
    "plan": st.tuples(
        configs,
        st.lists(overrides(), max_size=3),
        options(
            gpus=numbers,
            gpu=st.sampled_from(["h200", "h100", "4090", "x", "", "\udcff"]),
            per_node=numbers,
            memory=numbers,
            link=numbers,
            network=numbers,
            fix=st.sampled_from(
                ["cp=2", "cp=0", "cp=", "reshard=false", "reduce=bf16", "accumulate=2", "x=1", "", "cp"]
            ),
            out=news,
        ),
    ),
    "train": st.tuples(configs, st.lists(overrides(), max_size=5)),
    "rl": st.tuples(st.one_of(st.just("rl.yaml"), configs), st.lists(overrides(), max_size=5)),
    "compare": st.tuples(
        configs,
        st.lists(overrides(), max_size=2),
        options(
            variants=st.sampled_from(["plain", "ls", "plain,ls", "x", "", ",", "\udcff"]),
            seeds=SMALL,
            jobs=numbers,
            slurm=st.sampled_from(["time=5", "time=-1", "nodes=2", "x", "", "=", "\udcff"]),
        ),
        st.tuples(st.just("--out"), news),
    ),
    "data": st.tuples(
        st.lists(places, min_size=1, max_size=2),
        options(
            tokenizer=places,
            vocab_size=numbers,
            validation=places,
            test=places,
            seed=numbers,
            part=st.sampled_from(["1/1", "1/3", "3/3", "0/3", "1/0", f"1/{10**18}", "x", "", "\udcff"]),
            join=SMALL,
        ),
        st.one_of(st.just([]), st.tuples(st.just("--split"), numbers, numbers, numbers), st.just(["--force"])),
        st.tuples(st.just("--workers"), st.sampled_from(["1", "1", "1", "0", "-1", "x", str(10**18)])),
        st.tuples(st.just("--out"), news),
    ),
    "evaluate": st.tuples(
        st.one_of(st.just("run"), places),
        options(
            data=places,
            split=st.sampled_from(["train", "test", "x", "", "\udcff"]),
            length=numbers,
            stride=numbers,
            limit=SMALL,
            samples=SMALL,
            bucket=numbers,
            device=DEVICES,
            out=news,
            harness=st.sampled_from(["x", ",", "\udcff"]),
            include=places,
        ),
    ),
    "generate": st.tuples(
        st.one_of(st.just("run"), places),
        options(
            prompt=texts,
            temperature=numbers,
            top_k=numbers,
            top_p=numbers,
            min_p=numbers,
            repetition_penalty=numbers,
            stop=texts,
            thinking=st.sampled_from(["soft", "x"]),
            thinking_end=texts,
            thinking_top_k=numbers,
            thinking_tau=numbers,
            seed=numbers,
            device=DEVICES,
        ),
        st.tuples(st.just("--tokens"), st.sampled_from(["1", "9", "0", "x", str(10**15), str(10**30)])),
    ),
    "report": st.tuples(st.lists(places, max_size=2), options(title=texts, out=news), st.just(["--no-png"])),
    "export": st.tuples(st.one_of(st.just("run"), places), news, options(format=texts)),
    "import": st.tuples(
        places,
        options(tokenizer=places, heads=numbers, global_heads=numbers, window=numbers, span=numbers, activation=texts),
        st.tuples(st.just("--out"), news),
    ),
    "inspect": st.tuples(
        st.one_of(st.just("gpt2"), places),
        options(text=places, length=numbers, rows=SMALL, budget=numbers, device=DEVICES, out=news),
        st.just(["--no-page"]),
    ),
    "convert": st.tuples(
        st.one_of(st.just("gpt2"), places),
        options(
            plan=places,
            budget=numbers,
            text=places,
            steps=SMALL,
            batch=SMALL,
            lr=numbers,
            length=numbers,
            rows=SMALL,
            device=DEVICES,
        ),
        st.tuples(st.just("--out"), news),
    ),
    "demo": st.tuples(
        options(device=DEVICES, seed=numbers), st.just(["--steps"]), st.sampled_from(["0", "-1", "x", ""])
    ),
    "check": st.lists(st.sampled_from(["--nope", "x", "-x", "\udcff"]), min_size=1, max_size=2),
}


def flat(parts):
    return [parts] if isinstance(parts, str) else [word for part in parts for word in flat(part)]


def test_every_verb_is_drawn():
    assert set(COMMANDS) == set(VERBS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_command_works_or_ends_in_one_line(verb, world, monkeypatch):
    few = {"demo": 8, "check": 8, "compare": 4, "export": 2, "inspect": 2, "convert": 2}.get(verb, 1)

    @settings(
        max_examples=max(1, EXAMPLES // few), deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(COMMANDS[verb])
    def holds(arguments):
        try_command(world, monkeypatch, [verb, *flat(arguments)])

    holds()


def test_a_drawn_command_can_work(world, monkeypatch):
    """Or the test above would hold of a program that refuses everything."""
    for arguments in (
        ["train", "good.yaml"],
        ["rl", "rl.yaml"],
        ["generate", "run", "--tokens", "2"],
        ["evaluate", "run"],
    ):
        assert try_command(world, monkeypatch, arguments).exit_code == 0


@settings(max_examples=4 * EXAMPLES, deadline=None, database=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    ),
    st.lists(
        st.tuples(st.sampled_from(keys()), st.one_of(st.integers(), st.floats(), st.text(max_size=6))), max_size=4
    ),
)
def test_a_configuration_of_any_shape_is_read_or_refused_in_one_line(shape, changes):
    values = {"model": dict(MODEL), "run": dict(RUN)}
    for key, value in changes:
        section, _, name = key.partition(".")
        values.setdefault(section, {})
        if isinstance(values[section], dict):
            values[section][name] = value
    for candidate in (shape, {"model": shape}, values, {**values, "data": shape}):
        try:
            config = TrainConfig.from_dict(candidate) if isinstance(candidate, dict) else None
        except ValueError as error:
            assert str(error) and "\n" not in str(error).replace(repr(shape), "")
        else:
            assert config is None or json.dumps(config.to_dict(), allow_nan=False)

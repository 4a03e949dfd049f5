"""Configurations: YAML, overrides, errors that name the key."""

import json
import re
import typing
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from longshort import GPTConfig, HeadPlan, reach
from longshort.data import TokenFile
from longshort.data.prepare import prepare
from longshort.losses import LossSettings
from longshort.train import ConfigError, TrainConfig
from longshort.train.settings.ranges import RANGES

TINY = {"model": {"preset": "tiny"}}


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_sections_come_from_yaml_and_the_rest_keeps_its_default(tmp_path):
    config = TrainConfig.load(write(tmp_path, "model: {preset: tiny, window: 5}\nrun: {steps: 7}\noptimizer:\n"))
    assert (config.model.window, config.model.width, config.run.steps) == (5, 64, 7)
    assert config.optimizer == TrainConfig.from_dict(TINY).optimizer


def test_overrides_win_over_the_file_and_later_ones_over_earlier_ones(tmp_path):
    path = write(tmp_path, "model: {preset: tiny}\nrun: {steps: 7}")
    config = TrainConfig.load(path, ["run.steps=8", "run.steps=9", "data.path=a=b", "optimizer.betas=[0.8, 0.9]"])
    assert (config.run.steps, config.data.path, config.optimizer.betas) == (9, "a=b", (0.8, 0.9))


@pytest.mark.parametrize("text", ["runs/a #1", "'runs/a #1'", " runs/a #1 "])
def test_text_on_the_command_line_has_no_comments(text):
    assert TrainConfig.from_dict(TINY).with_overrides([f"run.out={text}"]).run.out == "runs/a #1"
    assert TrainConfig.from_dict(TINY).with_overrides(["run.wandb=''"]).run.wandb == ""


def test_paths_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "mine.yaml"
    file.write_text("model: {preset: tiny}\nrun: {out: ~/runs/mine}\n")
    config = TrainConfig.load(file, ["data.path=~/books"])
    assert (config.run.out, config.data.path) == (f"{tmp_path}/runs/mine", f"{tmp_path}/books")


def test_an_override_may_open_a_section_that_the_file_leaves_out(tmp_path):
    config = TrainConfig.load(write(tmp_path, "model: {preset: tiny}"), ["stability.guard=skip"])
    assert config.stability.guard == "skip"


@pytest.mark.parametrize("text", ["3e-4", "3.0e-4", "0.0003", "3E-04"])
def test_a_rate_may_be_written_in_any_way_that_a_person_would(text, tmp_path):
    path = write(tmp_path, f"model: {{preset: tiny}}\noptimizer: {{lr: {text}}}")
    assert TrainConfig.load(path).optimizer.lr == 3e-4
    assert TrainConfig.from_dict(TINY).with_overrides([f"optimizer.lr={text}"]).optimizer.lr == 3e-4


@pytest.mark.parametrize("text", ["model: {preset: tiny}\nstability: {guard: off}", "model: {preset: tiny}"])
def test_off_is_a_word_and_not_false(tmp_path, text):
    assert TrainConfig.load(write(tmp_path, text), ["run.out=no"]).stability.guard == "off"
    assert TrainConfig.from_dict(TINY).with_overrides(["stability.guard=off", "run.compile=true"]).run.compile is True


def test_smoothing_and_chunks_are_set_as_any_other_field_of_the_model():
    overrides = ["model.smoothing=5", "model.smoothing_stage=before", "model.attention_chunk=64"]
    model = TrainConfig.from_dict(TINY).with_overrides(overrides).model
    assert (model.smoothing, model.smoothing_stage, model.attention_chunk) == (5, "before", 64)
    with pytest.raises(ConfigError, match=r"model\.smoothing must be None or an integer from 1 to .*, got 0"):
        TrainConfig.from_dict(TINY).with_overrides(["model.smoothing=0"])


@pytest.mark.parametrize("change", ["run.compile=false", "run.accumulate=2"])
def test_cuda_graphs_that_are_asked_for_need_a_compiled_step_of_one_batch(change):
    with pytest.raises(ConfigError, match=r"run\.cuda_graphs=true must come with"):
        TrainConfig.from_dict(TINY).with_overrides(["run.cuda_graphs=true", change])
    assert TrainConfig.from_dict(TINY).with_overrides(["run.cuda_graphs=auto", change]).run.cuda_graphs == "auto"


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("true", True), ("false", False)])
def test_what_is_compiled_may_be_left_open(text, value):
    assert TrainConfig.from_dict(TINY).run.compile == TrainConfig.from_dict(TINY).run.cuda_graphs == "auto"
    config = TrainConfig.from_dict(TINY).with_overrides([f"run.compile={text}"])
    assert config.run.compile is value or config.run.compile == value
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_null_unsets_what_may_be_unset():
    config = TrainConfig.from_dict(TINY | {"stability": {"qk_clip": 100}})
    assert config.stability.qk_clip == 100.0
    assert config.with_overrides(["stability.qk_clip=null"]).stability.qk_clip is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.lr=1", "no section 'optimiser'; did you mean optimizer? `longshort config` lists all of them"),
        ("optimizer.zzz=1", "optimizer has no key 'zzz'; `longshort config optimizer` lists its keys"),
        ("run.step=1", "run has no key 'step'; did you mean run.steps?"),
        ("run.dtype=bf16", "run has no key 'dtype'; did you mean run.precision?"),
        ("model.windows=1", "model has no key 'windows'; did you mean model.window?"),
        ("run.steps=many", "run.steps must be an integer, got 'many'"),
        ("run.steps=1.5", "run.steps must be an integer, got 1.5"),
        ("run.steps=true", "run.steps must be an integer, got True"),
        ("run.steps=", "run.steps must be an integer, got None"),
        ("run.compile=1", "run.compile must be true or false, got 1"),
        ("run.compile=fast", "run.compile must be auto, true or false, got 'fast'"),
        ("run.compile=null", "run.compile must be true or false, got None"),
        ("run.cuda_graphs=off", "run.cuda_graphs must be auto, true or false, got 'off'"),
        ("run.matmul=tf32", "run.matmul must be one of auto, high, highest, got 'tf32'"),
        ("optimizer.lr=fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.lr=true", "optimizer.lr must be a number, got True"),
        ("optimizer.lr=[1]", "optimizer.lr must be a number"),
        ("optimizer.betas=[0.9]", "optimizer.betas must be a list of 2 numbers, got [0.9]"),
        ("parallel.fsdp=2", "parallel has no key 'fsdp'; did you mean parallel.dp_shard?"),
        ("optimizer.betas=[0.9, x]", "optimizer.betas[1] must be a number, got 'x'"),
        ("run.out=3", "run.out must be text, got 3"),
        ("model.width=wide", "model.width must be an integer, got 'wide'"),
        ("model.width=65", "model.width must be a multiple of n_heads"),
        ("model.plan=3", "model.plan must be None or a HeadPlan, {windows: [...]} in a file, got 3"),
        ("model.preset=huge", "model.preset must be one of"),
        ("run.steps=0", "run.steps must be an integer from 1 to 2^63 - 1, got 0"),
        ("run.accumulate=0", "run.accumulate must be an integer from 1 to"),
        ("run.accumulate=3", "data.batch_size must be a multiple of run.accumulate=3, got 16"),
        ("data.length=513", "data.length must be at most model.context=512, which positions are learned for, got 513"),
        ("run.save_every=-1", "run.save_every must be an integer from 0 to"),
        ("schedule.kind=linear", "schedule.kind must be one of constant, cosine, wsd, got 'linear'"),
        ("run.precision=fp16", "run.precision must be one of"),
        ("run.device=tpu", "run.device must be one of"),
        ("stability.guard=maybe", "stability.guard must be one of off, warn, skip, rollback"),
        ("stability.clip=hard", "stability.clip must be one of"),
        ("optimizer.lr=0", "optimizer.lr must be a number from 1e-38 to"),
        (
            "stability.guard_warmup=201",
            "stability.guard_warmup must be at most stability.guard_window=200, or it never",
        ),
        ("run.steps", "an override must be section.key=value, got 'run.steps'"),
        ("steps=3", "an override must be section.key=value, got 'steps=3'; did you mean run.steps=3?"),
        ("zzz=3", "an override must be section.key=value, got 'zzz=3'"),
        ("run.=3", "an override must be section.key=value"),
        ("run.steps=[", "run.steps must be valid YAML"),
    ],
)
def test_a_wrong_override_is_an_error_that_names_it(override, message):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict(TINY).with_overrides([override])
    assert message in str(caught.value)


def numbers(kind, prefix):
    """The keys of a record that hold numbers."""
    hints = typing.get_type_hints(kind)
    plain = (int, float, int | None, float | None, tuple[float, float], tuple[float, float] | None)
    return [f"{prefix}.{field.name}" for field in fields(kind) if hints[field.name] in plain]


SECTIONS = {name: kind for name, kind in typing.get_type_hints(TrainConfig).items() if name != "model"}
NUMBERS = [key for name, kind in SECTIONS.items() for key in numbers(kind, name)]
MODEL_NUMBERS = [*numbers(GPTConfig, "model"), *numbers(LossSettings, "loss")]


def test_every_number_of_every_section_has_its_range():
    words = ["run.compile", "run.cuda_graphs", "run.checkpoint_activations"]
    assert sorted([*NUMBERS, *words]) == sorted(RANGES)


@pytest.mark.parametrize("key", [*NUMBERS, *MODEL_NUMBERS])
def test_no_number_may_be_infinite_negative_or_beyond_its_bits(key):
    config = TrainConfig.from_dict(TINY | ({"task": "recall"} if key.startswith("task.") else {}))
    for value in (".nan", ".inf", "-.inf", "-1e-9", -1, 10**39, 10**400, "9" * 5000):
        if (key.endswith(".seed") or key.startswith("parallel.dp_")) and value == -1:
            continue
        if key == "rl.noise_clamp" and value in ("-1e-9", -1):
            continue
        pair = key in ("optimizer.betas", "rl.noise_clamp")
        both = [f"[{value}, 0.9]", f"[0.9, {value}]"] if pair else [value]
        for text in both:
            with pytest.raises(ConfigError) as caught:
                config.with_overrides([f"{key}={text}"])
            assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "optimizer.lr=1e30",
        "optimizer.weight_decay=0",
        "optimizer.betas=[0, 0]",
        "schedule.floor=0",
        "schedule.decay=1",
        "run.seed=-9223372036854775808",
        "run.seed=9223372036854775807",
        "run.steps=1000000000000",
        "stability.qk_clip=1e-3",
        "model.window=2147483647",
    ],
)
def test_the_ends_of_the_ranges_are_taken(text):
    TrainConfig.from_dict(TINY).with_overrides([text])


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {preset: tiny}\nrun: {steps: 3}\nrun: {steps: 4}", "the key 'run' is given twice"),
        ("model: {preset: tiny}\nrun: {steps: 3, seed: 1, steps: 4}", "the key 'steps' is given twice"),
        ("model: " + "[" * 5000, "nested too deeply"),
        ("model: {preset: tiny}\nrun: {steps: !!int ''}", "not valid YAML"),
        ("model: {preset: tiny}\nrun: {steps: !!timestamp x}", "not valid YAML"),
        ("model: {preset: tiny}\nrun: {out: 2020-99-99}", "not valid YAML"),
        ("model: {preset: [1]}", "model.preset must be one of"),
        ("model: {preset: tiny, loss: {1: 2}}", "loss has no key 1"),
        ("model: {preset: tiny, plan: {1: 2, a: 3}}", "the keys windows, decays, slopes and firsts, got 1, a"),
        ('model: {preset: tiny}\nrun: {out: "a\\0b"}', "run.out must be text in UTF-8 without NUL"),
        (BOMB + "model: *i", "its aliases stand for more than"),
    ],
)
def test_an_odd_file_is_an_error_of_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        TrainConfig.load(write(tmp_path, text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_a_merge_may_be_overridden_and_is_no_key_given_twice(tmp_path):
    text = "model: {preset: tiny}\nrun: &run {steps: 3, seed: 1}\n"
    assert TrainConfig.load(write(tmp_path, text.replace("{steps", "{<<: {steps: 9}, steps"))).run.steps == 3


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match=f"{tmp_path / 'binary.yaml'}: not text in UTF-8"):
        TrainConfig.load(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {steps: 3}", "the section model is missing"),
        ("model: 5", "model must hold key: value pairs, got 5"),
        ("model: {preset: tiny}\nrun: [1]", "run must hold key: value pairs"),
        ("model: {preset: tiny}\nloss: 0", "loss must hold key: value pairs, got 0"),
        ("- 1", "must hold key: value pairs"),
        ("", "must hold key: value pairs, got None"),
        ("model: {preset: tiny", "not valid YAML"),
        ("model: {preset: tiny}\nmodle: {}", "no section 'modle'; did you mean model?"),
    ],
)
def test_a_wrong_file_is_an_error_of_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        TrainConfig.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"modern-1b: is a size of models, .* and model\.preset=modern-1b"):
        TrainConfig.load("modern-1b")
    with pytest.raises(ConfigError, match=f"{tmp_path / 'nowhere.yaml'}: no such file; give a YAML file, or "):
        TrainConfig.load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("model", [{"preset": "tiny"}, {"preset": "tiny", "plan": HeadPlan(windows=(None, 3, 3, 4))}])
def test_it_goes_to_json_or_yaml_and_back(model):
    config = TrainConfig.from_dict(
        {"model": model, "optimizer": {"lr": 3e-4, "betas": [0.8, 0.9]}, "stability": {"qk_clip": 50}}
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()


def test_rows_are_as_long_as_the_context_unless_told_otherwise():
    config = TrainConfig.from_dict(TINY)
    assert config.length == config.model.context
    assert config.with_overrides(["data.length=17"]).length == 17


SHAPE = {"context": 64, "n_layers": 1, "width": 16, "n_heads": 2, "n_global": 1, "window": 8}


def loaded(model, **sections):
    """A configuration, and what it said on the way."""
    said = []
    return TrainConfig.from_dict({"model": model, **sections}, said.append), said


@pytest.fixture
def bpe(tmp_path):
    """A folder of tokens with a vocabulary of 300."""
    (tmp_path / "text.txt").write_text("the long head sees far and the short heads see near " * 40)
    return str(prepare(tmp_path / "text.txt", tmp_path / "tokens", vocab_size=300, workers=1).folder)


def test_a_vocabulary_that_is_not_given_is_that_of_the_data(bpe):
    size = TokenFile.open(Path(bpe) / "train.tokens").vocab_size
    assert size > 257
    for model in (SHAPE, SHAPE | {"vocab_size": None}):
        config, said = loaded(model, data={"path": bpe})
        assert config.model.vocab_size == size
        assert said == [f"model.vocab_size: {size}, the vocabulary of {bpe}"]
    config, said = loaded(SHAPE)
    assert (config.model.vocab_size, said) == (257, ["model.vocab_size: 257, the vocabulary of bytes"])


def test_a_task_has_a_vocabulary_too_and_an_override_of_it_counts(tmp_path):
    said = []
    path = write(tmp_path, yaml.safe_dump({"model": SHAPE, "task": {"name": "recall", "length": 64, "symbols": 32}}))
    assert TrainConfig.load(path, ["task.symbols=48"], said.append).model.vocab_size == 48
    assert said == ["model.vocab_size: 48, the vocabulary of the task recall"]
    with pytest.raises(ConfigError, match=r"task\.name must be one of listops"):
        TrainConfig.load(path, ["task=recal"])


def test_a_preset_keeps_its_vocabulary_where_the_data_fits_and_grows_where_it_does_not(bpe):
    size = TokenFile.open(Path(bpe) / "train.tokens").vocab_size
    config, said = loaded({"preset": "paper-6m"}, data={"path": bpe})
    assert (config.model.vocab_size, said) == (10_000, [])
    config, said = loaded({"preset": "tiny"}, data={"path": bpe})
    assert (config.model, len(said)) == (GPTConfig.preset("tiny", vocab_size=size), 1)
    assert said[0].endswith("the preset has 257")
    config, said = loaded({"preset": "paper-6m", "vocab_size": None}, data={"path": bpe})
    assert (config.model.vocab_size, len(said)) == (size, 1)


def test_a_vocabulary_that_is_given_is_left_alone_and_its_data_unread():
    config, said = loaded(SHAPE | {"vocab_size": 99}, data={"path": "nowhere"})
    assert (config.model.vocab_size, said) == (99, [])


def test_a_preset_is_read_without_its_data_and_a_bare_shape_is_not():
    assert loaded({"preset": "tiny"}, data={"path": "nowhere"})[0].model.vocab_size == 257
    with pytest.raises(ConfigError, match=r"model.vocab_size is not given and cannot be read from the data: nowhere"):
        loaded(SHAPE, data={"path": "nowhere"})


def test_every_field_has_its_place_in_the_plain_form():
    config = TrainConfig.from_dict(TINY)
    for section, values in config.to_dict().items():
        expected = {field.name for field in fields(getattr(config, section))}
        assert set(values) == expected - ({"loss"} if section == "model" else set())


def test_the_section_loss_is_the_record_that_the_model_holds():
    config = TrainConfig.from_dict(TINY).with_overrides(["loss.exponent=0.5", "loss.z_loss=1e-4", "loss.chunk=9"])
    assert config.loss is config.model.loss
    assert config.loss == LossSettings(exponent=0.5, z_loss=1e-4, chunk=9)
    assert TrainConfig.from_dict({"model": config.model.to_dict()}).loss == config.loss
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_older_spellings_of_the_loss_are_taken_from_files_and_the_command_line(tmp_path):
    text = "model: {preset: tiny, z_loss: 1e-4, loss_chunk: 9}\nloss: {exponent: 0.5}"
    config = TrainConfig.load(write(tmp_path, text))
    assert config.loss == LossSettings(exponent=0.5, z_loss=1e-4, chunk=9)
    assert config.with_overrides(["model.z_loss=0"]).loss == LossSettings(exponent=0.5, chunk=9)
    assert TrainConfig.load(tmp_path / "config.yaml", ["loss.z_loss=0.0", "model.loss_chunk=null"]).loss.z_loss == 0.0
    old = TrainConfig.from_dict(TINY | {"loss": {"z_loss": 1e-3}}).to_dict()
    old["model"] |= {"z_loss": 0.0, "loss_chunk": None}  # as files of before have them, whatever the section says
    assert TrainConfig.from_dict(old).loss.z_loss == 1e-3


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"z_loss": 1e-4}, "model.z_loss=0.0001 and loss.z_loss=0.001 set the same thing; give loss.z_loss alone"),
        ({"loss": {"z_loss": 1e-4}}, "model.loss.z_loss=0.0001 and loss.z_loss=0.001 set the same thing"),
        ({"loss": 0.5}, "model.loss must hold key: value pairs, got 0.5"),
    ],
)
def test_two_spellings_that_differ_are_an_error(model, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict({"model": {"preset": "tiny"} | model, "loss": {"z_loss": 1e-3}})


def test_configurations_can_be_gathered_in_a_set():
    options = [{"modulus": 5}, {"modulus": 5}, {"modulus": 7}]
    assert len({TrainConfig.from_dict(TINY | {"rl": {"task": "chains", "task_options": one}}) for one in options}) == 2


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("ladder", {"pattern": "ladder"}),
        ("{like: gemma-3, window: 64}", {"like": "gemma-3", "window": 64}),
        (
            "{pattern: interleave, layers: LG, window: 8, dual_rope: [1e4, 1e6]}",
            {"pattern": "interleave", "layers": "LG", "window": 8, "dual_rope": (10_000.0, 1_000_000.0)},
        ),
    ],
)
def test_reach_can_be_written_as_a_pattern(written, expected):
    config = TrainConfig.load("tiny", [f"model.reach={written}", "model.positions=rotary"])
    model = config.model
    assert model.reach == reach.resolve(expected, n_layers=model.n_layers, n_heads=model.n_heads)
    assert TrainConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("override", "windows"),
    [
        (["model.reach=full"], (None, None)),
        (["model.plan={windows: [4, null]}"], (4, None)),
        (["model.n_global=0"], (2, 2)),
        (["model.reach=full", "model.reach=null"], (None, 2)),
    ],
)
def test_an_override_of_the_reach_takes_the_place_of_another_way(override, windows, tmp_path):
    sizes = {"vocab_size": 17, "context": 8, "n_layers": 1, "width": 8, "n_heads": 2}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"model": {**sizes, "n_global": 1, "window": 2}}))
    config = TrainConfig.load(tmp_path / "own.yaml")
    for found in (TrainConfig.load(tmp_path / "own.yaml", override), config.with_overrides(override)):
        assert found.model.layer_plans[0].windows == windows


def test_overrides_of_the_reach_in_two_ways_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match="by n_global and window, plan, plans, or reach, got n_global and reach"):
        TrainConfig.load("paper-6m", ["model.n_global=1", "model.reach=ladder"])


def test_wrong_pattern_is_one_line_that_names_the_key():
    with pytest.raises(ConfigError) as caught:
        TrainConfig.load("tiny", ["model.reach={pattern: interleave, layers: LLXG, window: 8}"])
    assert str(caught.value).startswith("model.reach interleave: layers must be letters L (local) and G (global)")
    with pytest.raises(ConfigError, match=r"^model.reach ladder: largest must be at most context=256, got 512"):
        TrainConfig.load("tiny", ["model.reach=ladder", "model.context=256"])


@pytest.mark.parametrize(
    ("override", "read"),
    [
        (
            "model.plan={windows: [8, 8, 8, 8], decays: [0, 1e-3, 1E-2, 0.1]}",
            lambda model: model.plan.decays[1] == 1e-3,
        ),
        ("model.plan={windows: [8, 8, 8, 8], slopes: [1e-3, 1e-3, 0, 0]}", lambda model: model.plan.slopes[0] == 1e-3),
        ("model.reach={pattern: full, dual_rope: [1e4, 1e6]}", lambda model: model.layer_reaches[0].global_base == 1e6),
        ("model.rope_scaling={kind: linear, factor: 4e0}", lambda model: model.rope_scaling.factor == 4.0),
    ],
)
def test_numbers_with_an_exponent_are_numbers_wherever_they_stand(override, read):
    rotary = [] if "rop" not in override else ["model.positions=rotary"]
    assert read(TrainConfig.load("tiny", [*rotary, override]).model)

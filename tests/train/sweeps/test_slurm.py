"""Runs in jobs of Slurm, with a stand-in for submitit; tests/eco has the real one."""

import os
import pickle
import signal
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.train import ConfigError
from longshort.train.sweeps import processes as runner
from longshort.train.sweeps import slurm
from longshort.train.sweeps.processes import RunFailed, run_all
from longshort.train.sweeps.slurm import RunJob, Slurm, parse_settings

SLEEPER = """
import signal, sys, time, pathlib
folder = pathlib.Path(sys.argv[1]).parent
def save(number, frame):
    (folder / "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
(folder / "started").touch()
time.sleep(60)
"""


class Job:
    """A submitted job: its function, pickled and read back as on a node, in a thread."""

    job_id, state = "1234", "OUT_OF_MEMORY"
    paths = SimpleNamespace(stderr="slurm/1234_0_log.err")

    def __init__(self, function, parameters):
        self.function, self.parameters = pickle.loads(pickle.dumps(function)), dict(parameters)
        self.outcome = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        self.outcome = self.function()

    def done(self, force_check=False):
        return not self.thread.is_alive()

    def result(self):
        if self.outcome is None:
            raise RuntimeError("the job never completed\nand more lines")
        return self.outcome

    def cancel(self, check=True):
        self.function._process.terminate()


class Executor:
    jobs: ClassVar[list[Job]] = []

    def __init__(self, folder, max_num_timeout):
        self.parameters = {}

    def update_parameters(self, **changes):
        self.parameters |= changes

    def submit(self, function):
        self.jobs.append(Job(function, self.parameters))
        return self.jobs[-1]


@pytest.fixture
def submitit(monkeypatch):
    module = ModuleType("submitit")
    module.SlurmExecutor = Executor
    monkeypatch.setattr(Executor, "jobs", [])
    monkeypatch.setitem(sys.modules, "submitit", module)
    return module


def starter(tmp_path, monkeypatch, code, *settings):
    """Starts jobs that run `code` instead of training."""
    (tmp_path / "stand_in.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return Slurm(tmp_path / "slurm", parse_settings(["time=5", *settings]), module="stand_in")


@pytest.fixture
def here(config, tmp_path):
    return config.with_overrides([f"run.out={tmp_path / 'run'}"])


def test_settings_reach_sbatch_and_the_job_is_named_after_its_run(submitit, here, tmp_path, monkeypatch):
    start = starter(tmp_path, monkeypatch, "", "partition=gpu", "gpus_per_node=1", "exclusive")
    run_all([here], jobs=1, poll_seconds=0.05, start=start)
    (job,) = Executor.jobs
    assert job.parameters["time"] == 5 and job.parameters["job_name"] == "run"
    assert job.parameters["additional_parameters"] == {"partition": "gpu", "gpus-per-node": "1", "exclusive": True}
    assert any(str(tmp_path) in line and "PYTHONPATH" in line for line in job.parameters["setup"])


def test_a_run_has_the_threads_that_its_job_has(submitit, here, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    start = starter(tmp_path, monkeypatch, "import os\nprint('threads', os.environ['OMP_NUM_THREADS'])")
    run_all([here], jobs=1, poll_seconds=0.05, start=start)
    assert (tmp_path / "run" / "output.txt").read_text() == "threads 3\n"


def test_a_failing_run_is_reported_with_its_last_words(submitit, here, tmp_path, monkeypatch):
    start = starter(tmp_path, monkeypatch, "raise SystemExit('no such data')")
    with pytest.raises(RunFailed, match=r"run failed: no such data$"):
        run_all([here], jobs=1, poll_seconds=0.05, start=start)


def test_a_job_that_slurm_ended_is_reported_with_its_state(submitit, here, tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "run", lambda self: None)
    start = starter(tmp_path, monkeypatch, "")
    with pytest.raises(RunFailed, match=r"run failed: its job 1234 ended without a result, OUT_OF_MEMORY: slurm/1234"):
        run_all([here], jobs=1, poll_seconds=0.05, start=start)


def test_a_submission_that_sbatch_refuses_is_one_line(submitit, here, tmp_path, monkeypatch):
    def refuse(self, function):
        raise RuntimeError("sbatch: error: invalid partition specified: gpu\nsbatch: error: Batch job failed")

    monkeypatch.setattr(Executor, "submit", refuse)
    with pytest.raises(RunFailed, match=r"submitted to Slurm: sbatch: error: invalid partition .* job failed$"):
        run_all([here], jobs=1, start=starter(tmp_path, monkeypatch, ""))


def test_a_terminated_call_cancels_its_jobs_which_save(submitit, here, tmp_path, monkeypatch):
    def watch(readers):
        if (tmp_path / "run" / "started").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    start = starter(tmp_path, monkeypatch, SLEEPER)
    assert not run_all([here], jobs=1, poll_seconds=0.05, start=start, watch=watch)
    assert (tmp_path / "run" / "saved").exists() and Executor.jobs[0].done()


def test_before_its_time_is_up_a_run_saves_and_is_queued_again(submitit, here, tmp_path, monkeypatch):
    submitit.helpers = ModuleType("submitit.helpers")
    submitit.helpers.DelayedSubmission = lambda function: ("queued again", function)
    monkeypatch.setitem(sys.modules, "submitit.helpers", submitit.helpers)
    starter(tmp_path, monkeypatch, SLEEPER)
    function = RunJob(runner.write_config(here), "stand_in")
    thread = threading.Thread(target=function)
    thread.start()
    until(tmp_path / "run" / "started")
    os.kill(function._process.pid, signal.SIGUSR2)  # reaches every process of the job
    time.sleep(0.2)
    assert function._process.poll() is None
    (words, again) = function.checkpoint()
    thread.join(20)
    assert (tmp_path / "run" / "saved").exists() and function._process.returncode == 0
    assert words == "queued again" and pickle.loads(pickle.dumps(again)).out == tmp_path / "run"


def until(path):
    latest = time.monotonic() + 20
    while not path.exists() and time.monotonic() < latest:
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["partition=gpu"], "--slurm time must be a whole number of minutes, such as time=240, got nothing"),
        (["time=1:00:00"], "--slurm time must be a whole number of minutes, such as time=240, got '1:00:00'"),
        (["time=0"], "got '0'"),
        (["time=5", "nodes=2"], "--slurm nodes must not be set: each run is one task on one node"),
        (["time=5", "=gpu"], "--slurm must be KEY=VALUE, an option of sbatch such as partition=gpu, got '=gpu'"),
        (["time=5", "partition="], "got 'partition='"),
    ],
)
def test_wrong_settings_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_settings(settings)


def test_without_submitit_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"--slurm needs the package submitit: pip install 'longshort\[slurm\]'"):
        Slurm(tmp_path, {"time": "5"})


def test_without_slurm_the_error_says_where_to_call_it(submitit, tmp_path):
    def executor(**options):
        raise RuntimeError('Could not detect "srun", are you indeed on a slurm cluster?')

    submitit.SlurmExecutor = executor
    with pytest.raises(ConfigError, match="srun was not found; call it on a login node, or leave --slurm out"):
        Slurm(tmp_path, {"time": "5"})


def test_compare_queues_all_runs_on_slurm(submitit, tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    calls = []
    monkeypatch.setattr(runner, "run_all", lambda configs, **options: calls.append((len(configs), options)))
    command = ["compare", "tiny", f"data.path={corpus}", "--seeds", "3", "--slurm", "time=60"]
    shown = CliRunner().invoke(app, command)
    assert "6 runs of 500 steps each, 6 at a time" in shown.output
    CliRunner().invoke(app, [*command, "--jobs", "4"])
    assert [(count, options["jobs"], type(options["start"])) for count, options in calls] == [
        (6, 6, slurm.Slurm),
        (6, 4, slurm.Slurm),
    ]


def test_compare_refuses_wrong_settings_in_one_line(submitit, tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["compare", "tiny", f"data.path={corpus}", "--slurm", "partition=gpu"])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: --slurm time must be a whole number of minutes")

"""What each of several processes does in the tests of sharded runs; see `tests.ranks`."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from longshort.data.stream import TokenStream
from longshort.parallel.mesh import Sizes, build_mesh
from longshort.parallel.sharding import shard
from longshort.train import TrainConfig
from longshort.train.checkpoints import checkpoint, sharded
from longshort.train.checkpoints.checkpoint import finish, state_of
from longshort.train.machine.distributed import World
from longshort.train.models import build_model
from longshort.train.progress import Silent
from longshort.train.trainer import Trainer

SPOILED = 8
"""Number of the batch whose targets are the wrong ones, in runs whose name says so."""


def spoil(wanted):
    """Give one batch targets that no model expects, or stop doing so."""

    def batch(self, step, **ranks):
        found = _batch(self, step, **ranks)
        return found._replace(targets=250 - found.targets % 100) if step == SPOILED else found

    TokenStream.batch = batch if wanted else _batch


def world_of(group):
    return World(group.rank(), group.size(), torch.device("cpu"))


def train(group, values, cache=None):
    """Train the configuration; `cache` is the folder of generated data."""
    config = TrainConfig.from_dict(values)
    if cache is not None:
        os.environ["LONGSHORT_CACHE"] = str(cache)
    spoil("spoiled" in config.run.out)
    Trainer(config, world_of(group), Silent()).run()


def all_reduced(group, values):
    """Train; returns the numbers in all tensors of blocks and the rest of the model that were summed over copies."""
    whole, counted = dist.all_reduce, []

    def counting(tensor, *args, **options):
        counted.append(tensor.numel())
        return whole(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counting)
        train(group, values)
    return sum(count for count in counted if count > 100)  # less are losses and norms


def train_and_die(group, values, step):
    """Train; rank 0 kills itself where the checkpoint of a step, whose shards are written, is about to get its name."""

    def finish_or_die(draft, number, document):
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return finish(draft, number, document)

    sharded.finish = finish_or_die
    train(group, values)


def train_and_fail(group, values, step):
    """Train; the checkpoint of a step cannot be written. Returns the error."""
    with replaced_finish(unwritable(step)), pytest.raises(OSError) as caught:
        train(group, values)
    return str(caught.value)


def train_with_held_writes(group, values):
    """Train; see `Held`. Returns what happened, on rank 0."""
    held = Held(TrainConfig.from_dict(values).run.steps)
    with replaced_finish(held.finish):
        Trainer(TrainConfig.from_dict(values), world_of(group), held).run()
    return held.events


class Held(Silent):
    """Keeps each checkpoint but the last from being completed until the step after it has been taken."""

    def __init__(self, last):
        self.last, self.events = last, []

    def record(self, record, *, steps):
        if record["kind"] == "train":
            self.events.append(("step", record["step"]))

    def finish(self, draft, step, document):
        self.events.append(("begins", step))
        end = time.monotonic() + 60
        while step < self.last and ("step", step + 1) not in self.events:
            if time.monotonic() > end:
                raise TimeoutError("training waits for the checkpoint")
            time.sleep(0.01)
        self.events.append(("ends", step))
        return finish(draft, step, document)


def unwritable(step):
    """A `finish` that fails at the checkpoint of a step."""

    def failing(draft, number, document):
        if number == step:
            raise OSError("the disk is full")
        return finish(draft, number, document)

    return failing


@contextmanager
def replaced_finish(function):
    """Let checkpoints of both formats be completed by the function."""
    for module in (checkpoint, sharded):
        module.finish = function
    try:
        yield
    finally:
        for module in (checkpoint, sharded):
            module.finish = finish


def read_and_write(group, source, target, mesh):
    """Read a checkpoint into a model on the mesh (dp_replicate, dp_shard), and write it again."""
    config = TrainConfig.from_dict(state_of(Path(source))["config"])
    model = build_model(config)
    shard(model, build_mesh(Sizes(*mesh, 1), "cpu"), parameters=None, reduce=torch.float32, reshard=True)
    found = sharded.read_sharded(Path(source), dict(model.named_parameters()))
    model.load_state_dict(found.model)
    tensors = {"model": model.state_dict(), "trainer": found.trainer}
    state = {"config": config.to_dict()}
    sharded.save_sharded(Path(target), step=found.step, state=state, group=group, **tensors)


_batch = TokenStream.batch

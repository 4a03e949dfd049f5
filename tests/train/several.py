"""Does each task of a JSON file in turn, in one of several processes; not a test itself.

{"train": configuration} trains; {"read": checkpoint, "write": folder, "mesh": [dp_replicate, dp_shard]} reads the
checkpoint into a model on that mesh and writes it again.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from longshort.data.stream import TokenStream
from longshort.parallel.mesh import Sizes, build_mesh
from longshort.parallel.sharding import shard
from longshort.train import TrainConfig, sharded_checkpoint
from longshort.train.checkpoint import state_of
from longshort.train.distributed import joined
from longshort.train.models import build_model
from longshort.train.progress import Silent
from longshort.train.trainer import Trainer

SPOILED = 13
"""Number of the batch whose targets are the wrong ones, in runs whose name says so."""
KILLED = 6
"""The step in whose checkpoint rank 0 is killed, after all shards are written, in runs whose name says so."""


def spoil(wanted):
    """Give one batch targets that no model expects, or stop doing so."""

    def batch(self, step, **ranks):
        found = _batch(self, step, **ranks)
        return found._replace(targets=250 - found.targets % 100) if step == SPOILED else found

    TokenStream.batch = batch if wanted else _batch


def kill_at(step):
    """SIGKILL where the checkpoint of a step is about to get its name."""
    finish = sharded_checkpoint.finish

    def finish_or_die(draft, number, document):
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return finish(draft, number, document)

    sharded_checkpoint.finish = finish_or_die


def train(values, world):
    config = TrainConfig.from_dict(values)
    spoil("spoiled" in config.run.out)
    if "killed" in config.run.out:
        kill_at(KILLED)
    Trainer(config, world, Silent()).run()


def read_and_write(source, target, mesh, world):
    config = TrainConfig.from_dict(state_of(Path(source))["config"])
    model = build_model(config)
    shard(model, build_mesh(Sizes(*mesh, 1), "cpu"), parameters=None, reduce=torch.float32, reshard=True)
    found = sharded_checkpoint.read_sharded(Path(source), dict(model.named_parameters()))
    model.load_state_dict(found.model)
    tensors = {"model": model.state_dict(), "trainer": found.trainer}
    state = {"config": config.to_dict()}
    sharded_checkpoint.save_sharded(Path(target), step=found.step, state=state, world=world, **tensors)


_batch = TokenStream.batch

if __name__ == "__main__":
    with joined("cpu") as world:
        for task in json.loads(Path(sys.argv[1]).read_text()):
            if "train" in task:
                train(task["train"], world)
            else:
                read_and_write(task["read"], task["write"], task["mesh"], world)

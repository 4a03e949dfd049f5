"""Three steps under `accelerate`, for test_accelerate.py: FSDP2 if started as several processes, else alone.

Arguments: a folder to load the model from, and one to save it to.
"""

import sys

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

TOKENS = torch.randint(257, (4, 20), generator=torch.Generator().manual_seed(1))


def main(source: str, out: str) -> None:
    torch.set_num_threads(1)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if accelerator.num_processes > 1:  # accelerate shards on GPUs alone, and would make copies here
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    model = AutoModelForCausalLM.from_pretrained(source)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model.train(), optimizer)
    sharded = all(isinstance(weight, DTensor) for weight in model.parameters())
    mine = TOKENS[accelerator.process_index :: accelerator.num_processes]
    for _ in range(3):
        loss = model(mine, labels=mine).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.gather(loss.detach()).mean().item()
        if accelerator.is_main_process:
            print("loss", mean)
    weights = {
        name: weight.full_tensor() if isinstance(weight, DTensor) else weight
        for name, weight in model.state_dict().items()
    }
    shell = accelerator.unwrap_model(model)
    shell.save_pretrained(out, is_main_process=accelerator.is_main_process, state_dict=weights)
    if accelerator.is_main_process:
        print("processes", accelerator.num_processes, "sharded", sharded)


if __name__ == "__main__":
    main(*sys.argv[1:])

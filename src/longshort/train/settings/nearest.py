"""What a user may have meant by an unknown key: another library's name for it, or a misspelling."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from longshort.spelling import closest
from longshort.train.settings.values import ConfigError

Names = Mapping[str, Collection[str]]
"""The keys of each section."""

_FOREIGN_SECTIONS = {
    "run": "train training trainer",
    "optimizer": "optim opt adam adamw",
    "schedule": "scheduler lr_scheduler lr_schedule",
    "data": "dataset",
    "model": "gpt network net attention",
    "telemetry": "logging log",
}
_FOREIGN_KEYS = {
    "model.context": "block_size seq_len seq_length max_seq_len sequence_length max_length context_length n_ctx"
    " n_positions max_position_embeddings",
    "model.n_layers": "n_layer num_layers num_hidden_layers layers depth",
    "model.width": "n_embd n_embed embed_dim d_model hidden_size hidden_dim dim",
    "model.n_heads": "n_head num_heads num_attention_heads heads",
    "model.n_kv_heads": "n_kv_head num_kv_heads num_key_value_heads",
    "model.ff_multiplier": "mlp_ratio",
    "model.ff_width": "d_ff ffn_dim intermediate_size",
    "model.mlp": "hidden_act act_fn activation_function mlp_type",
    "model.norm": "norm_type norm_class",
    "model.n_global": "global_heads num_global_heads",
    "model.window": "local_window sliding_window window_size",
    "model.rope_theta": "rope_base",
    "model.qk_norm": "qk_layernorm qk_layer_norm",
    "model.softcap": "logit_cap logit_softcapping attn_logit_softcapping",
    "model.tie_embeddings": "tie_word_embeddings tied_embeddings weight_tying",
    "model.init_std": "initializer_range",
    "model.norm_eps": "layer_norm_eps rms_norm_eps",
    "model.backend": "attn_implementation attention_backend",
    "loss.z_loss": "zloss z_loss_weight",
    "data.path": "dataset data_dir data_path dataset_path",
    "data.batch_size": "batch bs train_batch_size per_device_train_batch_size",
    "optimizer.kind": "optim optimizer_name optimizer_type",
    "optimizer.lr": "learning_rate max_lr base_lr peak_lr",
    "optimizer.weight_decay": "wd",
    "optimizer.betas": "beta beta1 beta2 adam_beta1 adam_beta2",
    "optimizer.eps": "epsilon adam_epsilon",
    "optimizer.muon_lr": "matrix_lr",
    "optimizer.muon_momentum": "momentum",
    "schedule.kind": "scheduler lr_scheduler lr_scheduler_type lr_schedule decay_lr",
    "schedule.warmup": "warmup_steps warmup_iters num_warmup_steps",
    "schedule.floor": "min_lr lr_min final_lr",
    "run.steps": "iters max_iters max_steps num_steps train_steps total_steps num_iterations epochs",
    "run.precision": "dtype torch_dtype amp autocast mixed_precision bf16 fp16 half",
    "run.out": "output outdir out_dir output_dir save_dir",
    "run.seed": "random_seed",
    "run.accumulate": "grad_accum gradient_accumulation gradient_accumulation_steps",
    "run.compile": "torch_compile",
    "run.checkpoint_activations": "gradient_checkpointing activation_checkpointing remat",
    "run.eval_every": "eval_interval eval_steps val_every",
    "run.eval_batches": "eval_iters",
    "run.save_every": "save_interval save_steps checkpoint_every",
    "run.keep": "save_total_limit",
    "run.wandb": "wandb_project",
    "parallel.dp_replicate": "dp ddp ddp_size data_parallel_size data_parallel_replicate_degree",
    "parallel.dp_shard": "fsdp fsdp_size zero zero_stage data_parallel_shard_degree",
    "parallel.cp": "cp_size context_parallel context_parallel_size context_parallel_degree sequence_parallel",
    "parallel.reshard": "reshard_after_forward",
    "stability.clip_norm": "grad_clip max_grad_norm gradient_clip_val clip_grad_norm",
}
FOREIGN = {alias: key for key, aliases in _FOREIGN_KEYS.items() for alias in aliases.split()}
"""Each key here with its names in other libraries (nanoGPT, transformers, Lightning, ...)."""


def check_sections(given: Mapping[str, Any], names: Names) -> None:
    """Raise on the first section that does not exist."""
    for section in given:
        if section not in names:
            foreign = (ours for ours, theirs in _FOREIGN_SECTIONS.items() if section in theirs.split())
            near = next(foreign, None) or closest(section, names, 0.6)
            raise ConfigError(f"no section {section!r}; {_question(near)}`longshort config` lists all of them")


def check_keys(section: str, given: Mapping[str, Any], names: Names) -> None:
    """Raise on the first key that the section does not have."""
    for key in given:
        if key not in names[section]:
            near = _question(nearest(str(key), names, section))
            raise ConfigError(f"{section} has no key {key!r}; {near}`longshort config {section}` lists its keys")


def nearest(key: str, names: Names, section: str | None = None) -> str | None:
    """The `section.key` that was most likely meant; None if nothing is close.

    >>> nearest("dtype", {"run": ["precision", "steps"]}, "run")
    'run.precision'
    >>> nearest("weigth_decay", {"run": ["steps"], "optimizer": ["weight_decay"]}, "run")
    'optimizer.weight_decay'
    """
    key = key[:100]
    everywhere = {name: f"{where}.{name}" for where in reversed(list(names)) for name in names[where]}
    if (found := everywhere.get(key) or FOREIGN.get(key.lower())) is not None:
        return found
    if own := closest(key, names.get(section or "", ())):
        return f"{section}.{own}"
    near = closest(key, everywhere, 0.8)
    return everywhere[near] if near else None


def _question(near: str | None) -> str:
    return f"did you mean {near}? " if near else ""

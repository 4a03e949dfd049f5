"""A GPT in the manner of nanoGPT with local heads before global ones, spelt out: what imported models are held to."""

import math

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"vocab_size": 61, "block_size": 48, "n_layer": 2, "n_head": 4, "n_embd": 32, "bias": False}


class Attention(nn.Module):
    """Fused projections, or separate ones of local and global heads; `visible` keys a local head sees."""

    def __init__(self, width, n_local, n_global, visible, *, separate, bias):
        super().__init__()
        self.n_local, self.n_global, self.visible, self.separate = n_local, n_global, visible, separate
        self.head_dim = width // (n_local + n_global)
        if separate:
            if n_local:
                self.c_local_attn = nn.Linear(width, 3 * n_local * self.head_dim, bias=bias)
            if n_global:
                self.c_global_attn = nn.Linear(width, 3 * n_global * self.head_dim, bias=bias)
        else:
            self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        if self.separate:
            outs = []
            if self.n_local:
                outs.append(self.attend(*self.c_local_attn(x).chunk(3, -1), [True] * self.n_local))
            if self.n_global:
                outs.append(self.attend(*self.c_global_attn(x).chunk(3, -1), [False] * self.n_global))
            return self.c_proj(torch.cat(outs, -1))
        local = [head < self.n_local for head in range(self.n_local + self.n_global)]
        return self.c_proj(self.attend(*self.c_attn(x).chunk(3, -1), local))

    def attend(self, q, k, v, local):
        outs = []
        for head, is_local in enumerate(local):
            mine = slice(head * self.head_dim, (head + 1) * self.head_dim)
            logits = q[..., mine] @ k[..., mine].mT / math.sqrt(self.head_dim)
            place = torch.arange(q.shape[1])
            ago = place[:, None] - place
            seen = (ago >= 0) & (ago < self.visible) if is_local else ago >= 0
            outs.append(logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v[..., mine])
        return torch.cat(outs, -1)


class Nano(nn.Module):
    """Names of the modules are nanoGPT's."""

    def __init__(self, *, n_local, visible, separate, bias=False, tied=False):
        super().__init__()
        width, n_head = SIZES["n_embd"], SIZES["n_head"]
        blocks = []
        for _ in range(SIZES["n_layer"]):
            attention = Attention(width, n_local, n_head - n_local, visible, separate=separate, bias=bias)
            mlp = nn.ModuleDict(
                {"c_fc": nn.Linear(width, 4 * width, bias=bias), "c_proj": nn.Linear(4 * width, width, bias=bias)}
            )
            norms = {name: nn.LayerNorm(width, bias=bias) for name in ("ln_1", "ln_2")}
            blocks.append(nn.ModuleDict({**norms, "attn": attention, "mlp": mlp}))
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(SIZES["vocab_size"], width),
                "wpe": nn.Embedding(SIZES["block_size"], width),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(width, bias=bias),
            }
        )
        self.lm_head = nn.Linear(width, SIZES["vocab_size"], bias=False)
        for parameter in self.parameters():  # gains and biases too, so that each must be in its place
            nn.init.normal_(parameter, std=0.3)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    @torch.no_grad()
    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = x + block["attn"](block["ln_1"](x))
            x = x + block["mlp"]["c_proj"](F.gelu(block["mlp"]["c_fc"](block["ln_2"](x))))
        return self.lm_head(self.transformer.ln_f(x))


def save(path, model, *, prefix="", args=None, config=None, **rest):
    """A checkpoint as nanoGPT's training script writes it."""
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    content = {"model": state, "optimizer": {"state": {}}, "iter_num": 5, "best_val_loss": torch.tensor(1.5), **rest}
    if args is not None:
        content["model_args"] = args
    if config is not None:
        content["config"] = config
    torch.save(content, path)
    return path

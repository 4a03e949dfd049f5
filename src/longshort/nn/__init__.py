"""Modules around the op: the attention layer, its stabilizers, positions and cache, the transformer block."""

from longshort.nn.attention import LSAttention, LSAttentionResult
from longshort.nn.block import MLP, Block
from longshort.nn.cache import LSCache
from longshort.nn.kv_cache import KVCache
from longshort.nn.layer_cache import CacheLayer, LSLayerCache
from longshort.nn.norms import QKNorm, RMSNorm, SequenceBatchNorm
from longshort.nn.positions import RopeScaling, rotary, segment_positions, sinusoidal
from longshort.nn.sigma_reparam import SigmaLinear, update_sigma
from longshort.nn.static_cache import LSStaticCache

LayerCache, StaticCache = LSLayerCache, LSStaticCache
"""Their names before all caches had the prefix."""

__all__ = [
    "MLP",
    "Block",
    "CacheLayer",
    "KVCache",
    "LSAttention",
    "LSAttentionResult",
    "LSCache",
    "LSLayerCache",
    "LSStaticCache",
    "LayerCache",
    "QKNorm",
    "RMSNorm",
    "RopeScaling",
    "SequenceBatchNorm",
    "SigmaLinear",
    "StaticCache",
    "rotary",
    "segment_positions",
    "sinusoidal",
    "update_sigma",
]

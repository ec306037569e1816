"""Creates tests/data/gguf/{k_quants,small_quants}.{gguf,json}: tiny Qwen3 models with tensors of random blocks, and the
SHA-256 of each tensor's values as gguf-py dequantizes them (f32, little-endian). k_quants has Q4_K, Q5_K and Q6_K;
small_quants has Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, Q2_K and Q3_K.

Run as `python tests/peers/k_quants.py` with gguf 0.19.0 and numpy 2.4.6. The first blocks of each tensor have factors at
the limits: zero, negative, denormal.
"""
import hashlib
import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import dequantize

OUT = Path(__file__).resolve().parent.parent / "data" / "gguf"
DIM, FFN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 256, 32, 32, 2, 1, 16
# elements and bytes of a block, and the offsets of its f16 factors
FORMATS = {
    Type.Q4_K: (256, 144, (0, 2)), Type.Q5_K: (256, 176, (0, 2)), Type.Q6_K: (256, 210, (208,)),
    Type.Q2_K: (256, 84, (80, 82)), Type.Q3_K: (256, 110, (108,)), Type.IQ4_XS: (256, 136, (0,)),
    Type.Q4_1: (32, 20, (0, 2)), Type.Q5_0: (32, 22, (0,)), Type.Q5_1: (32, 24, (0, 2)), Type.IQ4_NL: (32, 18, (0,)),
}
LIMITS = [0.0, -0.001, 2.0**-24, -(2.0**-15), 0.004]
SHAPES = {
    "token_embd.weight": (VOCAB, DIM), "blk.0.attn_q.weight": (HEADS * HEAD_DIM, DIM),
    "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, DIM), "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, DIM),
    "blk.0.attn_output.weight": (DIM, HEADS * HEAD_DIM), "blk.0.ffn_gate.weight": (FFN, DIM),
    "blk.0.ffn_up.weight": (FFN, DIM), "blk.0.ffn_down.weight": (DIM, FFN),
}
# the types of the tensors above
MODELS = {
    "k_quants": (14, [Type.Q6_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.F16, Type.Q4_K, Type.Q5_K, Type.F16]),
    "small_quants": (15, [Type.Q3_K, Type.Q4_1, Type.Q5_1, Type.IQ4_XS, Type.IQ4_NL, Type.Q2_K, Type.IQ4_XS, Type.Q5_0]),
}
NORMS = {"output_norm": DIM, "blk.0.attn_norm": DIM, "blk.0.ffn_norm": DIM, "blk.0.attn_q_norm": HEAD_DIM,
         "blk.0.attn_k_norm": HEAD_DIM}


def blocks(rng, shape, kind):
    """Rows of random blocks. Their factors give values of about 0.1."""
    elements, size, factors = FORMATS[kind]
    raw = rng.integers(0, 256, (shape[0] * shape[1] // elements, size), dtype=np.uint8)
    for offset in factors:
        values = rng.uniform(1e-5, 2e-4, len(raw))
        values[: len(LIMITS)] = LIMITS
        raw[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw.reshape(shape[0], -1)


def main(name, seed, kinds):
    rng, digests = np.random.Generator(np.random.PCG64(seed)), {}
    writer = GGUFWriter(OUT / f"{name}.gguf", "qwen3")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCAB)
    for (tensor, shape), kind in zip(SHAPES.items(), kinds):
        if kind == Type.F16:
            data = (rng.standard_normal(shape) * 0.1).astype(np.float16)
            writer.add_tensor(tensor, data)
        else:
            data = blocks(rng, shape, kind)
            writer.add_tensor(tensor, data, raw_dtype=kind)
        values = dequantize(data, kind).astype("<f4")
        assert np.isfinite(values).all() and values.shape == shape
        digests[tensor] = hashlib.sha256(values.tobytes()).hexdigest()
    for norm, width in NORMS.items():
        writer.add_tensor(f"{norm}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (OUT / f"{name}.json").write_text(json.dumps(digests, indent=1) + "\n")


for model, (seed, kinds) in MODELS.items():
    main(model, seed, kinds)

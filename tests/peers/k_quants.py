"""Creates tests/data/gguf/{k_quants.gguf,k_quants.json}: a tiny Qwen3 model with tensors of random Q4_K, Q5_K and Q6_K
blocks, and the SHA-256 of each tensor's values as gguf-py dequantises them (f32, little-endian).

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
SUPER_BLOCK = 256
# bytes of a block, and the offsets of its f16 factors
FORMATS = {Type.Q4_K: (144, (0, 2)), Type.Q5_K: (176, (0, 2)), Type.Q6_K: (210, (208,))}
LIMITS = [0.0, -0.001, 2.0**-24, -(2.0**-15), 0.004]
TENSORS = [
    ("token_embd.weight", (VOCAB, DIM), Type.Q6_K),
    ("blk.0.attn_q.weight", (HEADS * HEAD_DIM, DIM), Type.Q4_K),
    ("blk.0.attn_k.weight", (KV_HEADS * HEAD_DIM, DIM), Type.Q5_K),
    ("blk.0.attn_v.weight", (KV_HEADS * HEAD_DIM, DIM), Type.Q6_K),
    ("blk.0.attn_output.weight", (DIM, HEADS * HEAD_DIM), Type.F16),
    ("blk.0.ffn_gate.weight", (FFN, DIM), Type.Q4_K),
    ("blk.0.ffn_up.weight", (FFN, DIM), Type.Q5_K),
    ("blk.0.ffn_down.weight", (DIM, FFN), Type.F16),
]
NORMS = {"output_norm": DIM, "blk.0.attn_norm": DIM, "blk.0.ffn_norm": DIM, "blk.0.attn_q_norm": HEAD_DIM,
         "blk.0.attn_k_norm": HEAD_DIM}


def blocks(rng, shape, kind):
    """Rows of random blocks. Their factors give values of about 0.1."""
    size, factors = FORMATS[kind]
    raw = rng.integers(0, 256, (shape[0] * shape[1] // SUPER_BLOCK, size), dtype=np.uint8)
    for offset in factors:
        values = rng.uniform(1e-5, 2e-4, len(raw))
        values[: len(LIMITS)] = LIMITS
        raw[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw.reshape(shape[0], -1)


def main():
    rng, digests = np.random.Generator(np.random.PCG64(14)), {}
    writer = GGUFWriter(OUT / "k_quants.gguf", "qwen3")
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
    for name, shape, kind in TENSORS:
        if kind == Type.F16:
            data = (rng.standard_normal(shape) * 0.1).astype(np.float16)
            writer.add_tensor(name, data)
        else:
            data = blocks(rng, shape, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        values = dequantize(data, kind).astype("<f4")
        assert np.isfinite(values).all() and values.shape == shape
        digests[name] = hashlib.sha256(values.tobytes()).hexdigest()
    for name, width in NORMS.items():
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (OUT / "k_quants.json").write_text(json.dumps(digests, indent=1) + "\n")


main()

"""Creates tests/data/models/{llama_yarn,llama_linear,mistral_window}: tiny checkpoints with random weights, and the
answers of transformers in f64. Run as `python tests/peers/small_models.py` with torch 2.15.0, transformers 5.23.0 and
numpy 2.4.

The f64 answers come from transformers' own modelling code with every float32 replaced by float64. The tolerance is 15
times the largest error of its f32 run.
"""
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, MistralConfig

OUT = Path(__file__).resolve().parent.parent / "data" / "models"
SHAPE = dict(
    vocab_size=32, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=0,
    eos_token_id=1, pad_token_id=0, dtype="bfloat16",
)
CASES = [
    ("llama_yarn", LlamaConfig, dict(tie_word_embeddings=True, rope_parameters=dict(
        rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16,
        beta_fast=4.0, beta_slow=1.0))),
    ("llama_linear", LlamaConfig, dict(tie_word_embeddings=False, rope_parameters=dict(
        rope_type="linear", rope_theta=100.0, factor=4.0))),
    ("mistral_window", MistralConfig, dict(tie_word_embeddings=True, sliding_window=7, rope_parameters=dict(
        rope_type="default", rope_theta=100.0))),
]
PROMPT, NEW = 24, 16


def double():
    """Replaces every float32 in the modelling code by float64."""
    names = ["modeling_rope_utils", "models.llama.modeling_llama", "models.mistral.modeling_mistral"]
    for module in [importlib.import_module(f"transformers.{name}") for name in names]:
        text = Path(module.__file__).read_text()
        text = re.sub(r"torch\.float(32)?\b(?!\d)", "torch.float64", text).replace(".float()", ".double()")
        exec(compile(text, module.__file__, "exec"), module.__dict__)


def model(config, weights, dtype):
    name = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}[config.model_type]
    module = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    torch.set_default_dtype(dtype)
    config = type(config)(**{**config.to_dict(), "dtype": str(dtype).removeprefix("torch.")})
    config._attn_implementation = "eager"
    network = getattr(module, name)(config).to(dtype).eval()
    missing, more = network.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, strict=False)
    assert not more and set(missing) <= {"lm_head.weight"}, (missing, more)
    network.tie_weights()
    return network


def logits(network, ids):
    with torch.no_grad():
        return network(torch.tensor([ids])).logits[0]


def greedy(network, prompt):
    ids, margin = list(prompt), np.inf
    for _ in range(NEW):
        last = logits(network, ids)[-1]
        top = torch.topk(last, 2).values
        margin = min(margin, float(top[0] - top[1]))
        ids.append(int(last.argmax()))
    return ids[len(prompt):], margin


def weights_of(config, seed):
    rng, weights = np.random.Generator(np.random.PCG64(seed)), {}
    for name, p in shapes(config):
        values = rng.standard_normal(p) * (0.6 if len(p) == 2 else 0.2) + (1.0 if len(p) == 1 else 0.0)
        weights[name] = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16)
    return weights


def shapes(c):
    dim, hd = c.hidden_size, c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, dim)
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (dim,)
        yield at + "self_attn.q_proj.weight", (c.num_attention_heads * hd, dim)
        yield at + "self_attn.k_proj.weight", (c.num_key_value_heads * hd, dim)
        yield at + "self_attn.v_proj.weight", (c.num_key_value_heads * hd, dim)
        yield at + "self_attn.o_proj.weight", (dim, c.num_attention_heads * hd)
        yield at + "post_attention_layernorm.weight", (dim,)
        yield at + "mlp.gate_proj.weight", (c.intermediate_size, dim)
        yield at + "mlp.up_proj.weight", (c.intermediate_size, dim)
        yield at + "mlp.down_proj.weight", (dim, c.intermediate_size)
    yield "model.norm.weight", (dim,)
    if not c.tie_word_embeddings:
        yield "lm_head.weight", (c.vocab_size, dim)


def v4_config(config):
    """The content of config.json as transformers 4 writes it."""
    new = config.to_dict()
    rope = dict(new.pop("rope_parameters"))
    old = {k: v for k, v in new.items() if k in SHAPE or k in ("architectures", "model_type", "sliding_window",
           "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act")}
    old.pop("dtype", None)
    old.update(torch_dtype="bfloat16", rope_theta=rope.pop("rope_theta"), transformers_version="4.51.0")
    old["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return old


def main():
    single = {}
    for seed, (name, kind, more) in enumerate(CASES):
        config = kind(**SHAPE, **more)
        config.architectures = [{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}[config.model_type]]
        weights = weights_of(config, 1000 + seed)
        rng = np.random.Generator(np.random.PCG64(2000 + seed))
        prompt = [int(i) for i in rng.integers(2, config.vocab_size, PROMPT)]
        single[name] = (config, weights, prompt, model(config, weights, torch.float32))
        single[name] += (greedy(single[name][3], prompt)[0],)
    wide = {name: logits(s[3], s[2] + s[4]) for name, s in single.items()}
    double()
    for name, (config, weights, prompt, _, tokens) in single.items():
        network = model(config, weights, torch.float64)
        own, margin = greedy(network, prompt)
        assert own == tokens, "f32 and f64 differ"
        want = logits(network, prompt + own)
        assert want.dtype == torch.float64
        error = float((want - wide[name]).abs().max())
        dir = OUT / name
        dir.mkdir(parents=True, exist_ok=True)
        torch.set_default_dtype(torch.float32)
        save_file(weights, dir / "model.safetensors", metadata={"format": "pt"})
        written = config.to_diff_dict()
        (dir / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
        (dir / "config_v4.json").write_text(json.dumps(v4_config(config), indent=1, sort_keys=True) + "\n")
        save_file({"logits": want.float().contiguous()}, dir / "ref.safetensors")
        answer = {"cases": [{"prompt": prompt, "greedy": own, "margin_f64": margin}],
                  "tolerance": {"logits_f32_abs": 15 * error, "worst_f32": error}}
        (dir / "ref.json").write_text(json.dumps(answer) + "\n")
        print(name, "std", float(want.std()), "margin", margin, "f32 error", error, own)
        assert margin > 40 * error


if __name__ == "__main__":
    assert transformers.__version__ == "5.23.0", transformers.__version__
    sys.exit(main())

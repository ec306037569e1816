"""Opens exported models with other programs: directories with transformers, GGUF files with gguf-py and llama.cpp.

    python tests/peers/check.py [--xtrain target/release/xtrain]

Each model of tests/data/models is imported and exported again. Then

* transformers must return xtrain's logits, within the tolerance of the model's ref.json (15 times the largest error of
  transformers' own f32 against f64), and the same greedy tokens. From a directory of shards it must read exactly the
  weights that it reads from the single file (its logits may depend on the alignment of a matrix in memory);
* gguf-py must find exactly the values of the directory under the standard names (F32), and must dequantize Q8_0 to
  exactly the values that xtrain computes with;
* llama.cpp must generate the same greedy tokens from the F32 file, with keys and values in f32.

If a package is not installed, the script reports it and skips the checks that need it. With XTRAIN_REQUIRE_PEERS=1, a
skipped check is a failure. Tested with transformers 5.23.0, torch 2.15.0, gguf 0.19.0, safetensors 0.8.0, xllamacpp
2026.10.11549.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "data" / "models"
NEW = 16


def missing(*packages):
    return [p for p in packages if importlib.util.find_spec(p) is None]


class Xtrain:
    """The command line."""

    def __init__(self, path):
        self.path = Path(path).resolve()

    def __call__(self, *args):
        done = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: xtrain {' '.join(map(str, args))}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def logits(self, model, tokens, out):
        from safetensors.numpy import load_file

        self("logits", model, "--tokens", ",".join(map(str, tokens)), "--out", out, "--force")
        return load_file(out)["logits"]

    def greedy(self, model, tokens):
        tokens = ",".join(map(str, tokens))
        options = ["--tokens", tokens, "--max-new", NEW, "--temperature", 0, "--ignore-eos", "--json"]
        return json.loads(self("generate", model, *options))["completion_ids"]


def weights(directory):
    """All tensors of an exported directory, by name."""
    from safetensors.numpy import load_file

    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def transformers_agrees(xtrain, name, hf, scratch):
    """Compares logits and greedy tokens with transformers. Returns a summary."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    ref = json.loads((MODELS / name / "ref.json").read_text())
    tolerance, prompts = ref["tolerance"]["logits_f32_abs"], [case["prompt"] for case in ref["cases"][:3]]
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32)
    worst, count = 0.0, 0
    for tokens in prompts:
        ids = torch.tensor([tokens])
        with torch.no_grad():
            want = model(ids).logits[0].numpy()
        got = xtrain.logits(hf, tokens, scratch / "logits.safetensors")
        difference = np.abs(got.astype(np.float64) - want)
        if not (difference <= tolerance).all():
            sys.exit(f"error: {name}: a logit differs by {difference.max()}, tolerance {tolerance}")
        worst, count = max(worst, float(difference.max()) / tolerance), count + want.size
        model.generation_config.eos_token_id = None  # min_new_tokens would mask the token instead
        options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        theirs = model.generate(ids, **options)[0, len(tokens):].tolist()
        ours = xtrain.greedy(hf, tokens)
        if ours != theirs:
            sys.exit(f"error: {name}: greedy tokens {ours}, transformers {theirs}")
    return f"{count} logits, at most {worst:.2f} of the tolerance; {len(prompts)} x {NEW} greedy tokens"


def shards_agree(xtrain, name, run, hf, scratch):
    """Exports shards of a third of the weights. Returns the number of shards that transformers opened."""
    import torch
    from transformers import AutoModelForCausalLM

    def weights(path):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()

    out = scratch / f"{name}.shards"
    size = (hf / "model.safetensors").stat().st_size // 3
    xtrain("export", run, out, "--max-shard-size", size)
    files = len(list(out.glob("model-*-of-*.safetensors")))
    if files < 2 or (out / "model.safetensors").exists():
        sys.exit(f"error: {name}: {files} shards of at most {size} bytes")
    want, got = weights(hf), weights(out)
    both = want.keys() & got.keys()
    differ = sorted((want.keys() ^ got.keys()) | {key for key in both if not torch.equal(want[key], got[key])})
    if differ:
        sys.exit(f"error: {name}: transformers reads other weights from {files} shards than from one file: {differ}")
    return files


def rotated(values, heads):
    """The rows of a q or k projection in the order of GGUF's llama architecture: the halves of a head interleaved."""
    out, width = values.shape[0], values.shape[1:]
    return values.reshape(heads, 2, out // heads // 2, *width).swapaxes(1, 2).reshape(out, *width)


def gguf_agrees(name, gguf_file, hf):
    """Compares every tensor of the file with the directory. Returns the number of compared values."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(gguf_file)
    config = json.loads((hf / "config.json").read_text())
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    key = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(key, config["num_hidden_layers"])
    found = {tensor.name: tensor for tensor in reader.tensors}
    values = 0
    for theirs, want in weights(hf).items():
        base, _, suffix = theirs.rpartition(".")
        ours = f"{names.get_name(base)}.{suffix}"
        tensor = found.pop(ours, None)
        if tensor is None:
            sys.exit(f"error: {name}: {gguf_file.name} has no tensor {ours} for {theirs}")
        got = gguf.dequantize(tensor.data, tensor.tensor_type)
        want = want.astype(np.float32)
        if arch == "llama" and base.endswith(("q_proj", "k_proj")):
            query = base.endswith("q_proj")
            want = rotated(want, config["num_attention_heads" if query else "num_key_value_heads"])
        if got.shape != want.shape or (got.view(np.uint32) != want.view(np.uint32)).any():
            sys.exit(f"error: {name}: {ours} of {gguf_file.name} differs from {theirs}")
        values += want.size
    left = sorted(set(found) - {"rope_freqs.weight"})
    if left:
        sys.exit(f"error: {name}: {gguf_file.name} has unknown tensors: {left}")
    return values


def llama_agrees(xtrain, name, gguf_file, hf):
    """Compares greedy tokens with llama.cpp. Returns the number of compared tokens."""
    from llama_greedy import Llama

    ref = json.loads((MODELS / name / "ref.json").read_text())
    prompts = [case["prompt"] for case in ref["cases"][:3]]
    vocab = json.loads((hf / "config.json").read_text())["vocab_size"]
    llama = Llama(gguf_file, max(map(len, prompts)) + NEW, vocab)
    for tokens in prompts:
        theirs, ours = llama.greedy(tokens, NEW), xtrain.greedy(hf, tokens)
        if ours != theirs:
            sys.exit(f"error: {name}: greedy tokens {ours}, llama.cpp {theirs}")
    return len(prompts) * NEW


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--xtrain", default=ROOT / "target" / "release" / "xtrain")
    xtrain = Xtrain(arguments.parse_args().xtrain)
    absent = {
        "transformers": missing("torch", "transformers", "safetensors", "numpy"),
        "gguf-py": missing("gguf", "safetensors", "numpy"),
        "llama.cpp": missing("xllamacpp"),
    }
    for peer, packages in absent.items():
        if packages:
            print(f"not run, {peer}: pip install {' '.join(packages)}")
    with tempfile.TemporaryDirectory() as scratch:
        for directory in sorted(path for path in MODELS.iterdir() if path.is_dir()):
            name, scratch = directory.name, Path(scratch)
            run, hf = scratch / f"{name}.run", scratch / name
            xtrain("import", directory, run)
            xtrain("export", run, hf)
            if not absent["transformers"]:
                print(f"{name:20} transformers: {transformers_agrees(xtrain, name, hf, scratch)}", flush=True)
                files = shards_agree(xtrain, name, run, hf, scratch)
                print(f"{name:20} transformers: {files} shards, the same weights", flush=True)
            if json.loads((hf / "config.json").read_text()).get("sliding_window"):
                continue  # GGUF has no key for a sliding window in these architectures
            plain, quantized = scratch / f"{name}.gguf", scratch / f"{name}.q8_0.gguf"
            xtrain("export", run, plain)
            if not absent["llama.cpp"]:
                print(f"{name:20} llama.cpp: {llama_agrees(xtrain, name, plain, hf)} greedy tokens, 0 differ", flush=True)
            if not absent["gguf-py"]:
                xtrain("export", run, quantized, "--type", "q8_0")
                back = scratch / f"{name}.q8_0"
                xtrain("export", quantized, back)
                values = gguf_agrees(name, plain, hf), gguf_agrees(name, quantized, back)
                print(f"{name:20} gguf-py: {values[0]} values in F32, {values[1]} in Q8_0, 0 differ", flush=True)
    if os.environ.get("XTRAIN_REQUIRE_PEERS") == "1" and any(absent.values()):
        sys.exit("error: XTRAIN_REQUIRE_PEERS=1, but some checks were not run")


if __name__ == "__main__":
    main()

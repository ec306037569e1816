"""What xtrain writes, opened by others: a directory by transformers, a file by gguf-py.

    python tests/peers/check.py [--xtrain target/release/xtrain]

Each model of tests/data/models is imported and exported again; then

* transformers must give the logits that xtrain gives, within the tolerance of the model's ref.json (15 times the worst
  error of transformers' own f32 against f64), and greedily the same tokens; from a directory of shards it must read the
  weights that it reads from the single file, to the last bit (its logits may differ by where a matrix lies in memory);
* gguf-py must find under the standard names the values that are in the directory, to the last bit (F32), and
  dequantise Q8_0 to the values that xtrain computes with, to the last bit.

A package that is not installed is said to be so, and what needs it is not run; with XTRAIN_REQUIRE_PEERS=1 that is a
failure. Seen with transformers 5.23.0, torch 2.15.0, gguf 0.19.0, safetensors 0.8.0.
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

        self("logits", model, "--tokens", ",".join(map(str, tokens)), "--out", out)
        return load_file(out)["logits"]

    def greedy(self, model, tokens):
        tokens = ",".join(map(str, tokens))
        asked = ["--tokens", tokens, "--max-new", NEW, "--temperature", 0, "--ignore-eos", "--json"]
        return json.loads(self("generate", model, *asked))["tokens"]


def weights(directory):
    """All tensors of an exported directory, by name."""
    from safetensors.numpy import load_file

    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def transformers_agrees(xtrain, name, hf, scratch):
    """The largest difference of a logit, as a part of the tolerance."""
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
        model.generation_config.eos_token_id = None  # min_new_tokens would hide the token instead
        asked = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        theirs = model.generate(ids, **asked)[0, len(tokens):].tolist()
        ours = xtrain.greedy(hf, tokens)
        if ours != theirs:
            sys.exit(f"error: {name}: greedy tokens {ours}, of transformers {theirs}")
    return f"{count} logits, at most {worst:.2f} of the tolerance; {len(prompts)} x {NEW} greedy tokens"


def shards_agree(xtrain, name, run, hf, scratch):
    """Exports shards of a third of the weights; returns how many transformers opened."""
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
    """Rows of a q or k projection as the llama architecture of GGUF orders them: halves of a head side by side."""
    out, width = values.shape[0], values.shape[1:]
    return values.reshape(heads, 2, out // heads // 2, *width).swapaxes(1, 2).reshape(out, *width)


def gguf_agrees(name, gguf_file, hf):
    """Compares every tensor of the file with that of the directory; returns how many values were equal."""
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
            sys.exit(f"error: {name}: {ours} of {gguf_file.name} is not {theirs}")
        values += want.size
    left = sorted(set(found) - {"rope_freqs.weight"})
    if left:
        sys.exit(f"error: {name}: {gguf_file.name} has tensors of no known name: {left}")
    return values


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--xtrain", default=ROOT / "target" / "release" / "xtrain")
    xtrain = Xtrain(arguments.parse_args().xtrain)
    absent = {
        "transformers": missing("torch", "transformers", "safetensors", "numpy"),
        "gguf-py": missing("gguf", "safetensors", "numpy"),
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
                continue  # GGUF has no word for a window in these architectures
            if not absent["gguf-py"]:
                plain, quantised = scratch / f"{name}.gguf", scratch / f"{name}.q8_0.gguf"
                xtrain("export", run, plain)
                xtrain("export", run, quantised, "--type", "q8_0")
                back = scratch / f"{name}.q8_0"
                xtrain("export", quantised, back)
                values = gguf_agrees(name, plain, hf), gguf_agrees(name, quantised, back)
                print(f"{name:20} gguf-py: {values[0]} values in F32, {values[1]} in Q8_0, 0 differ", flush=True)
    if os.environ.get("XTRAIN_REQUIRE_PEERS") == "1" and any(absent.values()):
        sys.exit("error: XTRAIN_REQUIRE_PEERS=1, and something was not run")


if __name__ == "__main__":
    main()

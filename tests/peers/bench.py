"""Compares the speed of xtrain and PyTorch on the same cores, in one run, alternating.

    python tests/peers/bench.py recipe|train|decode [--size t|125m|0.6b] [--threads N] [--dtype TYPE] [--rounds N]
                                                    [--xtrain PROGRAM] [--json FILE]

* recipe: a step of the Shakespeare recipe (configs/shakespeare.toml: 4 layers, width 128, 12 samples of 64 tokens),
  and a step of nanoGPT's model for it in eager PyTorch with fused attention. Measured twice: as nanoGPT's own training
  loop on the CPU (unfused AdamW, the batch is created inside the step), and with fused AdamW and a prepared batch;
* train:  a step of 8 samples of 256 tokens of model T (vocabulary 4096, width 256, 6 layers, 8 query heads, 4 KV
  heads, MLP 768), and of the same model in PyTorch, under torch.compile and eager;
* decode: greedy tokens per second of model T at batch 1 and 32, 120 tokens after prompts of 16, and of the same model
  in eager PyTorch with a static cache (not compiled); also 32 completions of one prompt of 128 tokens, for which
  PyTorch shares nothing: each row has its own keys. There xtrain samples at temperature 1, because greedy completions
  of one prompt are equal, and xtrain computes equal rows once; the peers remain greedy. `--llama` repeats the three with llama.cpp (llama.py: `pip install
  llama-cpp-python gguf`), `--candle PROGRAM` with candle's Qwen3 in the same sizes, built by

    cargo build --release --manifest-path tests/peers/candle/Cargo.toml

`--size` replaces model T in train and decode by the preset base-125m with a vocabulary of 32,000 (train: 4 samples of
256 tokens) or by qwen3-0.6b (train: 1 sample of 256 tokens). `--gguf TYPE` (decode, with --llama) lets both programs
read one GGUF file with random matrices of this type; PyTorch is left out. xtrain exports the file if TYPE is f32, bf16
or q8_0. llama.cpp's quantizer writes q4_0 and q4_k_m, with its usual mix: the embedding, which is also the head, is
Q6_K. `--batch N`, any number of times, replaces the three workloads of decode by N prompts of 16.

The recipe has 804,096 parameters in PyTorch (65 characters) and 787,968 in xtrain (257 bytes). Everything is f32.
`--dtype bf16` is available with PyTorch only: autocast in training, all bf16 in decoding. `--avx2`, also with PyTorch
only, measures both without AVX-512 on a CPU that has it. The two programs alternate:
each runs for half a second while the other is stopped, so that changes of the machine's speed affect both. The
measurement starts when the peer has warmed up and ends when xtrain ends (train: complete runs, because its steps are
longer). A step is timed from its batch to its update; the first variant of the recipe includes the creation of the
batch. A line shows the median and the minimum of a program's samples, and tokens per second by the median. Samples
during which the program was stopped are left out. Tested with torch 2.15.0.

`--json FILE` appends one JSON object in one line per comparison: the command lines, the versions, and for both programs
every sample that counts, in milliseconds, one list per round. The fields `xtrain` and `peer_figures` of
docs/bench/*.json take these lists as `samples` (scripts/bench_table.py).
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# fields of [model]; qwen3-0.6b and base-125m as in src/config/preset.rs
FIELDS = ("vocab", "dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_dim")
SIZES = {
    "t": dict(zip(FIELDS, (4096, 256, 6, 8, 4, 32, 768))),
    "125m": dict(zip(FIELDS, (32000, 768, 18, 12, 4, 64, 2304))),
    "0.6b": dict(zip(FIELDS, (151936, 1024, 28, 16, 8, 128, 3072))),
}
# samples of 256 tokens in a training step
SAMPLES = {"t": 8, "125m": 4, "0.6b": 1}
NEW = 120
# seconds that a program runs before the other one continues
SLICE = 0.5
# warm-up steps or passes of the peer
WARM = 5
# PyTorch and its libraries without AVX-512, for --avx2
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def import_torch(threads, dtype):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
        # what torch.compile generates
        import torch._inductor.config as inductor

        inductor.cpp.simdlen = 256
    return torch, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]


def gpt(torch):
    """The GPT of nanoGPT's CPU recipe, and a function that samples its training batches."""
    nn, F = torch.nn, torch.nn.functional
    vocab, width, layers, heads, context, batch = 65, 128, 4, 4, 64, 12

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
            self.qkv, self.out = linear(width, 3 * width), linear(width, width)
            self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

        def forward(self, h):
            b, t, c = h.shape
            split = self.qkv(self.norm1(h)).split(c, 2)
            q, k, v = (x.view(b, t, heads, c // heads).transpose(1, 2) for x in split)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.out(y.transpose(1, 2).reshape(b, t, c))
            return h + self.down(F.gelu(self.up(self.norm2(h))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width, bias=False)

        def forward(self, x, y):
            h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
            for block in self.blocks:
                h = block(h)
            return F.cross_entropy(F.linear(self.norm(h), self.tokens.weight).view(-1, vocab), y.reshape(-1))

    text = (ROOT / "examples/data/tinyshakespeare.txt").read_text()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([index[c] for c in text[: len(text) * 9 // 10]])

    def sample():
        starts = torch.randint(len(data) - context, (batch,))
        rows = torch.stack([data[s : s + context + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]

    return Gpt(), sample


def qwen3(torch, size):
    """Pre-norm, grouped-query attention with QK-norm and RoPE, SwiGLU, tied head; a function that samples batches."""
    nn, F = torch.nn, torch.nn.functional
    vocab, width, layers, heads, kv, hd, mlp = (SIZES[size][field] for field in FIELDS)
    batch, context = SAMPLES[size], 256
    angles = torch.arange(512).float()[:, None] * 1e6 ** (-torch.arange(0, hd, 2).float() / hd)
    cos, sin = (torch.cat([x, x], -1) for x in (angles.cos(), angles.sin()))

    def rotate(x, at):
        a, b = x.chunk(2, -1)
        c, s = (table[at : at + x.shape[-2]].to(x.dtype) for table in (cos, sin))
        return x * c + torch.cat([-b, a], -1) * s

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))

        def forward(self, x):
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2, self.norm_q, self.norm_k = Norm(width), Norm(width), Norm(hd), Norm(hd)
            self.qkv, self.out = linear(width, (heads + 2 * kv) * hd), linear(heads * hd, width)
            self.gate_up, self.down = linear(width, 2 * mlp), linear(mlp, width)

        def forward(self, h, at, cache):
            b, t, _ = h.shape
            parts = self.qkv(self.norm1(h)).split([heads * hd, kv * hd, kv * hd], -1)
            q, k, v = (x.view(b, t, -1, hd).transpose(1, 2) for x in parts)
            q, k = rotate(self.norm_q(q), at), rotate(self.norm_k(k), at)
            if cache is not None:
                cache[0][:, :, at : at + t], cache[1][:, :, at : at + t] = k, v
                k, v = (x[:, :, : at + t] for x in cache)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1, enable_gqa=True)
            h = h + self.out(y.transpose(1, 2).reshape(b, t, -1))
            gate, up = self.gate_up(self.norm2(h)).chunk(2, -1)
            return h + self.down(F.silu(gate) * up)

    class Qwen3(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.norm = nn.Embedding(vocab, width), Norm(width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))

        def hidden(self, x, at, caches):
            h = self.tokens(x)
            for i, block in enumerate(self.blocks):
                h = block(h, at, None if caches is None else caches[i])
            return h

        def forward(self, x, y):
            h = self.norm(self.hidden(x, 0, None))
            return F.cross_entropy(F.linear(h, self.tokens.weight).view(-1, vocab), y.reshape(-1))

        def step(self, x, at, caches):
            last = self.norm(self.hidden(x, at, caches)[:, -1])
            return F.linear(last, self.tokens.weight).argmax(-1, keepdim=True)

        def caches(self, rows, length, dtype):
            return [[torch.zeros(rows, kv, length, hd, dtype=dtype) for _ in "kv"] for _ in self.blocks]

    def sample():
        rows = torch.randint(vocab, (batch, context + 1))
        return rows[:, :-1], rows[:, 1:]

    return Qwen3(), sample


def steps(threads, dtype, which, how):
    """Seconds of each training step of the recipe's GPT, or of a model of SIZES."""
    torch, dtype = import_torch(threads, dtype)
    model, sample = gpt(torch) if which == "recipe" else qwen3(torch, which)
    plain = how == "plain"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=None if plain else True
    )
    forward = torch.compile(model) if how == "compile" else model
    while True:
        start = time.perf_counter()
        x, y = sample()
        if not plain:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        float(loss.detach())
        yield time.perf_counter() - start


def tokens(threads, dtype, size, rows, prompt, one):
    """Seconds of each decoding pass."""
    torch, dtype = import_torch(threads, dtype)
    model = qwen3(torch, size)[0].to(dtype)
    with torch.inference_mode():
        while True:
            caches = model.caches(rows, prompt + NEW, dtype)
            prompts = torch.randint(SIZES[size]["vocab"], (1 if one else rows, prompt)).expand(rows, prompt)
            x = model.step(prompts, 0, caches)
            for at in range(prompt, prompt + NEW - 1):
                start = time.perf_counter()
                x = model.step(x, at, caches)
                yield time.perf_counter() - start


def llama_tokens(threads, _, size, rows, prompt, one, file):
    """Seconds of each decoding pass of llama.cpp. `file`: the GGUF file to read, or None: random f32 weights."""
    import llama

    return llama.tokens(threads, rows, prompt, one, NEW, SIZES[size], file)


def peer(threads, dtype, kind, count, *what):
    """Prints "warm" after the warm-up, then measures `count` samples. None: measures until SIGTERM."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    seconds = []
    kinds = {"steps": steps, "tokens": tokens, "llama": llama_tokens}
    for i, sample in enumerate(kinds[kind](threads, dtype, *what)):
        if i >= WARM:
            seconds.append(sample)
        if i + 1 == WARM:
            print("warm", flush=True)
        if stopped or len(seconds) == count:
            break
    print(json.dumps([1e3 * sample for sample in seconds]))


def ours(args, *more):
    """The command line of an xtrain benchmark."""
    options = ["--threads", str(args.threads), "--dtype", args.dtype, *["--device", "cpu:avx2"] * args.avx2, "--json"]
    return [str(args.xtrain), "bench", *map(str, more), *options]


def theirs(args, kind, count, *what):
    """The command line that measures PyTorch or llama.cpp in its own process."""
    what = json.dumps([kind, count, *what])
    options = ["--threads", str(args.threads), "--dtype", args.dtype]
    avx2 = ["env", *(f"{name}={value}" for name, value in AVX2.items())] * args.avx2
    return [*avx2, sys.executable, __file__, "peer", *options, "--what", what]


def candle(args, rows, prompt, one):
    """The command line that measures candle: tests/peers/candle."""
    return ["env", f"RAYON_NUM_THREADS={args.threads}", *map(str, [args.candle, rows, prompt, NEW, int(one)])]


def last_line(text):
    """The JSON in the last line of a program's output."""
    return json.loads(text.splitlines()[-1])


def one_by_one(mine, other):
    """Runs both commands one after the other. Returns their results."""
    run = lambda command: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return last_line(run(mine)), last_line(run(other))


def alternating(mine, other):
    """Runs both commands alternately, `SLICE` seconds each, until the first ends; then terminates the second, which was
    warmed up before the first started. Returns their results."""
    both = []
    try:
        with tempfile.TemporaryFile("w+") as out:
            both.append(peer := subprocess.Popen(other, stdout=subprocess.PIPE, text=True, cwd=ROOT))
            if peer.stdout.readline() != "warm\n":
                sys.exit(f"bench.py: failed: {other}")
            peer.send_signal(signal.SIGSTOP)
            both.append(xtrain := subprocess.Popen(mine, stdout=out, cwd=ROOT))
            while not ended(xtrain):
                xtrain.send_signal(signal.SIGSTOP)
                peer.send_signal(signal.SIGCONT)
                if ended(peer):
                    sys.exit(f"bench.py: failed: {other}")
                peer.send_signal(signal.SIGSTOP)
                xtrain.send_signal(signal.SIGCONT)
            peer.send_signal(signal.SIGTERM)
            peer.send_signal(signal.SIGCONT)
            samples = peer.communicate()[0]
            if xtrain.returncode or peer.returncode:
                sys.exit(f"bench.py: failed: {mine if xtrain.returncode else other}")
            out.seek(0)
            return last_line(out.read()), last_line(samples)
    finally:
        for one in both:
            one.kill()
            one.wait()


def ended(program):
    """Whether the program ends within its time slice."""
    try:
        program.wait(SLICE)
    except subprocess.TimeoutExpired:
        return False
    return True


def spread(samples):
    return {"p50": statistics.median(samples), "min": min(samples)}


def uninterrupted(samples):
    """The samples in milliseconds, without those during which the program was stopped."""
    return [ms for ms in samples if ms < 1e3 * SLICE]


def report(name, a, b, rows=None, peer="pytorch"):
    """Prints a line per program, and the ratio of the peer's time to xtrain's, by median and by minimum."""
    for program, x in (("xtrain", a), (peer, b)):
        rate = f"  {1e3 * rows / x['p50']:7.0f} tok/s" if rows else ""
        print(f"{name:<28} {program:<9} p50 {x['p50']:8.2f} ms  min {x['min']:8.2f} ms{rate}")
    print(f"{name:<28} {'ratio':<9} p50 {b['p50'] / a['p50']:8.2f}     min {b['min'] / a['min']:8.2f}", flush=True)


class Records:
    """The raw samples of each comparison, over all rounds."""

    def __init__(self, args):
        self.args, self.by_name = args, {}

    def add(self, name, peer, commands, samples, tokens=None):
        """Adds a round. `commands` and `samples` hold those of xtrain and of the peer; `tokens` is per sample."""
        mine, other = map(shown, commands)
        new = {
            "comparison": name,
            "dtype": self.args.dtype,
            "threads": self.args.threads,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "command": shlex.join(["python", *sys.argv]),
            "tokens_per_sample": tokens,
            "xtrain": {"version": xtrain_version(self.args), "command": mine, "samples": []},
            "peer": peer,
            "peer_figures": {"version": peer_version(peer), "command": other, "samples": []},
        }
        record = self.by_name.setdefault((name, peer), new)
        for side, ms in zip(("xtrain", "peer_figures"), samples):
            record[side]["samples"].append(ms)

    def append_to(self, file):
        """Appends one line per comparison."""
        with open(file, "a") as out:
            out.writelines(json.dumps(record) + "\n" for record in self.by_name.values())


def shown(command):
    """The command line without the paths of this machine."""
    return shlex.join(command).replace(f"{ROOT}/", "").replace(sys.executable, "python")


def xtrain_version(args):
    run = subprocess.run([str(args.xtrain), "--version"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return run.stdout.strip() or None


def peer_version(peer):
    """The version of an installed Python package, or of candle in tests/peers/candle/Cargo.lock. None: unknown."""
    if peer == "candle":
        lock = (ROOT / "tests/peers/candle/Cargo.lock").read_text()
        found = re.search(r'name = "candle-core"\nversion = "(.*)"', lock)
        return found and found[1]
    try:
        return importlib.metadata.version({"pytorch": "torch", "llama.cpp": "llama-cpp-python"}.get(peer, peer))
    except importlib.metadata.PackageNotFoundError:
        return None


def sizes(size):
    return [arg for key, value in SIZES[size].items() for arg in ("--set", f"model.{key}={value}")]


def export_random(args, folder):
    """Writes random weights of the size `args.size`, with matrices of the type `args.gguf`, by xtrain or llama.cpp."""
    import llama

    plain, exported = Path(folder) / "f32.gguf", Path(folder) / f"exported-{args.gguf}.gguf"
    llama.write(plain, SIZES[args.size])
    if args.gguf in llama.FILE_TYPES:
        llama.quantize(plain, exported, args.gguf)
    else:
        subprocess.run([args.xtrain, "export", plain, exported, "--type", args.gguf], check=True, stdout=sys.stderr)
    plain.unlink()
    return exported


def run(args, records, file=None):
    size = args.size

    def compared(name, mine, other, a, b, rows=None, peer="pytorch"):
        records.add(name, peer, (mine, other), (a, b), rows)
        report(name, spread(a), spread(b), rows, peer)

    def recipe(name, how):
        mine = ours(args, "train", "-c", "configs/shakespeare.toml", "--steps", 240)
        other = theirs(args, "steps", None, "recipe", how)
        a, b = alternating(mine, other)
        compared(f"recipe, {name}", mine, other, uninterrupted(a["samples_ms"]), uninterrupted(b))

    def train(how):
        batch = f"train.batch={SAMPLES[size]}"
        t = [*sizes(size), "--set", "train.context=256", "--set", batch, "--steps", 10]
        mine, other = ours(args, "train", *t), theirs(args, "steps", 10, size, how)
        a, b = one_by_one(mine, other)
        compared(f"train {size.upper()}, {how}", mine, other, a["samples_ms"], b)

    def decode(name, rows, prompt, one, repeats):
        more = ["--batch", rows, "--prompt-len", prompt, "--max-new", NEW, "--repeats", repeats]
        model = ["--model", file] if file else [*sizes(size), "--set", "train.context=512"]
        mine = ours(args, "decode", *model, *more, *["--one-prompt", "--temperature", 1] * one)
        others = {} if file else {"pytorch": theirs(args, "tokens", None, size, rows, prompt, one)}
        if args.llama:
            others["llama.cpp"] = theirs(args, "llama", None, size, rows, prompt, one, file and str(file))
        if args.candle:
            others["candle"] = candle(args, rows, prompt, one)
        for name_of_peer, other in others.items():
            a, b = alternating(mine, other)
            passes = [step["ms"] for sample in a["samples"] for step in sample["decode"]]
            a, b = uninterrupted(passes), uninterrupted(b)
            weights = f", GGUF {args.gguf}" if file else ""
            compared(f"decode {size.upper()}, {name}{weights}", mine, other, a, b, rows, name_of_peer)

    for _ in range(args.rounds):
        if args.what == "recipe":
            recipe("as nanoGPT", "plain")
            recipe("fused AdamW", "eager")
        elif args.what == "train":
            train("compile")
            train("eager")
        elif args.batch:
            for rows in args.batch:
                decode(f"batch {rows}", rows, 16, False, max(2, 24 // rows))
        else:
            decode("batch 1", 1, 16, False, 24)
            decode("batch 32", 32, 16, False, 4)
            decode("32 of one prompt", 32, 128, True, 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=["recipe", "train", "decode", "peer"], metavar="recipe|train|decode")
    parser.add_argument("--size", choices=list(SIZES), default="t", help="train, decode: the model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--avx2", action="store_true", help="xtrain and PyTorch use AVX2 on a CPU with AVX-512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--xtrain", default=ROOT / "target/release/xtrain")
    parser.add_argument("--llama", action="store_true", help="decode: also measure llama.cpp")
    parser.add_argument("--gguf", choices=["f32", "bf16", "q8_0", "q4_0", "q4_k_m"], help="decode: both read one GGUF file")
    parser.add_argument("--batch", type=int, action="append", metavar="N", help="decode: N prompts of 16 tokens")
    parser.add_argument("--candle", metavar="PROGRAM", help="decode: also measure candle")
    parser.add_argument("--json", metavar="FILE", help="append the raw samples of each comparison as a line of JSON")
    parser.add_argument("--what", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bench == "peer":
        peer(args.threads, args.dtype, *json.loads(args.what))
    elif (args.llama or args.candle) and (args.bench != "decode" or args.dtype != "f32" and not args.gguf):
        parser.error("llama.cpp and candle are measured only in decode and in f32; llama.cpp also with --gguf")
    elif args.avx2 and (args.llama or args.candle):
        parser.error("--avx2 is available with PyTorch only")
    elif args.gguf and not args.llama or args.candle and (args.gguf or args.size != "t"):
        parser.error("--gguf needs --llama, and candle is measured with model T only")
    else:
        args.what = args.bench
        records = Records(args)
        try:
            with tempfile.TemporaryDirectory() as folder:
                run(args, records, export_random(args, folder) if args.gguf else None)
        finally:
            if args.json:
                records.append_to(args.json)


if __name__ == "__main__":
    main()

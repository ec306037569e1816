"""The speed of xtrain beside PyTorch on the same cores, in one run, in turn.

    python tests/peers/bench.py recipe|train|decode [--threads N] [--rounds N] [--xtrain target/release/xtrain]

* recipe: a step of the Shakespeare recipe (configs/shakespeare.toml: 4 layers, width 128, 12 samples of 64 tokens) and
  of a GPT of its size in eager PyTorch with fused attention, twice: as nanoGPT's own loop takes it on a CPU (AdamW is not
  fused there, and the batch is made inside the step), and with the fused AdamW and a batch that is there;
* train:  a step of 8 samples of 256 tokens of model T (vocabulary 4096, width 256, 6 layers, 8 heads of which 4 have keys,
  MLP 768), beside the same model under torch.compile and eager;
* decode: greedy tokens of model T per second at batch 1 and 32, 120 tokens after prompts of 16, beside the same model
  in eager PyTorch with a static cache (nothing of it is compiled); and 32 completions of one prompt of 128 tokens, of
  which PyTorch knows nothing: each row has keys of its own.

The recipe's vocabulary is 65 characters there and 257 bytes here. All in f32; the two programs run in turn, half a
second each while the other stands still (train: whole runs, for its steps are longer). A step is timed from its batch
to its update, but for the first of the two with the making of the batch; five steps there and three here are not
counted. A line holds the median and the least of a program's own samples, and tokens by the median: the few samples
in which a program stood still are far above it. Seen with torch 2.15.0.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL_T = {"vocab": 4096, "dim": 256, "n_layers": 6, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 768}
NEW = 120
# seconds that a program runs before it is the other's turn, many steps or passes long
TURN = 0.5


def torch_here(threads):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return torch


def gpt(torch):
    """A GPT of nanoGPT's recipe for the CPU, and what it learns from."""
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
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width, bias=False)

        def forward(self, x, y):
            h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
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


def model_t(torch):
    """Model T: pre-norm, grouped heads with normed queries and keys, rotary positions, SwiGLU, tied head."""
    nn, F = torch.nn, torch.nn.functional
    vocab, width, heads, kv, mlp, hd, batch, context = 4096, 256, 8, 4, 768, 32, 8, 256
    angles = torch.arange(512).float()[:, None] * 1e6 ** (-torch.arange(0, hd, 2).float() / hd)
    cos, sin = (torch.cat([x, x], -1) for x in (angles.cos(), angles.sin()))

    def turn(x, at):
        a, b = x.chunk(2, -1)
        here = slice(at, at + x.shape[-2])
        return x * cos[here] + torch.cat([-b, a], -1) * sin[here]

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
            q, k = turn(self.norm_q(q), at), turn(self.norm_k(k), at)
            if cache is not None:
                cache[0][:, :, at : at + t], cache[1][:, :, at : at + t] = k, v
                k, v = (x[:, :, : at + t] for x in cache)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1, enable_gqa=True)
            h = h + self.out(y.transpose(1, 2).reshape(b, t, -1))
            gate, up = self.gate_up(self.norm2(h)).chunk(2, -1)
            return h + self.down(F.silu(gate) * up)

    class ModelT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.norm = nn.Embedding(vocab, width), Norm(width)
            self.blocks = nn.ModuleList(Block() for _ in range(6))

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

        def caches(self, rows, length):
            return [[torch.zeros(rows, kv, length, hd) for _ in "kv"] for _ in self.blocks]

    def sample():
        rows = torch.randint(vocab, (batch, context + 1))
        return rows[:, :-1], rows[:, 1:]

    return ModelT(), sample


def steps(threads, which, how, count):
    """Seconds of each of `count` steps of training, after some that are not counted."""
    torch = torch_here(threads)
    model, sample = gpt(torch) if which == "recipe" else model_t(torch)
    plain = how == "plain"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=None if plain else True
    )
    forward = torch.compile(model) if how == "compile" else model
    seconds = []
    for _ in range(count + 5):
        start = time.perf_counter()
        x, y = sample()
        if not plain:
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        float(loss.detach())
        seconds.append(time.perf_counter() - start)
    return seconds[5:]


def tokens(threads, rows, prompt, one):
    """Seconds of each pass of decoding, after a rollout that is not counted."""
    torch = torch_here(threads)
    model, _ = model_t(torch)
    seconds = []
    with torch.inference_mode():
        for rollout in range(4):
            caches = model.caches(rows, prompt + NEW)
            prompts = torch.randint(4096, (1 if one else rows, prompt)).expand(rows, prompt)
            x = model.step(prompts, 0, caches)
            for at in range(prompt, prompt + NEW - 1):
                start = time.perf_counter()
                x = model.step(x, at, caches)
                if rollout > 0:
                    seconds.append(time.perf_counter() - start)
    return seconds


def spread(seconds):
    ordered = sorted(seconds)
    return {"p50": 1e3 * statistics.median(ordered), "min": 1e3 * ordered[0]}


def ours(args, *more):
    """The command of an xtrain benchmark."""
    return [str(args.xtrain), "bench", *map(str, more), "--threads", str(args.threads), "--json"]


def theirs(args, *what):
    """The command that measures PyTorch, in a process of its own."""
    return [sys.executable, __file__, "peer", "--threads", str(args.threads), "--what", json.dumps(what)]


def in_turn(commands, seconds):
    """What each command prints, as JSON. Only one of them runs at any time: one after the other, or each for so many
    seconds while the others stand still, so that a machine which changes its speed does so for all of them."""
    running = []
    for command in commands:
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        if seconds is None:
            running[-1].wait()
        else:
            running[-1].send_signal(signal.SIGSTOP)
    while any(one.poll() is None for one in running):
        for one in running:
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
            time.sleep(seconds)
            if one.poll() is None:
                one.send_signal(signal.SIGSTOP)
    if failed := [one.args for one in running if one.returncode != 0]:
        sys.exit(f"bench.py: failed: {failed}")
    return [json.loads(one.stdout.read().splitlines()[-1]) for one in running]


def report(name, a, b, rows=None):
    """A pair of lines, and how many times as long the peer takes by medians and by the least."""
    for who, x in (("xtrain", a), ("pytorch", b)):
        rate = f"  {1e3 * rows / x['p50']:7.0f} tok/s" if rows else ""
        print(f"{name:<28} {who:<8} p50 {x['p50']:8.2f} ms  least {x['min']:8.2f} ms{rate}")
    print(f"{name:<28} {'ratio':<8} p50 {b['p50'] / a['p50']:8.2f}     least {b['min'] / a['min']:8.2f}", flush=True)


def sizes(**more):
    return [arg for key, value in {**MODEL_T, **more}.items() for arg in ("--set", f"model.{key}={value}")]


def run(args):
    def trained(name, mine, what, seconds):
        a, b = in_turn([ours(args, "train", *mine), theirs(args, "steps", *what)], seconds)
        report(name, a["ms_per_step"], b)

    def decoded(name, rows, prompt, one):
        more = ["--batch", rows, "--prompt-len", prompt] + ["--one-prompt"] * one
        mine = ours(args, "decode", *sizes(), "--set", "train.context=512", "--max-new", NEW, "--repeats", 3, *more)
        a, b = in_turn([mine, theirs(args, "tokens", rows, prompt, one)], TURN)
        report(name, a["per_forward_ms"]["decode"], b, rows)

    for _ in range(args.rounds):
        if args.what == "recipe":
            for name, how in (("as nanoGPT", "plain"), ("fused AdamW", "eager")):
                mine = ["-c", "configs/shakespeare.toml", "--steps", 240]
                trained(f"recipe, {name}", mine, ("recipe", how, 170), TURN)
        elif args.what == "train":
            mine = [*sizes(), "--set", "train.context=256", "--set", "train.batch=8", "--steps", 10]
            for how in ("compile", "eager"):
                trained(f"train T, {how}", mine, ("t", how, 10), None)
        else:
            decoded("decode T, batch 1", 1, 16, False)
            decoded("decode T, batch 32", 32, 16, False)
            decoded("decode T, 32 of one prompt", 32, 128, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=["recipe", "train", "decode", "peer"], metavar="recipe|train|decode")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--xtrain", default=ROOT / "target/release/xtrain")
    parser.add_argument("--what", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bench == "peer":
        kind, *rest = json.loads(args.what)
        print(json.dumps(spread({"steps": steps, "tokens": tokens}[kind](args.threads, *rest))))
    else:
        args.what = args.bench
        run(args)


if __name__ == "__main__":
    main()

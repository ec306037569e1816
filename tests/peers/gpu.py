"""Compares the speed of xtrain and PyTorch on one GPU: same shapes, random weights, bf16, one after the other.

    python gpu.py decode|train|linear [--device cuda] [--xtrain ./xtrain] [--sizes 10m,125m,0.6b] [--batches 1,256]
                                      [--top-p P] [--eager] [--quick]

* decode: tokens per second, 128 new tokens after prompts of 128, greedy or with --top-p at temperature 1. Peers: the same model in PyTorch with a static
  cache and one CUDA graph per step (the choice of the token included), and transformers' Qwen3 with a static cache, if it is installed;
* train:  tokens per second, 8 samples of 1024 tokens. Peer: the same model under torch.compile (with --eager without
  it) with autocast to bf16 and fused AdamW;
* linear: microseconds of each matrix product of 125m with 1, 16, 256 and 8192 rows. Peer: cuBLASLt through PyTorch. A
  sample is four rounds over the copies of a matrix, one CUDA graph per round. The goal is a ratio of at most 1 for up
  to 16 rows and at most 1.6 for more; a product that misses it is marked.

--quick uses tiny sizes. --device cpu runs PyTorch without graphs and compilation and xtrain on the emulator. Both only
show that the script and its command lines work.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

# preset, vocabulary, width, layers, query heads, KV heads, head size, MLP width; as in src/config/preset.rs
SIZES = {
    "10m": ("small-10m", 4096, 384, 6, 6, 2, 64, 1024),
    "125m": ("base-125m", 32768, 768, 18, 12, 4, 64, 2304),
    "0.6b": ("qwen3-0.6b", 151936, 1024, 28, 16, 8, 128, 3072),
    "tiny": ("tiny-1m", 64, 128, 5, 4, 2, 32, 384),
}

# rounds over the copies of a matrix per sample; as in src/cli/bench/linear.rs
ROUNDS = 4


def build(torch, size, positions, device):
    """Pre-norm, grouped-query attention with QK-norm and RoPE, SwiGLU, tied head."""
    nn, F = torch.nn, torch.nn.functional
    _, vocab, width, layers, heads, kv, hd, mlp = SIZES[size]
    angles = torch.arange(positions).float()[:, None] * 1e4 ** (-torch.arange(0, hd, 2).float() / hd)
    cos, sin = (torch.cat([x, x], -1).to(device) for x in (angles.cos(), angles.sin()))

    def rotate(x, at):
        a, b = x.chunk(2, -1)
        return (x * cos[at] + torch.cat([-b, a], -1) * sin[at]).to(x.dtype)

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))

        def forward(self, x):
            return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-6)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2, self.norm_q, self.norm_k = Norm(width), Norm(width), Norm(hd), Norm(hd)
            self.qkv, self.out = linear(width, (heads + 2 * kv) * hd), linear(heads * hd, width)
            self.gate_up, self.down = linear(width, 2 * mlp), linear(mlp, width)

        def forward(self, h, at, cache, mask):
            b, t, _ = h.shape
            parts = self.qkv(self.norm1(h)).split([heads * hd, kv * hd, kv * hd], -1)
            q, k, v = (x.view(b, t, -1, hd).transpose(1, 2) for x in parts)
            q, k = rotate(self.norm_q(q), at), rotate(self.norm_k(k), at)
            if cache is not None:
                k, v = cache[0].index_copy_(2, at, k), cache[1].index_copy_(2, at, v)
            y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
            h = h + self.out(y.transpose(1, 2).reshape(b, t, -1))
            gate, up = self.gate_up(self.norm2(h)).chunk(2, -1)
            return h + self.down(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.norm = nn.Embedding(vocab, width), Norm(width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))

        def hidden(self, x, at, caches, mask):
            h = self.tokens(x)
            for i, block in enumerate(self.blocks):
                h = block(h, at, None if caches is None else caches[i], mask)
            return self.norm(h)

        def forward(self, x, y):
            h = self.hidden(x, torch.arange(x.shape[1], device=x.device), None, None)
            return F.cross_entropy(F.linear(h, self.tokens.weight).float().view(-1, vocab), y.reshape(-1))

        def step(self, x, at, caches, top_p=None):
            mask = torch.arange(positions, device=x.device)[None, :] <= at[:, None]
            last = self.hidden(x, at, caches, mask)[:, -1]
            logits = F.linear(last, self.tokens.weight)
            if top_p is None:
                return logits.argmax(-1, keepdim=True)
            p, ids = logits.float().softmax(-1).sort(-1, descending=True)
            p = p.masked_fill(p.cumsum(-1) - p > top_p, 0.0)
            return ids.gather(-1, torch.multinomial(p, 1))

        def caches(self, rows):
            zeros = lambda: torch.zeros(rows, kv, positions, hd, device=device, dtype=self.tokens.weight.dtype)
            return [(zeros(), zeros()) for _ in self.blocks]

    return Model().to(device)


def wait(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


def graphed(torch, step, device):
    """`step` as one CUDA graph, captured after one run of it. On the CPU: `step` itself."""
    if device != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def decode(torch, size, rows, prompt, new, device, top_p):
    """Tokens per second of PyTorch, one graph per step."""
    model = build(torch, size, prompt + new, device).to(torch.bfloat16)
    _, vocab, *_ = SIZES[size]
    with torch.inference_mode():
        caches = model.caches(rows)
        prompts = torch.randint(vocab, (rows, prompt), device=device)
        token = model.step(prompts, torch.arange(prompt, device=device), caches)
        at = torch.full((1,), prompt, device=device)

        def step():
            token.copy_(model.step(token, at, caches, top_p))
            at.add_(1)

        run = graphed(torch, step, device)
        rates = []
        for _ in range(4):
            at.fill_(prompt)
            wait(torch, device)
            start = time.perf_counter()
            for _ in range(new - 1):
                run()
            wait(torch, device)
            rates.append(rows * (new - 1) / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def transformers_decode(torch, size, rows, prompt, new, device, top_p):
    """Tokens per second of transformers with a static cache. None: it is not installed."""
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError:
        return None
    _, vocab, width, layers, heads, kv, hd, mlp = SIZES[size]
    config = Qwen3Config(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=hd, intermediate_size=mlp, max_position_embeddings=prompt + new,
        tie_word_embeddings=True, eos_token_id=None, pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).to(device, torch.bfloat16).eval()
    prompts = torch.randint(vocab, (rows, prompt), device=device)
    kind = {"cache_implementation": "static"} if device == "cuda" else {}
    kind |= {"do_sample": False} if top_p is None else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": top_p}
    seconds = []
    for n in (1, new, 1, new):
        wait(torch, device)
        start = time.perf_counter()
        model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=n, min_new_tokens=n, **kind)
        wait(torch, device)
        seconds.append(time.perf_counter() - start)
    return rows * (new - 1) / max(seconds[3] - seconds[2], 1e-9)


def train(torch, size, samples, context, device, eager):
    """Tokens per second of PyTorch, compiled on a GPU unless `eager`."""
    model = build(torch, size, context, device)
    _, vocab, *_ = SIZES[size]
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **fused)
    forward = torch.compile(model) if device == "cuda" and not eager else model
    seconds = []
    for _ in range(13 if device == "cuda" else 2):
        rows = torch.randint(vocab, (samples, context + 1), device=device)
        wait(torch, device)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = forward(rows[:, :-1], rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        float(loss.detach())
        seconds.append(time.perf_counter() - start)
    return samples * context / statistics.median(seconds[3 if device == "cuda" else 1:])


def linear(torch, outputs, inputs, rows, copies, device):
    """Microseconds of a product in PyTorch: the median of 20 samples of rounds over the copies of the matrix."""
    if device == "cuda":
        torch.backends.cuda.preferred_blas_library("cublaslt")
    x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    weights = [torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16) for _ in range(copies)]

    def step():
        for w in weights:
            torch.nn.functional.linear(x, w)

    with torch.inference_mode():
        run = graphed(torch, step, device)
        times = []
        for _ in range(22 if device == "cuda" else 3):
            wait(torch, device)
            start = time.perf_counter()
            for _ in range(ROUNDS):
                run()
            wait(torch, device)
            times.append((time.perf_counter() - start) * 1e6 / copies / ROUNDS)
    return statistics.median(times[2:])


def products(torch, args, size, rows):
    """Prints the table of xtrain's products and cuBLASLt's."""
    print(f"products of {size}")
    repeats = "1" if args.quick else "20"
    name = "cuBLASLt" if args.device == "cuda" else "torch"
    print(f"{'matrix':<10}{'out':>7}{'in':>7}{'rows':>7}{'xtrain us':>12}{name + ' us':>14}{'ratio':>8}  TFLOP/s")
    missed = 0
    quick = ["--copies", "4"] if args.quick else []
    for p in ours(args, size, "linear", "--rows", rows, "--repeats", repeats, *quick)["products"]:
        m, n, k = p["rows"], p["outputs"], p["inputs"]
        mine, theirs = p["us"]["p50"], linear(torch, n, k, m, p["copies"], args.device)
        miss = mine / theirs > (1.0 if m <= 16 else 1.6)
        missed += miss
        print(
            f"{p['matrix']:<10}{n:>7}{k:>7}{m:>7}{mine:>12.2f}{theirs:>14.2f}{mine / theirs:>8.2f}"
            f"  {p['operations_per_second'] / 1e12:.1f}{'  missed' if miss else ''}", flush=True
        )
    print(f"{missed} products miss the goal")


def ours(args, size, *more):
    preset, vocab, *_ = SIZES[size]
    device = "cuda" if args.device == "cuda" else "emulated"
    command = [args.xtrain, "bench", *more, "--device", device, "--dtype", "bf16", "--json"]
    command += ["--set", f"model.preset={preset}", "--set", f"model.vocab={vocab}"]
    if size == "tiny":
        command += ["--set", "model.n_layers=1"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def line(name, mine, **peers):
    rates = "  ".join(f"{peer} {rate:10.0f}" if rate else f"{peer} not installed" for peer, rate in peers.items())
    best = max((rate for rate in peers.values() if rate), default=None)
    ratio = f"  {mine / best:5.2f}x the best peer" if best else ""
    print(f"{name:<22} xtrain {mine:10.0f} tok/s  {rates}{ratio}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "train", "linear"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--xtrain", default="./xtrain")
    parser.add_argument("--sizes")
    parser.add_argument("--batches", default="1,256")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    import torch

    torch.manual_seed(0)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if args.device == 'cuda' else 'cpu'}, bf16")
    prompt, new, samples, context = (4, 5, 2, 8) if args.quick else (128, 128, 8, 1024)
    default = "10m,125m,0.6b" if args.what == "decode" else "10m,125m"
    if args.what == "linear":
        for size in ["tiny"] if args.quick else (args.sizes or "125m").split(","):
            products(torch, args, size, "1,3" if args.quick else "1,16,256,8192")
        return
    for size in ["tiny"] if args.quick else (args.sizes or default).split(","):
        if args.what == "train":
            sets = [f"train.batch={samples}", f"train.context={context}", f"train.micro_batch={samples}"]
            mine = ours(args, size, "train", "--steps", "2" if args.quick else "10", *[x for s in sets for x in ("--set", s)])
            line(f"train {size}", mine["tokens_per_second"], torch=train(torch, size, samples, context, args.device, args.eager))
            continue
        for rows in [2] if args.quick else map(int, args.batches.split(",")):
            sizes = ["--batch", str(rows), "--prompt-len", str(prompt), "--max-new", str(new), "--repeats", "1" if args.quick else "3"]
            if args.top_p is not None:
                sizes += ["--temperature", "1", "--top-p", str(args.top_p)]
            mine = ours(args, size, "decode", *sizes)["decode_tokens_per_second"]
            peers = {"torch": decode, "transformers": transformers_decode}
            line(f"decode {size}, batch {rows}", mine, **{peer: f(torch, size, rows, prompt, new, args.device, args.top_p) for peer, f in peers.items()})


if __name__ == "__main__":
    main()

"""Creates tests/data/train/adamw.json: AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) over 100 steps. Run as
`python tests/peers/adamw.py`; it needs the standard library only.

Weights and moments follow the definition with 50 decimal digits and beta^t as a power, not as a running product. The
powers of `powers` are running products in f64, which docs/numerics.md defines; their bits are compared.
"""
import json
import struct
from decimal import Decimal, getcontext
from pathlib import Path

getcontext().prec = 50
OUT = Path(__file__).resolve().parent.parent / "data" / "train" / "adamw.json"
BETA1, BETA2, EPS, DECAY, RATE = 0.9, 0.95, 1e-8, 0.1, 0.0078125
STEPS = [1, 20, 28, 29, 30, 64, 100]
WEIGHTS = [0.5, -0.25, 1.0, 0.0]


def gradient(step, element):
    """Multiples of 1/64, exact in f32."""
    return ((step * (2 * element + 3) * 7 + element * 5) % 31 - 12 - element) / 64


def element(i, decay):
    beta1, beta2, eps, rate = Decimal(BETA1), Decimal(BETA2), Decimal(EPS), Decimal(RATE)
    w, m, v, found = Decimal(WEIGHTS[i]), Decimal(0), Decimal(0), {}
    for step in range(1, max(STEPS) + 1):
        g = Decimal(gradient(step, i))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w * (1 - rate * Decimal(decay))
        w -= rate * (m / (1 - beta1 ** step)) / ((v / (1 - beta2 ** step)).sqrt() + eps)
        found[step] = [float(w), float(m), float(v)]
    return found


def main():
    powers, running = {}, [1.0, 1.0]
    for step in range(1, max(STEPS) + 1):
        running = [running[0] * BETA1, running[1] * BETA2]
        powers[step] = [f"{struct.unpack('>Q', struct.pack('>d', power))[0]:016x}" for power in running]
        exact = [Decimal(BETA1) ** step, Decimal(BETA2) ** step]
        assert all(abs(Decimal(got) / want - 1) < Decimal(step) * Decimal(2) ** -52 for got, want in zip(running, exact))
    matrices, gains = ([element(i, decay) for i in range(4)] for decay in (DECAY, 0.0))
    steps = [{"step": step, "powers": powers[step], "matrix": [row[step] for row in matrices],
              "gain": [row[step] for row in gains]} for step in STEPS]
    out = {"beta1": BETA1, "beta2": BETA2, "eps": EPS, "weight_decay": DECAY, "learning_rate": RATE,
           "weights": WEIGHTS, "gradients": [[gradient(step, i) for i in range(4)] for step in range(1, 101)],
           "steps": steps}
    OUT.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()

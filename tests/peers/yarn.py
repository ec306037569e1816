"""Creates tests/data/rope/yarn.json: cosines and sines of YaRN (Peng et al. 2023, arXiv:2309.00071) with and without
`truncate`. Run as `python tests/peers/yarn.py`; it needs the standard library only.

Computed with 60 decimal digits from the definition of `_compute_yarn_parameters` of transformers 5 and printed as the
nearest f64: the values are independent of the libm and of the arithmetic of xtrain.
"""
import json
from decimal import Decimal, getcontext
from pathlib import Path

getcontext().prec = 60
OUT = Path(__file__).resolve().parent.parent / "data" / "rope" / "yarn.json"
POSITIONS = [1, 7, 256, 1000]
# head_dim, theta, factor, original, beta_fast, beta_slow: small; as gpt-oss; a ramp inside one pair; one that ends
# after the last pair
SHAPES = [(8, 100, 4, 16, 4, 1), (64, 150000, 32, 4096, 32, 1), (16, 10000, 4, 64, 2, 1.5),
          (16, 10000, 4, 65536, 32, 1)]


def arctan_inverse(n):
    power, total, k = Decimal(1) / n, Decimal(0), 0
    while abs(power) > Decimal(10) ** -58:
        total += power / (2 * k + 1) * (1 if k % 2 == 0 else -1)
        power, k = power / (n * n), k + 1
    return total


PI = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))


def sine_and_cosine(angle):
    angle = angle - (angle / (2 * PI)).to_integral_value() * 2 * PI
    term, k, parts = Decimal(1), 0, [Decimal(0), Decimal(0)]
    while abs(term) > Decimal(10) ** -55:
        parts[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * angle / k
    return parts[1], parts[0]


def frequencies(shape, truncate):
    dim, theta, factor, original, fast, slow = map(Decimal, shape)

    def pair(rotations):
        return dim * (original / (rotations * 2 * PI)).ln() / (2 * theta.ln())

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = low.to_integral_value("ROUND_FLOOR"), high.to_integral_value("ROUND_CEILING")
    low, high = max(low, Decimal(0)), min(high, dim - 1)
    if low == high:
        high += Decimal("0.001")
    inverse = []
    for i in range(int(dim) // 2):
        plain = (-theta.ln() * 2 * i / dim).exp()
        ramp = min(max((i - low) / (high - low), Decimal(0)), Decimal(1))
        inverse.append(plain / factor * ramp + plain * (1 - ramp))
    return inverse, Decimal("0.1") * factor.ln() + 1


def main():
    cases = []
    for shape in SHAPES:
        for truncate in [True, False]:
            inverse, amplitude = frequencies(shape, truncate)
            rows = []
            for position in POSITIONS:
                both = [sine_and_cosine(position * inv) for inv in inverse]
                rows.append({"position": position, "cos": [float(c * amplitude) for _, c in both],
                             "sin": [float(s * amplitude) for s, _ in both]})
            names = ["head_dim", "rope_theta", "factor", "original", "beta_fast", "beta_slow"]
            cases.append({**dict(zip(names, shape)), "truncate": truncate, "rows": rows})
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()

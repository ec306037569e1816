"""Prints time, bytes and achieved bandwidth by kernel from the output of `ncu --csv --page raw`.

usage: python3 bandwidth.py FILE
"""

import csv
import sys

METRICS = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")


def rows(lines):
    """The rows of the table, which follows other output: kernel, nanoseconds, bytes."""
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        sys.exit("error: no line begins with \"ID\": expected the output of ncu --csv --page raw")
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        if row["ID"]:  # the row after the header holds the units
            time, read, written = (float(row[metric].replace(",", "")) for metric in METRICS)
            yield row["Kernel Name"].split("(")[0], time, read + written


def main():
    kernels = {}
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        for kernel, time, size in rows(file.read().splitlines()):
            n, times, sizes = kernels.get(kernel, (0, 0.0, 0.0))
            kernels[kernel] = n + 1, times + time, sizes + size
    total = sum(time for _, time, _ in kernels.values()) or 1.0
    print(f"{'kernel':<32}{'launches':>9}{'us':>11}{'share':>7}{'MB':>11}{'GB/s':>9}")
    for kernel, (n, time, size) in sorted(kernels.items(), key=lambda item: -item[1][1]):
        rate = size / time if time else 0.0
        print(f"{kernel:<32}{n:>9}{time / 1e3:>11.1f}{time / total:>7.1%}{size / 1e6:>11.2f}{rate:>9.0f}")
    print(f"{'total':<32}{'':>9}{total / 1e3:>11.1f}")


if __name__ == "__main__":
    main()

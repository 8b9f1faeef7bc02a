"""Predict raw records with an exported model, in NumPy and nothing else.

    python3 predict.py MODEL.npz|MODEL.safetensors DATA > predictions.txt

It is written to be read: all that docs/formats.md says about keys, columns and
files, for the models `linear` and `logistic`. DATA is libsvm text or csv, as in
the model's spec. One line out for each record; records that cannot be read are
not handled.
"""

import csv
import functools
import json
import math
import struct
import sys

import numpy as np

MASK = 2**64 - 1
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)


def rotate(x, n):
    return (x << n | x >> (64 - n)) & MASK


def round64(acc, word):
    return rotate((acc + word * P2) & MASK, 31) * P1 & MASK


@functools.cache
def xxh64(text):
    """The xxh64 (seed 0) of a text's UTF-8 bytes."""
    data = text.encode("utf-8", "surrogateescape")
    n, at = len(data), 0
    if n >= 32:
        acc = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= n:
            for i, word in enumerate(struct.unpack_from("<4Q", data, at)):
                acc[i] = round64(acc[i], word)
            at += 32
        h = sum(rotate(a, r) for a, r in zip(acc, (1, 7, 12, 18))) & MASK
        for a in acc:
            h = ((h ^ round64(0, a)) * P1 + P4) & MASK
    else:
        h = P5
    h = (h + n) & MASK
    while at + 8 <= n:
        h = (rotate(h ^ round64(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ (struct.unpack_from("<I", data, at)[0] * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def load(path):
    """The metadata and the arrays of a model."""
    if path.endswith(".npz"):
        with np.load(path) as z:
            arrays = {name: z[name] for name in z.files}
        return json.loads(arrays.pop("metadata").tobytes()), arrays
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + struct.unpack_from("<Q", data)[0]
    head = json.loads(data[8:start])
    meta = json.loads(head.pop("__metadata__")["starfish"])
    kinds = {"F32": "<f4", "U64": "<u8"}
    arrays = {name: np.frombuffer(data[start + t["data_offsets"][0]:start + t["data_offsets"][1]],
                                  kinds[t["dtype"]]).reshape(t["shape"]) for name, t in head.items()}
    return meta, arrays


def libsvm_records(path, _spec):
    """The (key, value) pairs of each record."""
    with open(path) as f:
        for line in f:
            entries = line.split("#")[0].split()[1:]  # the first one is the label
            if line.split("#")[0].strip():
                pairs = [e.partition(":") for e in entries if not e.startswith("qid:")]
                yield [(int(k), float(v or 1)) for k, _, v in pairs]


def csv_records(path, spec):
    data = spec["data"]
    c = data["csv"]
    missing = {"", *c.get("missing", [])}
    names = c.get("columns")
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as f:
        lines = (line for line in f if line.strip() and not (c.get("comment") and line.startswith(c["comment"])))
        for row in csv.reader(lines, delimiter=c["delimiter"], skipinitialspace=True):
            row = [cell.strip() for cell in row]
            if c["header"] and names is None:
                names = row
                continue
            cells = {n: v for n, v in zip(names, row) if v not in missing}
            yield list(pairs_of(cells, spec["features"]))


def pairs_of(cells, features):
    """What the features of a spec make of the cells of one record."""
    by_name = {f["name"]: f for f in features}

    def text(f):
        return cells.get(f.get("column", f["name"]), f.get("missing"))

    def part(f):
        value = text(f)
        if value is not None and f.get("transform") == "bucket":
            value = str(sum(b <= float(value) for b in f["bounds"]))
        return None if value is None else f["name"] + "=" + value

    for f in features:
        name = f["name"]
        if f["type"] == "cross":
            parts = [part(by_name.get(p, {"name": p})) for p in f["cross"]]
            if None not in parts:
                yield xxh64("^".join(parts)), 1.0
            continue
        value = text(f)
        if value is None:
            continue
        if f["type"] == "categorical" or f.get("transform") == "bucket":
            yield xxh64(part(f)), 1.0
        elif f["type"] == "list":
            items = [i.strip() for i in value.split(f["sep"]) if i.strip()]
            for item in items:
                yield xxh64(name + "=" + item), 1 / len(items) if f["pool"] == "mean" else 1.0
        else:
            x = float(value)
            if f["transform"] == "log1p":
                x = math.copysign(math.log1p(abs(x)), x)
            elif f["transform"] == "standard":
                x = (x - f.get("mean", 0)) / f["stddev"]
            yield xxh64(name), x


def main(model, data):
    meta, arrays = load(model)
    spec = meta["spec"]
    bits = spec["model"].get("bits", 64)
    keys, weights = arrays["weights.keys"], arrays["weights.values"][:, 0]
    records = libsvm_records if spec["data"]["format"] == "libsvm" else csv_records
    for pairs in records(data, spec):
        wanted = np.array([k % 2**bits for k, _ in pairs], np.uint64)
        values = np.array([v for _, v in pairs], np.float32)
        at = np.searchsorted(keys, wanted)  # keys ascend
        there = at < len(keys)
        there[there] = keys[at[there]] == wanted[there]  # a key that is not in the file has the weight 0
        score = float(arrays["bias"]) + float(weights[at[there]] @ values[there])
        print(repr(1 / (1 + math.exp(-score)) if spec["model"]["type"] == "logistic" else score))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Creates tests/data/tokenizers/{llama_spm,metaspace_spm}: a SentencePiece BPE with bytes for unknown characters, as
Llama 2 and Mistral have it, in two forms of tokenizer.json, and the answers of HF tokenizers. Also creates
tests/data/gguf/llama_spm.gguf: a model without tensors but with this vocabulary and its scores, by gguf-py.

Run as `python tests/peers/spm_tokenizers.py` with sentencepiece 0.2.3, tokenizers 0.23.3, gguf 0.19.0 and numpy 2.4.6.

* llama_spm: normalizers Prepend and Replace, decoder Replace, ByteFallback, Fuse and Strip (transformers' Llama 2).
* metaspace_spm: pre-tokenizer Metaspace with the scheme `first`, the same decoder (transformers' Mistral).

The merges follow from the vocabulary as in transformers' converter: every split of a token into two tokens, in the order
of the token's score.
"""
import io
import json
import random
from pathlib import Path

import numpy as np
import sentencepiece
from gguf import GGUFWriter
from tokenizers import Tokenizer

DATA = Path(__file__).resolve().parent.parent / "data"
TEXT = Path(__file__).resolve().parents[2] / "examples" / "data" / "tinyshakespeare.txt"
VOCAB = 700
SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TEXTS = [
    "Hello world",
    " two  spaces,   three",
    "",
    " ",
    "   ",
    "line one\nline two\n\n\tindented",
    "ROMEO: what's the matter?\r\n",
    "caf\u00e9 na\u00efve \u6f22\u5b57 \U0001f600!",
    "e\u0301 \u00a0 \u2581 lower",
    "<s>[INST] Speak, I pray. [/INST] Very well.</s>",
    "<s><s> a</s> b <unk> <0x41>",
    "12345 67.89",
    "\ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
]


def trained():
    """The pieces and scores of a model trained on the first part of the text."""
    text, model = TEXT.read_text()[:200_000], io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=VOCAB, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=True, character_coverage=1.0, num_threads=1, split_digits=True,
        allow_whitespace_only_pieces=True)
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return spm, [(spm.id_to_piece(i), spm.get_score(i)) for i in range(spm.vocab_size())]


def merges_of(pieces):
    ids, found = {piece: i for i, (piece, _) in enumerate(pieces)}, []
    for piece, score in pieces:
        splits = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
        known = [(a, b, score) for a, b in splits if a in ids and b in ids]
        found += sorted(known, key=lambda m: (ids[m[0]], ids[m[1]]))
    found.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [[a, b] for a, b, _ in found]


def tokenizer_json(pieces, metaspace):
    def added(i):
        return {"id": i, "content": pieces[i][0], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}

    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    steps = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(i) for i in range(3)],
        "normalizer": None if metaspace else {"type": "Sequence", "normalizers": [prepend, replace]},
        "pre_tokenizer": space if metaspace else None,
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {piece: i for i, (piece, _) in enumerate(pieces)}, "merges": merges_of(pieces),
        },
    }


def bytes_are_text(tokenizer, ids):
    """Whether every run of byte tokens is valid UTF-8. HF writes one U+FFFD for each byte of another run."""
    run = b""
    for i in [*ids, 0]:
        token = tokenizer.id_to_token(i)
        if token.startswith("<0x"):
            run += bytes([int(token[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


def cases_of(tokenizer, seed):
    rng = random.Random(seed)

    def decoded(ids):
        return tokenizer.decode(ids, skip_special_tokens=False)

    encode = []
    for text in TEXTS:
        plain = tokenizer.encode(text, add_special_tokens=False)
        special = tokenizer.encode(text)
        encode.append({
            "text": text, "ids": plain.ids, "ids_with_special": special.ids, "tokens": plain.tokens,
            "offsets": [list(pair) for pair in plain.offsets], "decoded": decoded(plain.ids)})
    size = tokenizer.get_vocab_size()
    lists = [[rng.randrange(size) for _ in range(rng.randrange(1, 9))] for _ in range(200)]
    lists = [ids for ids in lists if bytes_are_text(tokenizer, ids)]
    prefixes = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if all(bytes_are_text(tokenizer, ids[:n]) for n in range(len(ids) + 1)):
            prefixes.append({"ids": ids, "prefix_decodes": [decoded(ids[:n]) for n in range(len(ids) + 1)]})
    assert len(lists) > 50 and len(prefixes) > 4
    return {
        "vocab_size": size, "encode": encode, "decode": [{"ids": ids, "text": decoded(ids)} for ids in lists],
        "prefix": prefixes, "decode_single": [decoded([i]) for i in range(size)]}


def gguf(pieces, kinds):
    file = DATA / "gguf" / "llama_spm.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece.encode() for piece, _ in pieces])
    writer.add_token_scores([score for _, score in pieces])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_tensor("none", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    spm, pieces = trained()
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE if spm.is_byte(i) else NORMAL for i in range(3, len(pieces))]
    config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
              "clean_up_tokenization_spaces": False, "add_bos_token": True, "add_eos_token": False}
    for seed, (name, metaspace) in enumerate([("llama_spm", False), ("metaspace_spm", True)]):
        out = DATA / "tokenizers" / name
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(tokenizer_json(pieces, metaspace), ensure_ascii=False)
        (out / "tokenizer.json").write_text(text + "\n")
        (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        cases = cases_of(Tokenizer.from_file(str(out / "tokenizer.json")), seed)
        # the pieces of SentencePiece itself, for texts without special tokens
        if not metaspace:
            for case in cases["encode"]:
                if "<s>" not in case["text"] and "<" not in case["text"] and SPACE not in case["text"]:
                    assert spm.encode(case["text"]) == case["ids"], case["text"]
        (out / "cases.json").write_text(json.dumps(cases, ensure_ascii=False) + "\n")
    gguf(pieces, kinds)


main()

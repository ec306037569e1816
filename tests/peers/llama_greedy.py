"""Greedy tokens of llama.cpp. The package xllamacpp contains it compiled, so nothing is built; it exports the functions
of llama.h, which are called here because its server requires a vocabulary."""

import ctypes
import importlib.metadata

VERSION = "2026.10.11549"
# words of llama_context_params in this version
N_CTX, N_THREADS, TYPE_K = 0, slice(4, 6), slice(26, 28)
F16, F32 = 1, 0


class Params(ctypes.Structure):
    """Parameters that a function takes and returns by value, with room for all their words."""

    _fields_ = [("words", ctypes.c_uint32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int32), ("arrays", ctypes.c_void_p * 6)]


def library():
    import xllamacpp.xllamacpp

    found = importlib.metadata.version("xllamacpp")
    lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    for name, result in {
        "llama_model_default_params": Params,
        "llama_context_default_params": Params,
        "llama_model_load_from_file": ctypes.c_void_p,
        "llama_init_from_model": ctypes.c_void_p,
        "llama_get_memory": ctypes.c_void_p,
        "llama_batch_get_one": Batch,
        "llama_get_logits_ith": ctypes.POINTER(ctypes.c_float),
    }.items():
        getattr(lib, name).restype = result
    if lib.llama_context_default_params().words[TYPE_K] != [F16, F16]:
        raise RuntimeError(f"expected llama_context_params of xllamacpp {VERSION}, found those of {found}")
    return lib


class Llama:
    """A model of a GGUF file, with one sequence of at most `length` tokens, keys and values in f32, on one thread."""

    def __init__(self, file, length, vocab):
        self.lib, self.vocab = library(), vocab
        self.silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self.lib.llama_log_set(self.silent, None)
        model = self.lib.llama_model_load_from_file(str(file).encode(), self.lib.llama_model_default_params())
        params = self.lib.llama_context_default_params()
        params.words[N_CTX], params.words[N_THREADS], params.words[TYPE_K] = length, [1, 1], [F32, F32]
        self.context = model and self.lib.llama_init_from_model(ctypes.c_void_p(model), params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot load {file}; without the call to llama_log_set it says why")
        self.context = ctypes.c_void_p(self.context)

    def greedy(self, prompt, new):
        """The `new` greedy tokens after a prompt."""
        self.lib.llama_memory_clear(ctypes.c_void_p(self.lib.llama_get_memory(self.context)), True)
        tokens = []
        while len(tokens) < new:
            rows = tokens[-1:] or prompt
            ids = (ctypes.c_int32 * len(rows))(*rows)  # the batch refers to it
            if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(ids, len(rows))) != 0:
                raise RuntimeError("llama_decode failed")
            logits = self.lib.llama_get_logits_ith(self.context, -1)[: self.vocab]
            tokens.append(max(range(self.vocab), key=logits.__getitem__))
        return tokens

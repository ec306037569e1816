"""Models in llama.cpp. For `bench.py decode --llama`: random f32 weights of a given size, or a GGUF file.

The time of a pass includes the work of the Python binding: filling the batch and the argmax. Tested with
llama-cpp-python 0.3.36, compiled by pip for the local CPU, and gguf 0.19.0.
"""

import ctypes
import tempfile
import time
from pathlib import Path

CONTEXT = 512
# file types that llama.cpp's quantizer writes, as constants of the binding
FILE_TYPES = {"q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", "q4_k_m": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}


def quantize(source, target, kind):
    """Writes the GGUF file `source` with matrices of a type of FILE_TYPES."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, FILE_TYPES[kind])
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)) != 0:
        raise RuntimeError(f"{source}: llama.cpp cannot write it as {kind}")


def write(path, sizes):
    """Writes a GGUF file of a tied Qwen3 with these sizes and without a tokenizer."""
    import gguf
    import numpy as np

    vocab, width, layers, ffn = (sizes[key] for key in ("vocab", "dim", "n_layers", "ffn_dim"))
    heads, kv, hd = sizes["n_heads"], sizes["n_kv_heads"], sizes["head_dim"]
    random = np.random.default_rng(0)

    file = gguf.GGUFWriter(path, "qwen3")
    file.add_block_count(layers)
    file.add_context_length(CONTEXT)
    file.add_embedding_length(width)
    file.add_feed_forward_length(ffn)
    file.add_head_count(heads)
    file.add_head_count_kv(kv)
    file.add_key_length(hd)
    file.add_value_length(hd)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_freq_base(1e6)
    file.add_vocab_size(vocab)
    file.add_tokenizer_model("none")

    def matrix(name, rows, columns):
        file.add_tensor(f"{name}.weight", (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32))

    def ones(name, length):
        file.add_tensor(f"{name}.weight", np.ones(length, np.float32))

    matrix("token_embd", vocab, width)
    ones("output_norm", width)
    for i in range(layers):
        at = f"blk.{i}"
        for name, length in (("attn_norm", width), ("ffn_norm", width), ("attn_q_norm", hd), ("attn_k_norm", hd)):
            ones(f"{at}.{name}", length)
        matrix(f"{at}.attn_q", heads * hd, width)
        matrix(f"{at}.attn_k", kv * hd, width)
        matrix(f"{at}.attn_v", kv * hd, width)
        matrix(f"{at}.attn_output", width, heads * hd)
        matrix(f"{at}.ffn_gate", ffn, width)
        matrix(f"{at}.ffn_up", ffn, width)
        matrix(f"{at}.ffn_down", width, ffn)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


class Context:
    """A llama.cpp context with `rows` sequences of at most `length` tokens, keys and values in f32."""

    def __init__(self, file, threads, rows, length, vocab):
        import llama_cpp as ll

        self.ll, self.rows, self.vocab = ll, rows, vocab
        self.silent = ll.llama_log_callback(lambda level, text, data: None)
        ll.llama_log_set(self.silent, None)
        ll.llama_backend_init()
        model = ll.llama_model_default_params()
        model.n_gpu_layers, model.use_mmap = 0, False
        self.model = ll.llama_model_load_from_file(str(file).encode(), model)
        params = ll.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = rows * length, rows * length, 512
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = ll.GGML_TYPE_F32
        params.no_perf = True
        # one KV pool, in which sequences can share cells. One pool per sequence was no faster for 32 different prompts:
        # 16.6 and 16.6 ms per pass, against 16.4 and 16.7 with a shared pool
        params.kv_unified = True
        self.context = ll.llama_init_from_model(self.model, params)
        if not self.model or not self.context:
            raise RuntimeError("llama.cpp cannot load this model; remove the call to llama_log_set to see its error message")
        self.memory = ll.llama_get_memory(self.context)
        self.batch = ll.llama_batch_init(rows * length, 0, 1)

    def clear(self):
        self.ll.llama_memory_clear(self.memory, True)

    def share(self):
        """Copies the cells of the first sequence to all others."""
        for row in range(1, self.rows):
            self.ll.llama_memory_seq_cp(self.memory, 0, row, -1, -1)

    def feed(self, entries):
        """Runs one pass over entries (sequence, position, token, return its logits). Returns the requested logits."""
        import numpy as np

        b = self.batch
        b.n_tokens = len(entries)
        for i, (row, at, token, wanted) in enumerate(entries):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, at, 1, wanted
            b.seq_id[i][0] = row
        if self.ll.llama_decode(self.context, b) != 0:
            raise RuntimeError("llama_decode failed")
        count = sum(wanted for *_, wanted in entries)
        logits = ctypes.cast(self.ll.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(logits, (count, self.vocab))


def tokens(threads, rows, prompt, one, new, sizes, file=None):
    """Seconds of each decoding pass of the model `file`, or of random f32 weights. With `one`, all completions share the
    cells of one prompt."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "random.gguf"
        if not file:
            write(path, sizes)
        batch = Context(path, threads, rows, prompt + new, sizes["vocab"])
    random = np.random.default_rng(1)
    while True:
        batch.clear()
        different = range(1 if one else rows)
        entries = [
            (row, at, int(random.integers(batch.vocab)), at + 1 == prompt) for row in different for at in range(prompt)
        ]
        chosen = batch.feed(entries).argmax(-1)
        if one:
            batch.share()
            chosen = chosen.repeat(rows)
        for at in range(prompt, prompt + new - 1):
            start = time.perf_counter()
            chosen = batch.feed([(row, at, int(token), True) for row, token in enumerate(chosen)]).argmax(-1)
            yield time.perf_counter() - start

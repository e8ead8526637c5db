"""llama.cpp's C API, as far as llama_cpp.py needs it: v0.5.0, which node-llama-cpp 3.22 ships.

Its parameters are structures that grow with releases, so those read are checked for the defaults
that v0.5.0 documents: another layout is refused, never misread.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FLASH_ATTENTION_ON = 1
NUM_BATCH = 2048
"""Tokens that one call takes; the library computes them 512 at a time. Both are its defaults."""

_Pointer = ctypes.c_void_p
_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _Pointer)


class _ModelParams(ctypes.Structure):
    _fields_ = (
        ("devices", _Pointer),
        ("tensor_buft_overrides", _Pointer),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int32),
        ("load_mode", ctypes.c_int32),
        ("lazy_mode", ctypes.c_int32),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", _Pointer),
        ("progress_callback", _Pointer),
        ("progress_callback_user_data", _Pointer),
        ("kv_overrides", _Pointer),
        ("flags", ctypes.c_bool * 6),
    )


class _ContextParams(ctypes.Structure):
    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("n_rs_seq", ctypes.c_uint32),
        ("n_outputs_max", ctypes.c_uint32),
        ("n_outputs_max_per_seq", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("ctx_type", ctypes.c_int32),
        ("rope_scaling_type", ctypes.c_int32),
        ("pooling_type", ctypes.c_int32),
        ("attention_type", ctypes.c_int32),
        ("flash_attn_type", ctypes.c_int32),
        ("rope", ctypes.c_float * 6),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag_thold", ctypes.c_float),
        ("cb_eval", _Pointer),
        ("cb_eval_user_data", _Pointer),
        ("type_k", ctypes.c_int32),
        ("type_v", ctypes.c_int32),
        ("abort_callback", _Pointer),
        ("abort_callback_data", _Pointer),
        ("embeddings", ctypes.c_bool),
        ("offload_kqv", ctypes.c_bool),
        ("no_perf", ctypes.c_bool),
        ("op_offload", ctypes.c_bool),
        ("swa_full", ctypes.c_bool),
        ("kv_unified", ctypes.c_bool),
        ("samplers", _Pointer),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", _Pointer),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", _Pointer),
        ("embd", _Pointer),
        ("pos", _Pointer),
        ("n_seq_id", _Pointer),
        ("seq_id", _Pointer),
        ("logits", _Pointer),
    )


_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "flash_attn_type": -1,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "kv_unified": False,
}

_SIGNATURES = {
    "llama_log_set": (None, (_Log, _Pointer)),
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (_ModelParams, ()),
    "llama_context_default_params": (_ContextParams, ()),
    "llama_model_load_from_file": (_Pointer, (ctypes.c_char_p, _ModelParams)),
    "llama_init_from_model": (_Pointer, (_Pointer, _ContextParams)),
    "llama_free": (None, (_Pointer,)),
    "llama_get_memory": (_Pointer, (_Pointer,)),
    "llama_memory_seq_cp": (None, (_Pointer, *[ctypes.c_int32] * 4)),
    "llama_model_get_vocab": (_Pointer, (_Pointer,)),
    "llama_vocab_n_tokens": (ctypes.c_int32, (_Pointer,)),
    "llama_decode": (ctypes.c_int32, (_Pointer, _Batch)),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), (_Pointer, ctypes.c_int32)),
}


_ERROR = 4


def _say_errors(level: int, text: bytes, _: object) -> None:
    """It logs thousands of lines for every context."""
    if level == _ERROR:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


class Library:
    """One loaded libllama, with the kernels for this processor that lie beside it."""

    def __init__(self, folder: Path) -> None:
        core = ctypes.CDLL(str(next(folder.glob("libggml.v*.so"))), ctypes.RTLD_GLOBAL)
        self.c = ctypes.CDLL(str(next(folder.glob("libllama.v*.so"))))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        core.ggml_backend_load_all_from_path(str(folder).encode())
        self._log = _Log(_say_errors)
        self.c.llama_log_set(self._log, None)
        self.c.llama_backend_init()
        found = self.c.llama_context_default_params()
        for name, value in _DEFAULTS.items():
            if getattr(found, name) != value:
                raise SystemExit(f"{folder}: not llama.cpp v0.5.0: {name} has another default")


class Model:
    def __init__(self, library: Library, path: Path) -> None:
        self.c = library.c
        self._library = library  # which the C side calls back to log
        params = self.c.llama_model_default_params()
        params.n_gpu_layers = 0
        self.handle = self.c.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise SystemExit(f"{path}: llama.cpp does not load it")
        self.vocab_size = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.handle))


class Context:
    """KV for `num_rows` sequences. Unified: one pool for all of them, so that they can share."""

    def __init__(
        self, model: Model, num_rows: int, num_tokens: int, *, threads: int, unified: bool
    ) -> None:
        self._c, self._vocab_size = model.c, model.vocab_size
        params = self._c.llama_context_default_params()
        params.n_ctx, params.n_seq_max = num_tokens, num_rows
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION_ON
        params.kv_unified = unified
        self._handle = self._c.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise SystemExit(f"llama.cpp makes no context of {num_tokens} tokens")
        self._rows = np.arange(num_rows, dtype=np.int32)
        self._one = np.ones(NUM_BATCH, np.int32)

    def close(self) -> None:
        self._c.llama_free(self._handle)

    def share(self, source: int, target: int, length: int) -> None:
        """Let a sequence begin with the first tokens of another."""
        memory = self._c.llama_get_memory(self._handle)
        self._c.llama_memory_seq_cp(memory, source, target, 0, length)

    def decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (row, position, token, whether its logits count); the best next token of each
        that counts."""
        table = np.array(tokens, np.int32)
        rows, positions, ids = (np.ascontiguousarray(table[:, at]) for at in range(3))
        counts = table[:, 3].astype(np.int8)
        pointers = self._rows.ctypes.data + 4 * rows.astype(np.uint64)
        arrays = (ids, positions, self._one, pointers, counts)
        token, pos, n_seq_id, seq_id, logits = (array.ctypes.data for array in arrays)
        batch = _Batch(len(tokens), token, None, pos, n_seq_id, seq_id, logits)
        status = self._c.llama_decode(self._handle, batch)
        if status:
            raise SystemExit(f"llama_decode returned {status}")
        return [self._best(at) for at in np.flatnonzero(counts).tolist()]

    def _best(self, at: int) -> int:
        pointer = self._c.llama_get_logits_ith(self._handle, at)
        return int(np.ctypeslib.as_array(pointer, (self._vocab_size,)).argmax())

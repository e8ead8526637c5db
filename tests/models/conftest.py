"""The backends that models run on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from treadle.kernels.ops import Backend
from treadle.kernels.torch.backend import TorchBackend


def native_backend() -> Backend:
    """The native backend; skips the test where its extension module is not built."""
    try:
        importlib.import_module("treadle.kernels.native._native")
    except ImportError:
        pytest.skip("the native kernels are not built")
    backend: Backend = importlib.import_module("treadle.kernels.native.backend").NativeBackend(
        threads=2
    )
    return backend


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For transformers: tiny models gain nothing from more, and lose much on busy machines."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "native"], scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = TorchBackend(threads=1) if request.param == "torch" else native_backend()
    yield made
    made.close()

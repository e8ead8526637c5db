"""Devices and amounts of memory, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.config.byte_size import binary, gigabytes, parse_bytes
from treadle.config.device import KNOWN, Device, described
from treadle.errors import StartError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GB", 80 * 10**9),
        ("80 gb", 80 * 10**9),
        ("80G", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("80gi", 80 * 2**30),
        ("33.35GB", 33_350_000_000),
        ("512MiB", 512 * 2**20),
        ("1.5KiB", 1536),
        ("1234", 1234),
        ("1234B", 1234),
    ],
)
def test_amounts_are_exact(text: str, num_bytes: int) -> None:
    assert parse_bytes(text, "x") == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "80XB", "80iB", "1e3", "80 GB free"])
def test_what_is_no_amount_is_named(text: str) -> None:
    with pytest.raises(StartError, match=r"gpu-memory is .*; write an amount such as 80GB"):
        parse_bytes(text, "gpu-memory")


@given(st.integers(min_value=0, max_value=2**60))
def test_a_number_of_bytes_is_itself(num_bytes: int) -> None:
    assert parse_bytes(str(num_bytes), "x") == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (81920, "80 KiB"),
        (2**20, "1 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (5 * 2**50, "5,120 TiB"),
    ],
)
def test_binary_units(num_bytes: int, text: str) -> None:
    assert binary(num_bytes) == text


def test_gigabytes_lose_no_megabyte() -> None:
    assert gigabytes(35_775_000_000) == "35.775 GB"
    assert gigabytes(80 * 10**9) == "80 GB"
    assert gigabytes(1_234_567_000_000) == "1,234.567 GB"


def test_known_cards_have_about_the_memory_in_their_name() -> None:
    for name, device in KNOWN.items():
        if device.nominal_mib is not None:
            sold = int(name.rpartition("-")[2].removesuffix("gb"))
            assert 0.92 < device.nominal_mib / 1024 / sold <= 1, name


def test_a_size_as_sold_is_read_in_gib_by_rules_and_counted_in_bytes_by_sums() -> None:
    device = described("80GB")
    assert device.memory_bytes == 80 * 10**9
    assert device.nominal_mib == 81920
    assert described("79.6GiB").nominal_mib == 81510
    assert described("H100-80GB").nominal_mib == 81559
    assert device.has_gib(80)
    assert not described("h100-80gb").has_gib(80)
    assert described("unknown-gpu").has_gib(1) is None


def test_a_device_that_nobody_knows_is_refused_with_those_that_are() -> None:
    with pytest.raises(StartError, match=r"no device 'h900'; known are cpu, unknown-gpu, l4-24gb"):
        described("h900")
    with pytest.raises(StartError, match="at least a GiB"):
        described("80")


def test_a_near_name_is_offered() -> None:
    with pytest.raises(StartError, match=r"did you mean a100-40gb or a100-80gb\? Known are cpu"):
        described("A100")
    with pytest.raises(StartError, match=r"did you mean h100-80gb\?"):
        described("h100-80g")


def test_several_share_each_layer() -> None:
    four = described("4xH100-80GB")
    assert (four.name, four.count, four.title) == ("h100-80gb", 4, "4 × h100-80gb")
    assert described("8 × 80GB").memory_bytes == 80 * 10**9, "of one"
    with pytest.raises(StartError, match="only devices that are not here can be several"):
        described("2xcpu")
    for text in ("0x80GB", "x80GB", "4x"):
        with pytest.raises(StartError, match="there is no device"):
            described(text)


def test_devices_are_values() -> None:
    assert described("80GB") == Device("80GB", "cuda", 80 * 10**9, None)

"""GPU names: one card's spellings agree, different cards differ, and a request gets what it asked for."""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import gpus

SHARED = Path(__file__).parents[3] / "shared"

# Spelling and card: how drivers, marketplaces and people write them.
SPELLINGS = [
    ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("H100 SXM5", "H100-SXM"), ("H100-MEGA", "H100-SXM"),
    ("NVIDIA H100 PCIe", "H100-PCIe"), ("NVIDIA H100 NVL", "H100-NVL"), ("H100-94GB-NVL", "H100-NVL"),
    ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"), ("A100-80GB-SXM", "A100-80GB-SXM"),
    ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"), ("NVIDIA A100-PCIE-40GB", "A100-PCIe"), ("A100 (80 GB)", "A100-80GB"),
    ("NVIDIA  GeForce RTX 4090 ", "RTX4090"), ("RTX_4090", "RTX4090"), ("rtx4090", "RTX4090"), ("RTX 4090", "RTX4090"),
    ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"), ("RTX6000Ada", "RTX6000-Ada"), ("RTX-6000-Ada", "RTX6000-Ada"),
    ("RTX A6000", "RTXA6000"), ("A6000", "RTXA6000"), ("Quadro RTX 6000", "RTX6000"), ("NVIDIA RTX A4000", "RTXA4000"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000-Server"), ("RTXPRO6000WS", "RTXPRO6000-Workstation"),
    ("RTX 6000 Blackwell", "RTXPRO6000"), ("RTX 4500 Blackwell", "RTXPRO4500"), ("RTX\u20114090", "RTX4090"),
    ("NVIDIA A40", "A40"), ("Tesla V100-SXM2-32GB", "V100-32GB-SXM"), ("Tesla V100-PCIE-16GB", "V100-PCIe"),
    ("NVIDIA GeForce RTX 3080 Ti", "RTX3080-Ti"), ("RTX 4080 SUPER", "RTX4080-SUPER"), ("A10 (24 GB PCIe)", "A10"),
    ("Tesla T4", "T4"), ("T4g", "T4g"), ("NVIDIA L40S", "L40S"), ("NVIDIA L40", "L40"), ("NVIDIA L4", "L4"),
    ("Q RTX 8000", "RTX8000"), ("Q RTX 6000", "RTX6000"), ("Q RTX 4000", "RTX4000"), ("GTX 1650 S", "GTX1650-SUPER"),
    ("NVIDIA B300 SXM6 AC", "B300"), ("HGX B200", "B200"), ("GH200 SXM", "GH200"), ("RTX 4090 D", "RTX4090-D"),
    ("NVIDIA GH200 480GB", "GH200"), ("AMD Instinct MI300X OAM", "MI300X"), ("Radeon Pro V520", "V520"),
]  # fmt: skip


@pytest.mark.parametrize(("spelling", "card"), SPELLINGS)
def test_every_spelling_is_its_card(spelling: str, card: str) -> None:
    assert gpus.canonical(spelling) == card


def test_every_canonical_name_stands_for_itself() -> None:
    assert all(gpus.canonical(name) == name == gpus.canonical(f" nvidia {name.lower()}\n") for name in gpus.names())


def test_a_name_is_never_taken_by_its_beginning() -> None:
    different = ["A10", "A100", "A100-80GB", "A40", "A4000", "T4", "T4g", "L4", "L40", "L40S", "H100", "H100-NVL"]
    different += ["RTX6000", "RTXA6000", "RTX6000-Ada", "RTXPRO6000", "V100", "V100-32GB"]
    assert len({gpus.canonical(name) for name in different}) == len(different)
    assert not any(
        gpus.matches(one, other) for one in different for other in different if one != other and one != "H100"
    )


def test_the_case_of_many_spellings() -> None:
    path = SHARED / "cases" / "inputs" / "c14_names.json"
    if not path.is_file():
        pytest.skip("the shared cases are not here")
    found: dict[str, set[str]] = {}
    for spelling, card in json.loads(path.read_text(encoding="utf-8")):
        found.setdefault(card, set()).add(gpus.canonical(spelling))
    assert all(len(names) == 1 for names in found.values()), found
    assert len(set().union(*found.values())) == len(found)


@pytest.mark.parametrize("name", ["A100-40G", "", "B", "H10O", "nvidia", "RTX 40900", "A100-60GB"])
def test_an_unknown_card_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown GPU"):
        gpus.canonical(name)


def test_the_refusal_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown GPU 'A100-40G'; did you mean A100\?"):
        gpus.canonical("A100-40G")
    with pytest.raises(ValueError, match="is a TPU"):
        gpus.canonical("tpu-v2-8")


# Reported memory (MiB, or GB in a field that says MiB, or bytes), the card, and what it is sold with.
MEMORIES = [
    ("A100-80GB", 81920, 80), ("A100-80GB", 80, 80), ("RTX4090", 24564, 24), ("H200", 143771, 141), ("A10G", 22888, 24),
    ("L40S", 46068, 48), ("T4", 15360, 16), ("B200", 183359, 180), ("B300", 275040, 288), ("K80", 11441, 12),
    ("A100-80GB", 85_899_345_920, 80), ("RTX4090", 25_153_536, 24),
]  # fmt: skip


@pytest.mark.parametrize(("card", "reported", "sold"), MEMORIES)
def test_reported_memory_is_what_the_card_is_sold_with(card: str, reported: float, sold: float) -> None:
    assert gpus.nominal(reported, card) == gpus.card(card).memory == sold
    assert card == "K80" or gpus.nominal(reported) == sold  # 11.2 GiB may be a card of 11 or of 12
    assert gpus.matches(card, card, reported)
    assert gpus.matches(f"{sold}GB+", card, reported)
    assert not gpus.matches(f"{sold + 1}GB+", card, reported)


def test_the_case_of_units() -> None:
    path = SHARED / "cases" / "inputs" / "c17_units.json"
    if not path.is_file():
        pytest.skip("the shared cases are not here")
    cases = [case for case in json.loads(path.read_text(encoding="utf-8"))["cases"] if "gpu" in case]
    assert len(cases) == 4
    for case in cases:
        wanted = case["want"].removeprefix(">=")
        assert gpus.matches(f"{wanted}GB+", gpus.canonical(case["gpu"]), case["reported"]["value"]), case


@pytest.mark.parametrize(
    ("name", "reported", "card"),
    [("A100", 81920, "A100-80GB"), ("A100", 40960, "A100"), ("A100 SXM", 80, "A100-80GB-SXM"),
     ("A100-80GB", 40, "A100"), ("H100", 95830, "H100-NVL"), ("H100", 81559, "H100"),
     ("V100", 32768, "V100-32GB"), ("RTX4090", 49140, "RTX4090"),
     ("RTX3060", 8192, "RTX3060-8GB"), ("RTX 4060 Ti", 16380, "RTX4060-Ti-16GB"), ("RTX 4060 Ti", 8188, "RTX4060-Ti"),
     ("RTX 3080", 12288, "RTX3080-12GB"), ("Tesla P100-PCIE-12GB", 12198, "P100-12GB-PCIe"), ("L4", 5722, "L4")],
)  # fmt: skip
def test_of_one_name_sold_with_several_memories_the_reported_one_decides(name: str, reported: int, card: str) -> None:
    assert gpus.card(name, reported).name == card


@pytest.mark.parametrize(
    ("request_", "offered", "memory", "does"),
    [
        ("A100", "A100", 0, True), ("A100", "A100-80GB", 0, False), ("A100-80GB", "A100", 0, False),
        ("A100", "A100", 81920, False), ("A100-80GB", "A100", 81920, True), ("A100", "A100-SXM", 40, True),
        ("H100", "H100-SXM", 0, True), ("H100", "H100-NVL", 0, True), ("H100-SXM", "H100-PCIe", 0, False),
        ("H100-SXM", "H100", 0, False), ("L4", "L4", 5722, False), ("RTX3060", "RTX3060", 8192, False),
        ("24GB+", "RTX4090", 0, True), ("24GB+", "A10G", 22888, True), ("24GB", "A100", 0, False),
        ("24GB", "L4", 22888, True), ("48GB+", "RTX4090", 49140, True), ("nvidia:40GB+", "MI300X", 0, False),
        ("amd:40GB+", "MI300X", 0, True), ("nvidia:40GB+", "A100", 40960, True), ("24GB+", "L4", 5722, False),
        ("new card", "new card", 0, True), ("new card", "L4", 0, False), ("L4", "new card", 0, False),
    ],
)  # fmt: skip
def test_what_does_for_what(request_: str, offered: str, memory: float, does: bool) -> None:
    assert gpus.matches(request_, offered, memory) is does


def test_what_was_left_open_is_told() -> None:
    assert gpus.taken("H100", "H100-SXM") == "H100-SXM"
    assert gpus.taken("H100-SXM", "H100-SXM") == gpus.taken("L4", "L4", 22888) == ""
    assert gpus.taken("24GB+", "RTX4090", 24564) == "RTX4090 with 24 GB"


def test_a_wish_for_memory_has_one_form() -> None:
    assert [gpus.wanted(text) for text in ("24GB+", "nvidia:40gb+", "AMD:192 GiB", "rtx 4090")] == [
        "24GB+", "nvidia:40GB+", "amd:192GB", "RTX4090",
    ]  # fmt: skip
    for wrong in ("0GB+", "acme:24GB+", "24", "+"):
        with pytest.raises(ValueError, match=r"above zero|maker|unknown GPU"):
            gpus.wanted(wrong)


def test_what_and_how_many() -> None:
    asked = ["A100", "A100:8", "RTX 4090:2", "24GB+", "24GB+:2", "nvidia:40GB+", "nvidia:40GB+:2", "A100:0.5"]
    assert [gpus.counted(text) for text in asked] == [
        ("A100", 1), ("A100", 8), ("RTX4090", 2), ("24GB+", 1), ("24GB+", 2), ("nvidia:40GB+", 1), ("nvidia:40GB+", 2),
        ("A100", 1),
    ]  # fmt: skip
    for wrong in ("A100:0", "A100:-1", "A100:1.5", "A100:1e3", "A100:", "A100:x", "A100:00000"):
        with pytest.raises(ValueError, match=r"number of GPUs|unknown GPU"):
            gpus.counted(wrong)


def test_a_driver_that_names_no_form_contradicts_none() -> None:
    assert gpus.same("H200-SXM", "NVIDIA H200")
    assert gpus.same("A100-80GB", "NVIDIA A100-SXM4-80GB")
    assert not gpus.same("A100", "NVIDIA A100-SXM4-80GB")
    assert not gpus.same("H100-PCIe", "NVIDIA H100 80GB HBM3")


@given(st.text(max_size=12), st.text(max_size=12), st.floats(0, 1e6))
def test_matching_never_raises(one: str, other: str, memory: float) -> None:
    assert gpus.matches(one, other, memory) in (True, False)
    gpus.taken(one, other, memory)


def test_real_catalogs_name_known_cards_only() -> None:
    folder = SHARED / "data" / "catalog"
    if not folder.is_dir():
        pytest.skip("the shared catalogs are not here")
    seen, unknown = set(), set()
    for path in folder.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                seen.add(row["AcceleratorName"])
                if info := row.get("GpuInfo"):
                    seen.update(gpu["Name"] for gpu in ast.literal_eval(info)["Gpus"])
    for name in seen - {""}:
        try:
            gpus.canonical(name)
        except ValueError:
            unknown.add(name)
    assert len(seen) > 60
    assert {name for name in unknown if not name.startswith("tpu-")} == set()


@pytest.mark.parametrize(
    ("spelling", "card"),
    [
        ("NVIDIA® GeForce RTX™ 4090", "RTX4090"), ("ＲＴＸ　４０９０", "RTX4090"), ("4090", "RTX4090"),
        ("1080 Ti", "GTX1080-Ti"),
        ("A100 [SXM4 80GB]", "A100-80GB-SXM"), ("NVIDIA H200 141GB HBM3e", "H200"), ("6000 Ada", "RTX6000-Ada"),
        ("RTX 4090 D", "RTX4090-D"), ("NVIDIA RTX A6000 Ada", "RTX6000-Ada"),
        ("RTX PRO 6000 WK", "RTXPRO6000-Workstation"),
        ("Tesla V100S-PCIE-32GB", "V100S"), ("AMD Instinct MI210", "MI210"), ("nvidia-h100-mega-80gb", "H100-SXM"),
    ],
)  # fmt: skip
def test_more_of_the_ways_in_which_cards_are_written(spelling: str, card: str) -> None:
    assert gpus.canonical(spelling) == card


@pytest.mark.parametrize(
    "name", ["6000", "A100-SXM4-80GB MIG 1g.10gb", "RTX 4090 Laptop GPU", "RTX4090Ti", "A100-SXM-64GB", "4090 6000"]
)
def test_what_is_another_card_or_no_card_is_not_guessed(name: str) -> None:
    with pytest.raises(ValueError, match="unknown GPU"):
        gpus.canonical(name)

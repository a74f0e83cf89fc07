"""One canonical name per GPU model; the common spellings map to it.

A name is looked up whole, never by its beginning: `A100` is the 40 GB card and is not `A100-80GB`, `A40` is not
`RTXA4000`. The canonical names are SkyPilot's where it has one (its catalog, v8), so task files carry over.
"""

from __future__ import annotations

import difflib
import re

# canonical name: other spellings, without the vendor's words and separators, which `_folded` takes away.
_CARDS: dict[str, tuple[str, ...]] = {
    "A10": (),
    "A10G": (),
    "A16": (),
    "A30": (),
    "A40": (),
    "A100": ("A100-40GB", "A100-PCIE-40GB", "A100 40GB PCIe", "A100-SXM4-40GB", "A100-40GB-SXM"),
    "A100-80GB": ("A100-PCIE-80GB", "A100 80GB PCIe"),
    "A100-80GB-SXM": ("A100-SXM4-80GB", "A100-SXM-80GB"),
    "B200": ("B200-SXM",),
    "B300": ("B300-SXM",),
    "GB200": (),
    "GH200": (),
    "H100": ("H100-80GB",),
    "H100-NVL": (),
    "H100-PCIe": ("H100-PCIE-80GB",),
    "H100-SXM": ("H100-SXM5", "H100 80GB HBM3", "H100-80GB-SXM"),
    "H200": (),
    "H200-NVL": (),
    "H200-SXM": ("H200-SXM5",),
    "K80": (),
    "L4": (),
    "L40": (),
    "L40S": (),
    "M60": (),
    "MI250": ("MI250X",),
    "MI300X": (),
    "MI325X": (),
    "P4": (),
    "P40": (),
    "P100": ("P100-16GB", "P100-PCIE-16GB"),
    "RTX2080-Ti": (),
    "RTX3060": (),
    "RTX3060-Ti": (),
    "RTX3070": (),
    "RTX3070-Ti": (),
    "RTX3080": (),
    "RTX3080-Ti": (),
    "RTX3090": (),
    "RTX3090-Ti": (),
    "RTX4060-Ti": (),
    "RTX4070": (),
    "RTX4070-Ti": (),
    "RTX4080": (),
    "RTX4080-SUPER": (),
    "RTX4090": (),
    "RTX5070-Ti": (),
    "RTX5080": (),
    "RTX5090": (),
    "RTX4000-Ada": ("RTX 4000 Ada Generation",),
    "RTX5000-Ada": ("RTX 5000 Ada Generation",),
    "RTX6000": (),
    "RTX6000-Ada": ("RTX 6000 Ada Generation",),
    "RTXA2000": ("A2000",),
    "RTXA4000": ("A4000",),
    "RTXA4500": ("A4500",),
    "RTXA5000": ("A5000",),
    "RTXA6000": ("A6000",),
    "RTXPRO6000": ("RTX PRO 6000 Blackwell",),
    "T4": (),
    "T4g": (),
    "V100": ("V100-16GB", "V100-SXM2", "V100-SXM2-16GB", "V100-PCIE-16GB"),
    "V100-32GB": ("V100-SXM2-32GB", "V100-32GB-SXM2", "V100-PCIE-32GB"),
}
_VENDOR = re.compile(r"^(NVIDIA|AMD|TESLA|QUADRO|GEFORCE|INSTINCT)+")
_SEPARATORS = re.compile(r"[\s_-]+")


def _folded(name: str) -> str:
    return _VENDOR.sub("", _SEPARATORS.sub("", name.upper()))


_KNOWN = {_folded(spelling): card for card, others in _CARDS.items() for spelling in (card, *others)}


def canonical(name: str) -> str:
    """The canonical name of a card. Raises ValueError for an unknown one, with the nearest known name."""
    folded = _folded(name)
    if card := _KNOWN.get(folded):
        return card
    near = difflib.get_close_matches(folded, _KNOWN, n=1, cutoff=0.5)
    raise ValueError(f"unknown GPU {name.strip()!r}" + (f"; did you mean {_KNOWN[near[0]]}?" if near else ""))


def names() -> tuple[str, ...]:
    """Every canonical name, sorted."""
    return tuple(sorted(_CARDS))

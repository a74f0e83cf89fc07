"""GPUs by name: every spelling maps to one card, a family of cards, or a wish for memory.

A name is looked up whole, never by its beginning: `A100` is the 40 GB card and is not `A100-80GB`, `A40` is not
`RTXA4000`. A *family* is a model with its memory, such as `H100`; its *forms*, such as `H100-SXM` and `H100-PCIe`, are
cards of their own. A request for a family takes any of its forms, and `taken` says which it was. The names are
SkyPilot's where it has one (its catalog, v8), so task files carry over.

Memory is what a card is sold with, in GiB, as in "the 80 GB card". Drivers and price lists report some percent less, or
the same number in another unit: `nominal` brings these back.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

# Family: memory, forms, other spellings of the model. A form with memory of its own is written `NVL:94`.
# Memory as the makers' data sheets have it; of boards with two processors (K80, M60, A16), of one, as drivers count.
_FAMILIES: dict[str, tuple[float, str, tuple[str, ...]]] = {
    "A2": (16, "", ()),
    "A10": (24, "", ()),
    "A10G": (24, "", ()),
    "A16": (16, "", ()),
    "A30": (24, "", ("RTX A30",)),
    "A40": (48, "", ()),
    "A100": (40, "SXM PCIe", ()),
    "A100-80GB": (80, "SXM PCIe", ()),
    "A100X": (80, "", ()),
    "A800": (80, "SXM PCIe", ()),
    "A800-40GB": (40, "", ("A800-ACTIVE",)),
    "B200": (180, "", ("B200-SXM", "B200-SXM6", "B200-192GB")),
    "B300": (288, "", ("B300-SXM", "B300-SXM6", "B300-SXM6-AC")),
    "GB200": (186, "", ()),
    "GB300": (288, "", ()),
    "GH200": (96, "", ("GH200-480GB", "GH200-120GB", "GH200-SXM")),
    "GH200-144GB": (144, "", ()),
    "H20": (96, "", ()),
    "H100": (80, "SXM PCIe NVL:94", ()),
    "H200": (141, "SXM NVL", ()),
    "H800": (80, "SXM PCIe", ()),
    "K80": (12, "", ()),
    "L2": (24, "", ()),
    "L4": (24, "", ()),
    "L20": (48, "", ()),
    "L40": (48, "", ()),
    "L40G": (24, "", ()),
    "L40S": (48, "", ()),
    "M40": (24, "", ()),
    "M60": (8, "", ()),
    "P4": (8, "", ()),
    "P40": (24, "", ()),
    "P100": (16, "SXM PCIe", ()),
    "P100-12GB": (12, "PCIe", ()),
    "T4": (16, "", ()),
    "T4g": (16, "", ()),
    "V100": (16, "SXM PCIe FHHL", ()),
    "V100-32GB": (32, "SXM PCIe", ()),
    "V100S": (32, "", ()),
    "GTX1050-Ti": (4, "", ()),
    "GTX1060": (6, "", ()),
    "GTX1070": (8, "", ()),
    "GTX1070-Ti": (8, "", ()),
    "GTX1080": (8, "", ()),
    "GTX1080-Ti": (11, "", ()),
    "GTX1650": (4, "", ()),
    "GTX1650-SUPER": (4, "", ("GTX1650S",)),
    "GTX1660": (6, "", ()),
    "GTX1660-SUPER": (6, "", ("GTX1660S",)),
    "GTX1660-Ti": (6, "", ()),
    "RTX2060": (6, "", ()),
    "RTX2060-SUPER": (8, "", ("RTX2060S",)),
    "RTX2070": (8, "", ()),
    "RTX2070-SUPER": (8, "", ("RTX2070S",)),
    "RTX2080": (8, "", ()),
    "RTX2080-SUPER": (8, "", ("RTX2080S",)),
    "RTX2080-Ti": (11, "", ()),
    "RTX3050": (8, "", ()),
    "RTX3060": (12, "", ()),
    "RTX3060-8GB": (8, "", ()),
    "RTX3060-Ti": (8, "", ()),
    "RTX3070": (8, "", ()),
    "RTX3070-Ti": (8, "", ()),
    "RTX3080": (10, "", ()),
    "RTX3080-12GB": (12, "", ()),
    "RTX3080-Ti": (12, "", ()),
    "RTX3090": (24, "", ()),
    "RTX3090-Ti": (24, "", ()),
    "RTX4060": (8, "", ()),
    "RTX4060-Ti": (8, "", ()),
    "RTX4060-Ti-16GB": (16, "", ()),
    "RTX4070": (12, "", ()),
    "RTX4070-SUPER": (12, "", ("RTX4070S",)),
    "RTX4070-Ti": (12, "", ()),
    "RTX4070-Ti-SUPER": (16, "", ("RTX4070S-Ti", "RTX4070-TiS")),
    "RTX4080": (16, "", ()),
    "RTX4080-SUPER": (16, "", ("RTX4080S",)),
    "RTX4090": (24, "", ()),
    "RTX4090-D": (24, "", ()),
    "RTX5060": (8, "", ()),
    "RTX5060-Ti": (8, "", ()),
    "RTX5060-Ti-16GB": (16, "", ()),
    "RTX5070": (12, "", ()),
    "RTX5070-Ti": (16, "", ()),
    "RTX5080": (16, "", ()),
    "RTX5090": (32, "", ()),
    "RTX5090-D": (32, "", ()),
    "TITAN-RTX": (24, "", ()),
    "TITAN-V": (12, "", ()),
    "TITAN-Xp": (12, "", ()),
    "M4000": (8, "", ()),
    "P2000": (5, "", ()),
    "P4000": (8, "", ()),
    "P5000": (16, "", ()),
    "P6000": (24, "", ()),
    "GV100": (32, "", ()),
    "RTX4000": (8, "", ()),
    "RTX5000": (16, "", ()),
    "RTX6000": (24, "", ()),
    "RTX8000": (48, "", ()),
    "RTXA2000": (6, "", ("A2000",)),
    "RTXA2000-12GB": (12, "", ("A2000",)),
    "RTXA4000": (16, "", ("A4000",)),
    "RTXA4500": (20, "", ("A4500",)),
    "RTXA5000": (24, "", ("A5000",)),
    "RTXA5500": (24, "", ("A5500",)),
    "RTXA6000": (48, "", ("A6000",)),
    "RTX2000-Ada": (16, "", ()),
    "RTX4000-Ada": (20, "SFF", ("RTX4000-SFF-Ada",)),
    "RTX4500-Ada": (24, "", ()),
    "RTX5000-Ada": (32, "", ("A5000-Ada",)),
    "RTX5880-Ada": (48, "", ()),
    "RTX6000-Ada": (48, "", ("A6000-Ada", "RTX-A6000-Ada")),
    "RTXPRO2000": (16, "", ()),
    "RTXPRO4000": (24, "", ()),
    "RTXPRO4500": (32, "", ()),
    "RTXPRO5000": (48, "", ()),
    "RTXPRO6000": (96, "Server Workstation MaxQ", ()),
    "MI25": (16, "", ()),
    "MI50": (16, "", ()),
    "MI100": (32, "", ()),
    "MI210": (64, "", ()),
    "MI250": (128, "", ("MI250X",)),
    "MI300A": (128, "", ()),
    "MI300X": (192, "", ()),
    "MI325X": (256, "", ()),
    "MI355X": (288, "", ()),
    "RX7900XTX": (24, "", ()),
    "W7900": (48, "", ("Pro-W7900",)),
    "V520": (8, "", ("Pro-V520",)),
    "Gaudi": (32, "", ("Gaudi-HL-205", "HL-205")),
    "Gaudi2": (96, "", ()),
    "Gaudi3": (128, "", ()),
}
_FORMS: dict[str, tuple[str, ...]] = {
    "SXM": ("SXM", "SXM2", "SXM3", "SXM4", "SXM5", "NVLINK"),
    "PCIe": ("PCIE",),
    "Server": ("SERVER", "S"),
    "Workstation": ("WORKSTATION", "WS", "WK"),
    "MaxQ": ("MAXQ", "MAXQWORKSTATION"),
}
# Spellings that no rule makes. `H100 80GB HBM3` is what the driver calls the SXM card.
_ODD = {
    "H100-SXM": ("H100 80GB HBM3", "H100 HBM3", "H100-MEGA", "H100-MEGA-80GB"),
    "RTXPRO6000": ("RTX 6000 PRO",),
    "RTXPRO6000-Server": ("RTX PRO Server 6000",),
    "RTX4000-Ada-SFF": ("RTX4000-SFF-Ada",),
}
_VENDORS = {
    "AMD": (
        "MI25", "MI50", "MI100", "MI210", "MI250", "MI300A", "MI300X", "MI325X", "MI355X", "RX7900XTX", "V520", "W7900",
    ),
    "Intel": ("Gaudi", "Gaudi2", "Gaudi3"),
}  # fmt: skip
_VENDOR_WORDS = re.compile(r"^(NVIDIA|AMD|INTEL|TESLA|QUADRO|Q(?=RTX)|HGX|GEFORCE|INSTINCT|RADEON)+")
# "RTX 6000 Blackwell" is short for the RTX PRO 6000, and never the RTX 6000 of three generations before.
_FILLING = re.compile(r"GENERATION|EDITION|(?<!RTX\d[05]00)BLACKWELL|GPU|(?<=\d)OAM|(?<=X)OAM")
_SEPARATORS = re.compile(r"[\s_()\[\]{}\"'®™\u00ad\u200b\u2010-\u2015\u2212\ufeff-]+")
# Read only where the whole name is unknown: the kind of memory, and consumer cards without RTX or GTX.
_MEMORY_KIND = re.compile(r"HBM\dE?$|GDDR\dX?$")
_BARE = re.compile(r"(?:(?P<rtx>[2345]0\d0)|(?P<gtx>1[06]\d0))(?:TI|SUPER|S|D)*|\d{4}ADA")
_PRO = re.compile(r"^RTX(\d[05]00)BLACKWELL")
_SELECTOR = re.compile(r"(?:(?P<vendor>[a-z]+):)?(?P<size>\d+(?:\.\d+)?)\s*Gi?B(?P<more>\+)?", re.IGNORECASE)
_AMOUNT = re.compile(r"-\d+GB$")
_SHORT = 0.92
"""The least share of its nominal memory that a whole card reports: A10G 22,888 MiB of 24 GB, B300 275,040 of 288."""
_LONG = 1.03
_UNITS = (1e9, 1e6, 1e3)
"""A number above these is bytes, KiB or MiB, whatever its field is called: no card has so many of the next unit, and
none so few of its own."""


@dataclass(frozen=True, slots=True)
class Card:
    """One model. family: its name without a form; form: SXM, PCIe, NVL …, empty where there is but one, or none told.

    memory: GiB as sold. vendor: NVIDIA, AMD or Intel.
    """

    name: str
    family: str
    form: str
    memory: float
    vendor: str


def _table() -> tuple[dict[str, Card], dict[str, Card]]:
    """The cards by name, and by every spelling. Of two cards that could share a spelling the first family keeps it."""
    cards: dict[str, Card] = {}
    known: dict[str, Card] = {}
    for family, (memory, forms, aliases) in _FAMILIES.items():
        model, inside = _AMOUNT.sub("", family), bool(_AMOUNT.search(family))
        vendor = next((vendor for vendor, models in _VENDORS.items() if model in models), "NVIDIA")
        for form in ("", *forms.split()):
            form, _, own = form.partition(":")  # noqa: PLW2901
            made = Card(f"{family}-{form}".rstrip("-"), family, form, float(own or memory), vendor)
            cards[made.name] = made
            shapes = ("",) if not form else tuple(_FORMS.get(form, (form.upper(),)))
            shapes += ("PCIE",) if not forms else ()
            # `A100-80GB` is only that card where the memory is named.
            sizes = (f"{made.memory:g}GB",) if inside else ("", f"{made.memory:g}GB")
            for name in (model if inside else family, *aliases):
                for shape in shapes:
                    for amount in sizes:
                        known.setdefault(_folded(f"{name}-{amount}-{shape}"), made)
                        known.setdefault(_folded(f"{name}-{shape}-{amount}"), made)
    for name, spellings in _ODD.items():
        known.update({_folded(spelling): cards[name] for spelling in spellings})
    return cards, known


def _folded(name: str) -> str:
    plain = unicodedata.normalize("NFKC", _SEPARATORS.sub("", name)).upper()
    return _FILLING.sub("", _VENDOR_WORDS.sub("", plain))


def _second_readings(folded: str) -> Iterator[str]:
    """What an unknown name may mean without doubt."""
    yield _MEMORY_KIND.sub("", folded)
    yield _PRO.sub(r"RTXPRO\1", folded)
    if (bare := _BARE.fullmatch(folded)) is not None:
        yield f"{'GTX' if bare['gtx'] else 'RTX'}{folded}"


_CARDS, _KNOWN = _table()
_SIZES = sorted({card.memory for card in _CARDS.values()})


def names() -> tuple[str, ...]:
    """Every canonical name, sorted."""
    return tuple(sorted(_CARDS))


def canonical(name: str) -> str:
    """The canonical name of a card. Raises ValueError for an unknown one, with the nearest known name."""
    return card(name).name


@lru_cache(maxsize=4096)
def card(name: str, memory: float = 0.0) -> Card:
    """The card of that name. memory: what its machine reports, GiB or MiB, 0 where it does not.

    Where one name is sold with several memories, as A100 is, the reported one decides. Raises ValueError as
    `canonical`.
    """
    folded = _folded(name)
    found = _KNOWN.get(folded) or next((_KNOWN[name] for name in _second_readings(folded) if name in _KNOWN), None)
    if found is None:
        if folded.startswith("TPU"):
            raise ValueError(f"{name.strip()!r} is a TPU; only GPUs can be asked for")
        near = difflib.get_close_matches(folded, _KNOWN, n=1, cutoff=0.5)
        raise ValueError(f"unknown GPU {name.strip()!r}" + (f"; did you mean {_KNOWN[near[0]].name}?" if near else ""))
    if memory and not _is(memory, found.memory):
        others = [c for c in _CARDS.values() if _model(c) == _model(found) and _is(memory, c.memory)]
        # The form that was named counts; where none was, the family before its forms.
        others.sort(key=lambda c: (c.form != found.form, bool(c.form)))
        if others and (others[0].form == found.form or not found.form):
            return others[0]
    return found


def memories(name: str) -> tuple[float, ...]:
    """GiB of every card that is sold under that name, the one that it alone means first; (0,) for one nobody knows.

    `RTX 3080` may be of 10 or of 12, and price lists and drivers call both the same.
    """
    try:
        found = card(name)
    except ValueError:
        return (0.0,)
    return tuple(dict.fromkeys((found.memory, *(c.memory for c in _CARDS.values() if _model(c) == _model(found)))))


def _model(of: Card) -> str:
    return _AMOUNT.sub("", of.family)


def _gib(memory: float) -> float:
    return memory / 1024.0 ** next((3 - n for n, least in enumerate(_UNITS) if memory > least), 0)


def _is(reported: float, memory: float) -> bool:
    return _SHORT * memory <= _gib(reported) <= _LONG * memory


def lacks(reported: float, memory: float) -> bool:
    """Is what a machine reports less than a whole card of so many GiB has?"""
    return _gib(reported) < _SHORT * memory


def nominal(reported: float, name: str = "") -> float:
    """The GiB that a card is sold with, from what a machine or a price list reports of it, in GiB (or GB), MiB,
    KiB or bytes.

    name: the card, where it is known. 81920 and 80 are 80; 24564 is 24; 143771 is 141. What is no whole card's memory,
    as a share of one, stays as it is.
    """
    gib = _gib(reported)
    if name:
        try:
            found = card(name, reported)
        except ValueError:
            pass
        else:
            if _is(reported, found.memory) or gib < found.memory:
                return found.memory if _is(reported, found.memory) else gib
    fitting = [size for size in _SIZES if _is(reported, size)]
    return min(fitting, key=lambda size: abs(size - gib)) if fitting else gib


def wanted(text: str) -> str:
    """What may be asked for, in canonical form: a card, a family, or memory as `24GB`, `24GB+`, `amd:40GB+`.

    Memory is that of NVIDIA's cards where no maker is named. Raises ValueError.
    """
    selector = _SELECTOR.fullmatch(text.strip())
    if selector is None:
        return canonical(text)
    vendor = selector["vendor"]
    if vendor and vendor.upper() not in ("NVIDIA", "AMD", "INTEL"):
        raise ValueError(f"unknown maker {vendor!r} in {text.strip()!r}: nvidia, amd or intel")
    if not float(selector["size"]) > 0:
        raise ValueError(f"the memory must be above zero: {text.strip()!r}")
    return (f"{vendor.lower()}:" if vendor else "") + f"{float(selector['size']):g}GB{selector['more'] or ''}"


def counted(text: str) -> tuple[str, int]:
    """What and how many from `A100`, `A100:8`, `24GB+:2`, `nvidia:40GB+:2`. Raises ValueError.

    A share of a card is the whole card: `A100:0.5` is one, since nobody rents out less.
    """
    name, colon, number = text.strip().rpartition(":")
    if not colon or not re.match(r"[-+.\d]|$", number) or _SELECTOR.fullmatch(number):
        return wanted(text), 1
    if not re.fullmatch(r"\d{1,4}|0?\.\d{1,6}", number, re.ASCII) or not float(number):
        raise ValueError(f"the number of GPUs must be a whole number above zero, or a share of one: {text.strip()!r}")
    return wanted(name), math.ceil(float(number))


@lru_cache(maxsize=65536)
def matches(request: str, offered: str, memory: float = 0.0) -> bool:
    """Does an offered card do for a request, both canonical? memory: what the offer reports, 0 where it does not.

    A request without a form takes any form of its family; one with a form takes that form only. A share of a card is
    not the card. Never raises: names nobody knows match only themselves.
    """
    try:
        found = card(offered, memory)
    except ValueError:
        return request == offered
    if memory and lacks(memory, found.memory):
        return False  # a share of the card, or a smaller edition of it
    if (selector := _SELECTOR.fullmatch(request)) is not None:
        has = max(found.memory, nominal(memory, found.name))
        # Programs and images are CUDA's unless they say otherwise: the cheapest AMD card would only make them fail.
        size, vendor = float(selector["size"]), selector["vendor"] or "NVIDIA"
        enough = has >= size if selector["more"] else _is(size, has) or has == size
        return enough and vendor.upper() == found.vendor.upper()
    try:
        asked = card(request)
    except ValueError:
        return request == offered
    return asked.family == found.family and asked.form in ("", found.form)


def same(one: str, other: str) -> bool:
    """May these two names mean one card? As `matches`, but a form that either leaves out is no difference."""
    try:
        first, second = card(one), card(other)
    except ValueError:
        return one == other
    return first.family == second.family and (first.form == second.form or not first.form or not second.form)


@lru_cache(maxsize=65536)
def taken(request: str, offered: str, memory: float = 0.0) -> str:
    """What a request that left something open got: `H100-SXM`, `RTX4090 with 24 GB`; empty where nothing was open."""
    try:
        found = card(offered, memory)
    except ValueError:
        return ""
    if _SELECTOR.fullmatch(request) is not None:
        return f"{found.name} with {max(found.memory, nominal(memory, found.name)):g} GB"
    return "" if found.name == request else found.name

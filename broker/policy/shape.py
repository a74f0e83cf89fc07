"""Is a machine what was asked for? Its cards, their number, and the sizes, which are at least."""

from __future__ import annotations

from broker import gpus, images
from broker.offer import Market, Offer, OfferQuery
from broker.policy.infra import matcher
from broker.provider import Kind


def fits(offer: Offer, query: OfferQuery) -> bool:
    """Is the offer what was asked for? A provider may answer more than that."""
    return offer.market in query.markets and matcher(query.infra)(offer) and not misfit(offer, query)


def misfit(offer: Offer, query: OfferQuery) -> str:
    """Why the machine is not what the query asks for; empty where it is."""
    if offer.market is Market.SPOT and Market.SPOT not in query.markets:
        return "use_spot: false for these resources"
    if query.gpu:
        if offer.provider == "local":
            return "local is this computer and rents out no GPU"
        if offer.gpu_count != max(query.gpu_count, 1) or not gpus.matches(query.gpu, offer.gpu or "", offer.gpu_memory):
            return f"has {_cards(offer)}, not {query.gpu}:{max(query.gpu_count, 1)}"
    if query.cpus and offer.cpus < query.cpus:
        return f"has {offer.cpus:g} CPUs, not {query.cpus:g}"
    if query.memory and offer.memory < query.memory:
        return f"has {offer.memory:g} GiB memory, not {query.memory:g}"
    architecture = offer.extra.get("architecture")
    if architecture is not None and (wrong := images.fits(Kind.VM, query.image, architecture)):
        return wrong
    if offer.disk and offer.disk < query.disk:
        return f"has {offer.disk:g} GiB disk, not {query.disk:g}"
    return ""


def _cards(offer: Offer) -> str:
    """The offer's GPUs for people, with their memory where the name does not tell it."""
    if not offer.gpu:
        return "no GPU"
    try:
        card = gpus.card(offer.gpu, offer.gpu_memory)
    except ValueError:
        return f"{offer.gpu}:{offer.gpu_count}"
    sold = gpus.nominal(offer.gpu_memory, card.name) if offer.gpu_memory else card.memory
    return f"{card.name}:{offer.gpu_count}" + (f" with {sold:.3g} GB" if sold != card.memory else "")

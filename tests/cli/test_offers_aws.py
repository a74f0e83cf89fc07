"""`broker offers` over EC2: every part of a price that a person decides by."""

from __future__ import annotations

import json
import re

from cli.command import Cli
from clouds.aws import inputs
from clouds.aws.server import Aws


def test_eight_h100s_by_zone_with_all_that_a_price_is_made_of(cli: Cli, aws: Aws) -> None:
    """Case 9: where spot costs what a machine on demand does, it saves 0%."""
    inputs.load_prices(aws.world, "data/catalog/v8_aws_gpu_sample.csv")
    aws.world.enabled = ["us-east-1", "us-east-2"]
    aws.world.advisor = inputs.data("data/api/aws/SHAPE_ONLY_spot_advisor.json")
    cli.env.update({**aws.variables(), "COLUMNS": "240"})
    advisor = json.dumps(aws.settings()["advisor_url"])
    (cli.folder / "config.toml").write_text(f"[providers.aws]\nadvisor_url = {advisor}\n")
    lines = cli("offers", "H100:8", "--infra", "aws").stdout.splitlines()
    head = re.split(r"\s{2,}", lines[0].strip())
    for column in ("MACHINE", "DISK", "ADDRESS", "USD/h", "USD/GPU-h", "SAVES", "TAKEN/MONTH", "PRICE OF", "NOTICE"):
        assert column in head, head

    def row(zone: str, market: str) -> list[str]:
        (line,) = [line for line in lines if f"{zone} " in line and f" {market} " in line]
        return re.split(r"\s{2,}", line.strip())[1:]

    best, tie, listed = (row("aws/us-east-2a", "spot"), row("us-east-1b", "spot"), row("us-east-1b", "on-demand"))
    assert {"p5.48xlarge", "11.25", "80%", "120 s"} <= set(best)
    machine, disk, address, hour = (float(cell) for cell in best[best.index("11.25") :][:4])
    assert disk > 0 < address
    assert hour == round(machine + disk + address, 2)
    assert any(cell.endswith("d ago") for cell in best), "the price's age"
    assert {"55.04", "0%", "> 20 %"} <= set(tie)
    assert "55.04" in listed
    assert not any("%" in cell for cell in listed)
    assert any("a local zone needs a subnet" in cell for cell in row("us-east-1-atl2-1a", "spot"))

"""Tests; also their child processes can import torchvision, timm and peft beside a CPU build of torch."""

import sys

if sys.modules.get("torch", sys) is not None:  # tests of viewers block torch with a None
    from tests.torchvision_ops import declare

    declare()

"""The mark of tests that need the C kernels. No tests in here."""

import pytest
import torch

from tsr_lightning.modeling.kernels import Kernels

needs_compiler = pytest.mark.skipif(
    not Kernels.AUTO.uses_native(torch.device("cpu"), torch.float32), reason="there is no C compiler"
)

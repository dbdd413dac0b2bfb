"""Every name of torch that is not public. Each is used here alone and has a test of its own.

`torch._foreach_*` apply one operation to a list of tensors in one call; torch's own optimisers are built on
them. The forward-mode level and the common base of batch-normalisation layers have no public name.
"""

import torch
import torch.autograd.forward_ad as fwd
from torch import nn

BatchNorm: type[nn.Module] = nn.modules.batchnorm._NormBase

add_ = torch._foreach_add_  # x += scalar
mul_ = torch._foreach_mul_  # x *= scalar
div_ = torch._foreach_div_  # x /= scalar
sqrt = torch._foreach_sqrt
lerp_ = torch._foreach_lerp_  # x += weight (y - x)
addcmul_ = torch._foreach_addcmul_  # x += scale y z
addcdiv_ = torch._foreach_addcdiv_  # x += scale y / z


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is under way in this process."""
    return fwd._current_level >= 0

"""Group sequence policy optimisation, by turn."""

from dataclasses import dataclass, field

from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.surrogates import Surrogate, TurnClipped


@dataclass(frozen=True)
class GSPO(PolicyGradient):
    """GSPO (https://arxiv.org/abs/2507.18071): GRPO with one importance ratio per turn, which is clipped as a whole.

        s = exp(mean over the turn's tokens of log(pi / pi_old)),   loss = -min(s A, clip(s, 1 - low, 1 + high) A)

    A turn was sampled as a whole, so that it is clipped or trained on as a whole. It matters where a rollout is used
    for several optimizer steps; in the first, every ratio is 1 and GSPO is GRPO.

    Departs from the paper: the sequence is the turn, because between two turns stand tokens that the policy did not
    sample, and a ratio over a whole trajectory would mix turns of different observations. The gradient is GSPO-token's
    (equation 13), so that advantages may differ within a turn. A trajectory still counts once, whatever its turns.
    """

    surrogate: Surrogate = field(default_factory=TurnClipped)

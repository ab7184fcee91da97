"""Closes environments that are not used again."""

import logging

import gymnasium

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.boundary import name_of
from tsr_lightning.envs.process import ProcessEnv
from tsr_lightning.envs.retried import describe

log = logging.getLogger(__name__)


def close(env: Branchable) -> None:
    """Closes an environment, where it can be closed."""
    if isinstance(env, gymnasium.Env | ProcessEnv):
        env.close()


def discard(env: Branchable) -> None:
    """Closes an environment whose episodes are complete. A failure is logged as a warning."""
    try:
        close(env)
    except Exception as error:
        log.warning("close of %s failed, and the run goes on: %s", name_of(env), describe(error))

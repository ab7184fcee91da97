"""Lightning callbacks for TSR Lightning. They import `tsr_lightning`, never the other way."""

from callbacks.collapse import CollapseGuard
from callbacks.conversation_log import ConversationLog
from callbacks.episode_log import EpisodeLog
from callbacks.evaluation import Evaluation
from callbacks.instance_filter import InstanceFilter
from callbacks.progress import RolloutProgressBar
from callbacks.prompt_information import PromptInformation
from callbacks.trajectory_log import TrajectoryLog

__all__ = [
    "CollapseGuard",
    "ConversationLog",
    "EpisodeLog",
    "Evaluation",
    "InstanceFilter",
    "PromptInformation",
    "RolloutProgressBar",
    "TrajectoryLog",
]

"""How SIGTERM ends a run."""

import logging
import signal
from types import FrameType

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose, _SignalConnector

from tsr_lightning.signals import terminate

_RANK_ZERO = logging.getLogger("lightning.pytorch.utilities.rank_zero")


def _without_its_sentence(record: logging.LogRecord) -> bool:
    """Drops what Lightning says of Ctrl-C: the run's own sentence follows (`stopping.py`)."""
    return "Detected KeyboardInterrupt" not in record.getMessage()


class Signals(_SignalConnector):
    """Ends a run where SIGTERM arrives, as Ctrl-C does. Lightning waits for the end of a batch, and a rollout or an
    evaluation may take longer than the sender waits; between several ranks it sends in the handler, into whatever they
    are sending.

    Where SLURM requeues the job, its own handlers stay alone in force: they write a checkpoint at its signal, let
    SIGTERM pass meanwhile, and end the run at the end of a batch.
    """

    def register_signal_handlers(self) -> None:
        super().register_signal_handlers()
        _RANK_ZERO.addFilter(_without_its_sentence)
        handler = signal.getsignal(signal.SIGTERM)
        if isinstance(handler, _HandlersCompose):
            others = [one for one in handler.signal_handlers if one is not terminate]
            environment = self.trainer._accelerator_connector.cluster_environment
            if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
                others = [*(one for one in others if one != self._sigterm_notifier_fn), self._stop]
            self._register_signal(signal.SIGTERM, _HandlersCompose(others))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        launcher = self.trainer.strategy.launcher
        if launcher is not None:
            launcher.kill(number)
        terminate(number, frame)

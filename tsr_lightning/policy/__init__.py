"""The language model: loading, policy, reference and critic, chat formatting, export."""

import logging

# at import bitsandbytes warns of a missing optional kernel package, which is not needed here
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

"""The language model: its loading, its three views, its text, its files."""

import logging

# bitsandbytes warns at import of an optional kernel package that nothing here needs
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

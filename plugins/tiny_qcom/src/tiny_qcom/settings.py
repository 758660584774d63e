"""The environment variables of QCOM, as `tinycore settings` lists them."""

from __future__ import annotations

from tiny_qcom.kgsl import LEAST_PRIORITY, MEDIUM_PRIORITY
from tinycore.config import PluginSettings, number

__all__ = ["QcomSettings", "settings"]


class QcomSettings(PluginSettings):
    """The table."""

    QCOM_PRIORITY = number(MEDIUM_PRIORITY, "Urgency of commands; 1 is the most", 1, LEAST_PRIORITY)


settings = QcomSettings()

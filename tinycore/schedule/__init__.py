"""From a graph of tensor operations to an ordered list of kernels."""

from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.schedule.items import ScheduleItem, schedule
from tinycore.schedule.kernel import Kernel, memory_of
from tinycore.schedule.kernelize import kernelize

__all__ = ["Kernel", "ScheduleItem", "buffer_of", "buffers", "kernelize", "memory_of", "schedule"]

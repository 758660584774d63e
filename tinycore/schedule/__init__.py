"""From a graph of tensor operations to an ordered list of kernels."""

from tinycore.schedule.kernel import Kernel, memory_of
from tinycore.schedule.kernelize import kernelize
from tinycore.schedule.order import ScheduleItem, buffer_of, buffers, schedule

__all__ = ["Kernel", "ScheduleItem", "buffer_of", "buffers", "kernelize", "memory_of", "schedule"]

"""Tests of each fact about Metal, and that they exist.

Left: what a driver of Metal, its language and a mock of it must do; right: the tests, by file, or
why there is none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tiny_metal._messages import MESSAGES

HERE: Final = Path(__file__).parent

DRIVER: Final = {
    "selectors, arity and types": "messages: every_message_is_sent_with_apples_types",
    "the mock answers each with these types": (
        "messages: the_mock_answers_every_message_with_the_same_types"
    ),
    "on a Mac, objects respond to each": "hardware: the_script_for_a_mac_runs",
    "conventions of arm64 and x86-64": "conventions: every_message_is_called_by_apples_convention",
    "structures by value, double and BOOL returned": "conventions: what_is_sent_arrives",
    "a wrong type is noticed": "conventions: a_wrong_type_is_seen",
    "layout of structures": "messages: what_is_passed_by_value_has_apples_layout",
    "no variadic call, no large struct returned": (
        "messages: no_function_takes_any_number_of_arguments, "
        "nothing_that_is_returned_is_larger_than_registers"
    ),
    "retain and release balance over 1,000 launches": (
        "driver: thousands_of_launches_leave_nothing"
    ),
    "pools nest, and are of a thread": (
        "mock: pools_nest, pools_are_of_their_thread_and_leaks_are_told"
    ),
    "source errors in our exception": "driver: the_compilers_text_and_the_line_are_shown",
    "a library with warnings": "driver: warnings_are_no_errors",
    "a function that is missing": "driver: a_function_that_there_is_not",
    "31 buffers": "driver: a_table_of_31_buffers",
    "32 buffers": "mock: wrong_arguments_are_refused; tensors: more_tensors_than_a_kernel_has",
    "bfloat by family and language": (
        "backend: bfloat_is_of_the_language_from_3_1_on; shader: bfloat_is_of_language_3_1"
    ),
    "matrices by family and language": "matrix: each_gpu_has_the_units_that_its_language_knows",
    "lane maps of matrices": (
        "matrix: lanes_hold_each_element_once; "
        "shader: matrices_are_loaded_and_stored_where_lanes_hold_them"
    ),
    "32 KiB of threadgroup memory, and more": "driver: threadgroup_memory_of_32_kib_and_more",
    "fewer threads than asked for": "driver: more_threads_than_fit",
    "private buffers by blits": (
        "driver: memory_of_a_discrete_gpu_is_its_own, parts_of_private_memory"
    ),
    "copies with offsets, overlap refused": "mock: copies_stay_inside",
    "events across queues": "mock: queues_are_independent_and_wait_by_events",
    "indirect commands with other buffers and scalars": (
        "graph: what_changes_is_put_in_between_runs, a_run_without_changes_is_one_command"
    ),
    "indirect commands with other sizes": (
        "tensors: the_launches_of_a_captured_step_follow_a_variable"
    ),
    "no indirect commands": "graph: a_gpu_without_indirect_commands",
    "a failed command buffer, and the device after it": (
        "driver: a_failure_is_raised_once_and_names_the_kernel"
    ),
    "no memory": "driver: no_memory_is_told",
    "DLPack in and out, with a byte offset": (
        "exchange: a_tensor_of_torch_is_memory_here, a_tensor_is_memory_of_torch"
    ),
    "lifetime of what is lent": (
        "exchange: memory_is_given_back_with_the_last_tensor_that_shows_it, "
        "a_consumer_keeps_the_memory"
    ),
    "NaN, infinities and the sign of zero": (
        "tensors: infinities_and_nan, zero_keeps_its_sign"
    ),
    "rounding of half and bfloat": (
        "shader: halves_and_bfloats_round_to_the_nearest_even, "
        "a_half_is_rounded_after_each_operation"
    ),
    "division at its edges": "shader: a_wrong_kernel_is_found; tensors: integers",
    "fast math off": "driver: mathematics_is_safe_and_the_language_is_named",
    "GPU times grow": "mock: times_of_command_buffers_follow_each_other; driver: a_launch",
    "a script for a Mac": "hardware: the_script_for_a_mac_runs",
}  # fmt: skip
MOCK: Final = {
    "objects: references, the freed, leaks": (
        "mock: messages_to_what_was_freed_or_has_no_such_method, "
        "pools_are_of_their_thread_and_leaks_are_told"
    ),
    "states of command buffers and encoders": "mock: states_are_strict",
    "what was not set": "mock: what_was_not_set_is_missed",
    "arguments: slots, offsets, sizes, nil": "mock: wrong_arguments_are_refused",
    "fast math is refused": "mock: fast_math_is_refused",
    "delay, and objects that are freed in flight": "mock: what_is_freed_while_it_is_used_stays",
    "failures": "driver: a_failure_is_raised_once_and_names_the_kernel",
    "indirect commands: residency, pipelines set before": (
        "mock: an_indirect_command_needs_all_that_a_gpu_needs"
    ),
    "indirect commands in any order but for barriers": (
        "mock: commands_without_barriers_run_in_any_order"
    ),
    "kernels: bounds, races, barriers, alignment, what is undefined": (
        "shader: a_wrong_kernel_is_found"
    ),
    "what is no MSL": "shader: what_is_no_msl_is_refused_with_its_line",
}
UNUSED: Final = {
    "computeCommandEncoderWithDispatchType:": "encoders are serial",
    "gpuAddress": "kernels are given buffers by their slots",
    "maxThreadsPerThreadgroup": "pipelines say how many threads fit",
}
"""Messages that are listed among the facts, are not sent, and so are not mocked."""


def places_of(words: str) -> list[tuple[Path, str]]:
    """Files and names of tests in a cell."""
    found = []
    for part in words.split("; "):
        file, _, names = part.partition(": ")
        found += [(HERE / f"test_{file}.py", name) for name in names.split(", ")]
    return found


@pytest.mark.parametrize("fact", [*DRIVER, *MOCK])
def test_a_fact_has_tests(fact: str) -> None:
    for path, name in places_of((DRIVER | MOCK)[fact]):
        assert re.search(rf"^def test_{name}\w*\(", path.read_text("utf-8"), re.MULTILINE), name


def test_what_is_not_sent_needs_no_mock() -> None:
    assert not MESSAGES.keys() & UNUSED.keys()

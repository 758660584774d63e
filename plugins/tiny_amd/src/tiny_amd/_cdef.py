"""Every C declaration the plugin uses, of which `_native.py` is made: what the kernel's compute
driver takes (linux/kfd_ioctl.h, ABI 1.17), and the functions of COMGR (amd_comgr.h).

`_native.py` is cffi's out-of-line form. After a change run
`python -m tiny_testing.native` on this file; a test holds the two together.
"""

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

MODULE: Final = "tiny_amd._native"

DECLARATIONS: Final = """
    struct kfd_version { uint32_t major, minor; };

    struct kfd_acquire_vm { uint32_t drm_fd, gpu_id; };

    struct kfd_runtime_enable { uint64_t r_debug; uint32_t mode_mask, capabilities_mask; };

    struct kfd_alloc_memory {
        uint64_t va_addr, size, handle, mmap_offset;
        uint32_t gpu_id, flags;
    };

    struct kfd_free_memory { uint64_t handle; };

    struct kfd_map_memory {
        uint64_t handle, device_ids_array_ptr;
        uint32_t n_devices, n_success;
    };

    struct kfd_create_queue {
        uint64_t ring_base_address, write_pointer_address, read_pointer_address, doorbell_offset;
        uint32_t ring_size, gpu_id, queue_type, queue_percentage, queue_priority, queue_id;
        uint64_t eop_buffer_address, eop_buffer_size, ctx_save_restore_address;
        uint32_t ctx_save_restore_size, ctl_stack_size, sdma_engine_id, pad;
    };

    struct kfd_destroy_queue { uint32_t queue_id, pad; };

    struct kfd_create_event {
        uint64_t event_page_offset;
        uint32_t event_trigger_data, event_type, auto_reset, node_id, event_id, event_slot_index;
    };

    struct kfd_destroy_event { uint32_t event_id, pad; };

    struct kfd_memory_exception {
        uint32_t not_present, read_only, no_execute, imprecise;
        uint64_t va;
        uint32_t gpu_id, error_type;
    };

    struct kfd_hw_exception { uint32_t reset_type, reset_cause, memory_lost, gpu_id; };

    struct kfd_event_data {
        union {
            struct kfd_memory_exception memory;
            struct kfd_hw_exception hardware;
            uint64_t last_event_age;
        };
        uint64_t extension;
        uint32_t event_id, pad;
    };

    struct kfd_wait_events {
        uint64_t events_ptr;
        uint32_t num_events, wait_for_all, timeout, wait_result;
    };

    typedef struct { uint64_t handle; } comgr_handle;
    void amd_comgr_get_version(size_t *major, size_t *minor);
    int amd_comgr_status_string(int status, const char **text);
    int amd_comgr_get_isa_count(size_t *count);
    int amd_comgr_get_isa_name(size_t index, const char **name);
    int amd_comgr_create_data(int kind, comgr_handle *data);
    int amd_comgr_release_data(comgr_handle data);
    int amd_comgr_set_data(comgr_handle data, size_t size, const char *bytes);
    int amd_comgr_set_data_name(comgr_handle data, const char *name);
    int amd_comgr_get_data(comgr_handle data, size_t *size, char *bytes);
    int amd_comgr_create_data_set(comgr_handle *set);
    int amd_comgr_destroy_data_set(comgr_handle set);
    int amd_comgr_data_set_add(comgr_handle set, comgr_handle data);
    int amd_comgr_action_data_get_data(
        comgr_handle set, int kind, size_t index, comgr_handle *data);
    int amd_comgr_action_data_count(comgr_handle set, int kind, size_t *count);
    int amd_comgr_create_action_info(comgr_handle *info);
    int amd_comgr_destroy_action_info(comgr_handle info);
    int amd_comgr_action_info_set_isa_name(comgr_handle info, const char *name);
    int amd_comgr_action_info_set_language(comgr_handle info, int language);
    int amd_comgr_action_info_set_option_list(
        comgr_handle info, const char **options, size_t count);
    int amd_comgr_action_info_set_logging(comgr_handle info, bool logging);
    int amd_comgr_do_action(int kind, comgr_handle info, comgr_handle input, comgr_handle output);
"""

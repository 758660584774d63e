"""The C declarations of libusb-1.0 that the interface USB uses, of which `_native.py` is made.

libusb.h, API 0x01000105 and later. After a change run `python -m tiny_testing.native` on this
file; a test holds the two together.
"""

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

MODULE: Final = "tiny_amd.usb._native"

DECLARATIONS: Final = """
    typedef struct libusb_context libusb_context;
    typedef struct libusb_device libusb_device;
    typedef struct libusb_device_handle libusb_device_handle;

    struct libusb_device_descriptor {
        uint8_t bLength, bDescriptorType;
        uint16_t bcdUSB;
        uint8_t bDeviceClass, bDeviceSubClass, bDeviceProtocol, bMaxPacketSize0;
        uint16_t idVendor, idProduct, bcdDevice;
        uint8_t iManufacturer, iProduct, iSerialNumber, bNumConfigurations;
    };

    int libusb_init(libusb_context **context);
    void libusb_exit(libusb_context *context);
    const char *libusb_error_name(int code);

    ssize_t libusb_get_device_list(libusb_context *context, libusb_device ***list);
    void libusb_free_device_list(libusb_device **list, int unref_devices);
    int libusb_get_device_descriptor(
        libusb_device *device, struct libusb_device_descriptor *descriptor);
    uint8_t libusb_get_bus_number(libusb_device *device);
    uint8_t libusb_get_device_address(libusb_device *device);
    int libusb_get_port_numbers(libusb_device *device, uint8_t *ports, int length);
    int libusb_get_device_speed(libusb_device *device);

    int libusb_open(libusb_device *device, libusb_device_handle **handle);
    void libusb_close(libusb_device_handle *handle);
    int libusb_get_string_descriptor_ascii(
        libusb_device_handle *handle, uint8_t index, unsigned char *data, int length);
    int libusb_get_configuration(libusb_device_handle *handle, int *configuration);
    int libusb_set_configuration(libusb_device_handle *handle, int configuration);
    int libusb_set_auto_detach_kernel_driver(libusb_device_handle *handle, int enable);
    int libusb_claim_interface(libusb_device_handle *handle, int number);
    int libusb_release_interface(libusb_device_handle *handle, int number);
    int libusb_set_interface_alt_setting(
        libusb_device_handle *handle, int number, int alternate_setting);
    int libusb_clear_halt(libusb_device_handle *handle, unsigned char endpoint);

    int libusb_control_transfer(
        libusb_device_handle *handle, uint8_t request_type, uint8_t request, uint16_t value,
        uint16_t index, unsigned char *data, uint16_t length, unsigned int timeout);
    int libusb_bulk_transfer(
        libusb_device_handle *handle, unsigned char endpoint, unsigned char *data, int length,
        int *transferred, unsigned int timeout);
"""

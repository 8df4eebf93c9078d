// SPDX-License-Identifier: Apache-2.0
// The names of a machine's devices, as one file in its folder: written by the server, read by every
// client, and by people who want to know a MIG instance's UUID. Pure text; no CUDA, no I/O.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simgpu {

// Name of the file in the machine's folder.
inline constexpr const char* kDeviceListFile = "devices";

using DeviceId = std::array<std::uint8_t, 16>;

// What the server calls a device: a whole GPU, or one MIG instance of a GPU that is split.
struct ListedDevice {
    int gpu = 0;      // number of the physical GPU
    DeviceId gpu_id;  // of that GPU
    DeviceId id;      // of the instance; the GPU's where there are no instances
    bool is_instance = false;
};

// "GPU-…" or "MIG-…".
std::string uuid_text(const DeviceId& id, bool is_instance);

// The devices in the server's order; `machine` tells machines apart, equal names give equal ids.
// `instances` is 0 without MIG.
std::vector<ListedDevice> make_device_list(std::string_view machine, int gpus, int instances);

// As `nvidia-smi -L` prints it: a line for each GPU, and below it one for each instance.
std::string format_device_list(const std::vector<ListedDevice>& devices);

// Empty when the text is not what format_device_list() makes.
std::vector<ListedDevice> parse_device_list(std::string_view text);

// What a program sees: indices into `devices`, in the program's order. `list` is its
// CUDA_VISIBLE_DEVICES, or null. As the real driver: entries count up to the first invalid one, and
// of MIG instances a process sees one, the first that it names.
std::vector<std::size_t> visible_devices(const std::vector<ListedDevice>& devices,
                                         const char* list);

}  // namespace simgpu

// SPDX-License-Identifier: Apache-2.0
// Devices: which ones the program sees, their names, identifiers and attributes. The figures are
// those of an H100 (SXM, 80 GB) as NVIDIA publishes them.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "../device_list.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace simgpu {
namespace {

constexpr const char* kDeviceName = "Crossover Virtual GPU";

struct AttributeRow {
    CUdevice_attribute attribute;
    int value;
};

constexpr AttributeRow kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 32768000},
    {CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 134217728},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0},     // filled in by device
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},  // filled in by device
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
};

bool is_stream_memory_operation(CUdevice_attribute attribute) {
    return attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 ||
           attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1 ||
           attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1 ||
           attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS ||
           attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR;
}

int bus_of(const Device& device) { return 0x10 + device.gpu; }

}  // namespace

bool find_devices(Driver& d) {
    std::ifstream file(d.dir + "/" + kDeviceListFile);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<ListedDevice> all = parse_device_list(text);
    if (static_cast<int>(all.size()) != d.connection->device_count()) return false;
    const auto uuid_of = [](const DeviceId& id) {
        CUuuid uuid{};
        static_assert(sizeof id == sizeof uuid.bytes);
        std::memcpy(uuid.bytes, id.data(), sizeof uuid.bytes);
        return uuid;
    };
    for (const std::size_t number : visible_devices(all, std::getenv("CUDA_VISIBLE_DEVICES"))) {
        const ListedDevice& listed = all[number];
        auto device = std::make_unique<Device>();
        device->ordinal = static_cast<int>(d.devices.size());
        device->physical = static_cast<int>(number);
        device->gpu = listed.gpu;
        device->uuid = uuid_of(listed.id);
        device->gpu_uuid = uuid_of(listed.gpu_id);
        for (const ListedDevice& other : all)
            if (listed.is_instance && other.gpu == listed.gpu) ++device->instances;
        d.devices.push_back(std::move(device));
    }
    return true;
}

unsigned multiprocessors_of(const Device& device) {
    return kMultiprocessors / std::max(1U, device.instances);
}

// Runs `body(device)` for an ordinal.
template <typename Body>
static CUresult with_device(CUdevice ordinal, Body&& body) {
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : body(*device);
    });
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetCount(int* count) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        *count = static_cast<int>(d.devices.size());
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_device(ordinal, [&](Device& found) {
        *device = found.ordinal;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    return with_device(device, [&](Device& found) {
        std::string text = kDeviceName;
        if (found.instances > 0) text += " MIG 1/" + std::to_string(found.instances);
        std::snprintf(name, static_cast<std::size_t>(length), "%s", text.c_str());
        return CUDA_SUCCESS;
    });
}

// Knows no instances: all of a GPU's have its UUID.
SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_device(device, [&](Device& found) {
        *uuid = found.gpu_uuid;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_device(device, [&](Device& found) {
        *uuid = found.uuid;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_device(device, [&](Device& found) {
        *bytes = total_memory(found);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                                    CUdevice device) {
    if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    return with_device(device, [&](Device& found) {
        *value = 0;  // what the table does not name, the virtual GPU does not have
        for (const AttributeRow& row : kAttributes)
            if (row.attribute == attribute) *value = row.value;
        if (is_stream_memory_operation(attribute) && !has_stream_memory_operations()) *value = 0;
        if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = bus_of(found);
        if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            *value = static_cast<int>(multiprocessors_of(found));
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult rc =
        cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (rc != CUDA_SUCCESS) return rc;
    return cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
    if (id == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    return with_device(device, [&](Device& found) -> CUresult {
        const int needed = std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0",
                                         static_cast<unsigned>(bus_of(found)));
        return needed < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
    if (device == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    if (std::sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3 &&
        std::sscanf(id, "%x:%x", &bus, &slot) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        for (const auto& candidate : d.devices) {
            if (bus_of(*candidate) != static_cast<int>(bus) || domain != 0 || slot != 0) continue;
            *device = candidate->ordinal;
            return CUDA_SUCCESS;
        }
        return CUDA_ERROR_INVALID_DEVICE;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (device_of(d, device) == nullptr || device_of(d, peer) == nullptr)
            return CUDA_ERROR_INVALID_DEVICE;
        *can = device != peer ? 1 : 0;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                                       CUdevice source, CUdevice destination) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (device_of(d, source) == nullptr || device_of(d, destination) == nullptr ||
            source == destination)
            return CUDA_ERROR_INVALID_DEVICE;
        *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                 attribute == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
        return CUDA_SUCCESS;
    });
}

// SPDX-License-Identifier: Apache-2.0
// Probes of what the driver and the runtime are: pointers, attributes, stream memory operations,
// and what the runtime holds while it launches. No times of kernels.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "probe.hpp"

namespace qualify {
namespace {

using namespace std::chrono_literals;
using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);
using ValueOp32 = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
using ValueOp64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

// What Crossover intercepts of the driver; base names and the releases of their interfaces.
constexpr struct {
    const char* base;
    int version;
} kEntries[] = {
    {"cuLaunchKernel", 4000}, {"cuLaunchKernelEx", 11060}, {"cuLaunchCooperativeKernel", 9000},
    {"cuGraphLaunch", 10000}, {"cuEventRecord", 2000},     {"cuStreamWaitEvent", 3020},
    {"cuStreamCreate", 2000}, {"cuMemcpyAsync", 4000}};

std::string owner(void* address) {
    Dl_info info{};
    if (address == nullptr || dladdr(address, &info) == 0) {
        return "";
    }
    const char* const slash = std::strrchr(info.dli_fname, '/');
    return slash != nullptr ? slash + 1 : info.dli_fname;
}

int attribute(CUdevice_attribute which, int device) {
    int value = 0;
    check(driver_function<CUresult (*)(int*, CUdevice_attribute, CUdevice)>("cuDeviceGetAttribute")(
              &value, which, device),
          "cuDeviceGetAttribute");
    return value;
}

}  // namespace

Json probe_loader(const dp::Options& options) {
    select(options);
    Json found;
    int driver = 0;
    int runtime = 0;
    dp::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    dp::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    char name[128] = {};
    CUdevice device = 0;
    check(driver_function<CUresult (*)(CUdevice*, int)>("cuDeviceGet")(&device, options.device),
          "cuDeviceGet");
    check(driver_function<CUresult (*)(char*, int, CUdevice)>("cuDeviceGetName")(name, sizeof name,
                                                                                 device),
          "cuDeviceGetName");
    found["device"] = name;
    found["driver_version"] = driver;
    found["runtime_version"] = runtime;
    found["multiprocessors"] = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    found["copy_engines"] = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device);
    found["compute_preemption"] =
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, device);
    found["compute_mode"] = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device);
    const auto ask = driver_function<GetProcAddress>("cuGetProcAddress_v2");
    for (const auto& [base, version] : kEntries) {
        void* const looked_up = driver_symbol(base);
        void* asked = nullptr;
        CUdriverProcAddressQueryResult status{};
        check(ask(base, &asked, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status), base);
        found["entries"][base] = {{"same", looked_up == asked},
                                  {"dlsym_owner", owner(looked_up)},
                                  {"get_proc_address_owner", owner(asked)}};
    }
    return found;
}

Json probe_memory_operations(const dp::Options& options) {
    select(options);
    Json found;
    found["can_use_64_bit"] =
        attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, options.device);
    found["can_use_wait_value_nor"] =
        attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, options.device);
    const auto wait32 = driver_function<ValueOp32>("cuStreamWaitValue32_v2");
    const auto wait64 = driver_function<ValueOp64>("cuStreamWaitValue64_v2");
    const auto write32 = driver_function<ValueOp32>("cuStreamWriteValue32_v2");
    found["functions"] = wait32 != nullptr && wait64 != nullptr && write32 != nullptr;
    if (!found["functions"].get<bool>()) {
        return found;
    }
    // Pinned memory, as a scheduler would use it: the host releases the stream.
    void* host = nullptr;
    dp::check(cudaHostAlloc(&host, 2 * sizeof(std::uint64_t), cudaHostAllocMapped),
              "cudaHostAlloc");
    void* mapped = nullptr;
    dp::check(cudaHostGetDevicePointer(&mapped, host, 0), "cudaHostGetDevicePointer");
    std::memset(host, 0, 2 * sizeof(std::uint64_t));
    auto* const gate = static_cast<volatile std::uint32_t*>(host);
    const auto address = reinterpret_cast<CUdeviceptr>(mapped);
    const cudaStream_t stream = dp::new_stream();
    const auto pass = [&](auto wait, std::uint32_t value) -> double {
        const CUresult result = wait(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
        if (result != CUDA_SUCCESS) {
            found["wait_error"] = static_cast<int>(result);
            return -1.0;
        }
        check(write32(stream, address + 8, value, 0), "cuStreamWriteValue32");
        std::this_thread::sleep_for(20ms);
        const bool held = cudaStreamQuery(stream) == cudaErrorNotReady && gate[2] != value;
        found["held"] = found.value("held", true) && held;
        static_cast<void>(cudaGetLastError());  // the runtime remembers "not ready" as an error
        const std::int64_t released = dp::now_ns();
        gate[0] = value;
        const auto limit = released + 5'000'000'000;
        while (gate[2] != value && dp::now_ns() < limit) {
        }
        found["released"] = found.value("released", true) && gate[2] == value;
        return static_cast<double>(dp::now_ns() - released) / 1e3;
    };
    std::vector<double> us;
    for (std::uint32_t value = 1; value <= 9 && !found.contains("wait_error"); ++value) {
        us.push_back(pass(wait32, value));
    }
    if (!found.contains("wait_error") && found["can_use_64_bit"] == 1) {
        found["wait64_us"] = pass(wait64, 10);
    }
    found["release_to_write_us"] = median(us);
    return found;
}

// With the interposer preloaded: one thread is held inside a launch, and another tries what it can.
Json probe_lock(const dp::Options& options) {
    select(options);
    auto* const held = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "qualify_hold_next"));
    auto* const inside = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "qualify_held"));
    auto* const release = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "qualify_release"));
    Json found;
    found["interposer"] = held != nullptr && inside != nullptr && release != nullptr;
    if (!found["interposer"].get<bool>()) {
        return found;
    }
    const cudaStream_t first = dp::new_stream();
    const cudaStream_t second = dp::new_stream();
    const cudaEvent_t event = dp::new_event();
    const Load load(options, first);
    void* const memory = dp::device_array<char>(4096);
    void* const host = dp::host_array<char>(4096);
    dp::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

    std::thread launching([&] {
        dp::check(cudaSetDevice(options.device), "cudaSetDevice");
        held(5'000);  // ms at most
        load.nothing(first);
    });
    for (int tries = 0; inside() == 0 && tries < 2000; ++tries) {
        std::this_thread::sleep_for(1ms);
    }
    found["a_launch_was_held"] = inside() != 0;
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"launch", [&] { load.nothing(second); }},
        {"event_record", [&] { static_cast<void>(cudaEventRecord(event, second)); }},
        {"event_query",
         [&] {
             static_cast<void>(cudaEventQuery(event));
             static_cast<void>(cudaGetLastError());
         }},
        {"copy",
         [&] { static_cast<void>(cudaMemcpyAsync(memory, host, 64, cudaMemcpyDefault, second)); }},
        {"stream_synchronize", [&] { static_cast<void>(cudaStreamSynchronize(second)); }},
        {"malloc_free",
         [&] {
             void* more = nullptr;
             static_cast<void>(cudaMalloc(&more, 4096));
             static_cast<void>(cudaFree(more));
         }},
    };
    // What stands behind the held launch would hold all after it: only the first such call is told.
    for (const auto& [name, call] : calls) {
        std::atomic<bool> done{false};
        std::thread other([&] {
            dp::check(cudaSetDevice(options.device), "cudaSetDevice");
            call();
            done = true;
        });
        for (int tries = 0; !done && inside() != 0 && tries < 500; ++tries) {
            std::this_thread::sleep_for(1ms);
        }
        const bool passed = done && inside() != 0;
        found["passes"][name] = passed;
        if (!passed) {
            release();
            other.join();
            break;
        }
        other.join();
    }
    release();
    launching.join();
    dp::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return found;
}

}  // namespace qualify

// SPDX-License-Identifier: Apache-2.0
#include "shim/blind_spots.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arbiter/options.hpp"
#include "shim/loaded_object.hpp"
#include "shim/log.hpp"
#include "shim/resolve.hpp"

namespace crossover {

namespace {

constexpr const char* kNames[] = {
#define CX_DRIVER(name, prototype) #name,
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
#define CX_RUNTIME(name, prototype) #name,
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
#define CX_NCCL(name) #name,
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
};

// Of the driver, a runtime and NCCL: what a library must define for its functions to be the real
// ones.
constexpr const char* kMarks[] = {"cuInit", "cudaRuntimeGetVersion", "ncclGetVersion"};

// The driver, the runtimes and NCCL, by how their files are called.
constexpr const char* kLibraries[] = {"libcuda.so", "libcudart", "libnccl.so"};

struct Found {
    char library[160] = "";
    char function[64] = "";
    unsigned libraries = 0;
};

struct Scan {
    Found calls;     // intercepted functions bound to the real ones
    Found look_ups;  // dlsym bound to the C library's
    const LoadedObject* object = nullptr;
    bool in_calls = false;
    bool in_look_ups = false;
};

bool intercepted(const char* name) noexcept {
    if (std::strncmp(name, "cu", 2) != 0 && std::strncmp(name, "nccl", 4) != 0 &&
        std::strncmp(name, "__cuda", 6) != 0) {
        return false;
    }
    for (const char* each : kNames) {
        if (std::strcmp(each, name) == 0) {
            return true;
        }
    }
    return false;
}

bool real_function_at(const void* address) noexcept {
    for (const char* mark : kMarks) {
        if (function_beside(address, mark) != nullptr) {
            return !is_ours(address);
        }
    }
    return false;
}

void note(Found& found, bool& counted, const LoadedObject& object, const char* name) noexcept {
    if (counted) {
        return;
    }
    counted = true;
    if (found.libraries++ == 0) {
        std::snprintf(found.library, sizeof found.library, "%s", object.file());
        std::snprintf(found.function, sizeof found.function, "%s", name);
    }
}

void visit_reference(const char* name, const void* bound, void* data) noexcept {
    auto& scan = *static_cast<Scan*>(data);
    const bool is_dlsym = std::strcmp(name, "dlsym") == 0;
    if (!is_dlsym && !intercepted(name)) {
        return;
    }
    // Inside itself: not bound yet, or its own.
    if (bound == nullptr || scan.object->contains(bound)) {
        return;
    }
    if (is_dlsym) {
        if (bound == reinterpret_cast<const void*>(real_dlsym())) {
            note(scan.look_ups, scan.in_look_ups, *scan.object, name);
        }
    } else if (real_function_at(bound)) {
        note(scan.calls, scan.in_calls, *scan.object, name);
    }
}

Scan scan_references() noexcept {
    Scan scan;
    for_each_object([&](const LoadedObject& object) {
        if (!is_ourselves(object)) {
            scan.object = &object;
            scan.in_calls = false;
            scan.in_look_ups = false;
            for_each_reference(object, &visit_reference, &scan);
        }
        return false;
    });
    return scan;
}

bool cuda_is_loaded() noexcept {
    return for_each_object([](const LoadedObject& object) {
        for (const char* library : kLibraries) {
            if (std::strncmp(object.file(), library, std::strlen(library)) == 0) {
                return true;
            }
        }
        return false;
    });
}

std::atomic<bool> calls_told{false};
std::atomic<bool> look_ups_told{false};
std::atomic<bool> namespaces_told{false};

// "" or " and N more", for a list of which one is named.
struct More {
    explicit More(unsigned count) noexcept {
        if (count > 1) {
            std::snprintf(text, sizeof text, " and %u more", count - 1);
        }
    }
    char text[24] = "";
};

}  // namespace

void report_blind_spots() noexcept {
    char path[256];
    const unsigned namespaces = other_namespaces_with("libcuda", path, sizeof path);
    if (namespaces != 0 && !namespaces_told.exchange(true)) {
        log_line(
            LogLevel::kInfo,
            "%s is loaded in a namespace of its own (dlmopen)%s: what is launched there is not "
            "seen and takes no turns",
            path, More(namespaces).text);
    }
    if (!cuda_is_loaded()) {
        return;
    }
    const Scan scan = scan_references();
    if (scan.calls.libraries != 0 && !calls_told.exchange(true)) {
        log_line(LogLevel::kInfo,
                 "%s%s calls %s past this library (RTLD_DEEPBIND): seen at the driver only",
                 scan.calls.library, More(scan.calls.libraries).text, scan.calls.function);
    }
    if (scan.look_ups.libraries != 0 && !look_ups_told.exchange(true)) {
        log_line(
            LogLevel::kInfo,
            "%s%s looks functions up past this library (RTLD_DEEPBIND): what it launches so is "
            "not seen and takes no turns",
            scan.look_ups.library, More(scan.look_ups.libraries).text);
    }
}

// Where all CUDA calls passed us, this is the only time at which anything can be said.
[[gnu::destructor]] static void report_at_exit() {
    char path[8];
    if (!cuda_is_loaded() && other_namespaces_with("libcuda", path, sizeof path) == 0) {
        return;
    }
    Options options;
    char error[256];
    if (parse_environment(&::getenv, options, error, sizeof error) &&
        static_cast<LogLevel>(options.log) >= LogLevel::kInfo &&
        static_cast<Mode>(options.mode) != Mode::kOff) {
        set_log_level(static_cast<LogLevel>(options.log));
        report_blind_spots();
    }
}

}  // namespace crossover

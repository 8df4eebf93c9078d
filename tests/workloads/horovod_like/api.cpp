// SPDX-License-Identifier: Apache-2.0
// The C interface of hvd.h over the engine: no exception gets out. Nothing else here.
#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "engine.hpp"
#include "hvd.h"

#define HVD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Library {
    hvd::Control control;
    std::unique_ptr<hvd::Engine> engine;
};

std::unique_ptr<Library>& library() {
    static std::unique_ptr<Library> instance;
    return instance;
}

std::string& last_error() {
    thread_local std::string text;
    return text;
}

template <class Result, class Body>
Result guarded(Result failed, Body&& body) noexcept {
    try {
        return body();
    } catch (const std::exception& error) {
        last_error() = error.what();
        return failed;
    }
}

}  // namespace

HVD_EXPORT int hvd_open_coordinator(void) {
    return guarded(-1, [] {
        library() = std::make_unique<Library>();
        return library()->control.listen();
    });
}

HVD_EXPORT int hvd_init(const HvdConfig* config) {
    return guarded(-1, [&] {
        if (!library()) {
            library() = std::make_unique<Library>();
        }
        library()->control.connect(config->rank, config->size, config->address, config->port,
                                   config->timeout_s);
        hvd::Settings settings;
        settings.rank = config->rank;
        settings.size = config->size;
        settings.device = config->device;
        settings.cycle_ms = config->cycle_ms;
        settings.fusion_bytes = config->fusion_bytes;
        library()->engine = std::make_unique<hvd::Engine>(settings, library()->control);
        return 0;
    });
}

HVD_EXPORT int64_t hvd_allreduce_async(float* data, uint64_t count, const char* name,
                                       void* stream) {
    return guarded(int64_t{-1}, [&] {
        return library()->engine->submit(data, count, name, static_cast<cudaStream_t>(stream));
    });
}

HVD_EXPORT int hvd_synchronize(int64_t handle) {
    return guarded(-1, [&] {
        library()->engine->synchronize(handle);
        return 0;
    });
}

HVD_EXPORT void hvd_shutdown(void) {
    guarded(-1, [] {
        library().reset();
        return 0;
    });
}

HVD_EXPORT const char* hvd_error(void) { return last_error().c_str(); }

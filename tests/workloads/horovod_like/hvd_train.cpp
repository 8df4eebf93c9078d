// SPDX-License-Identifier: Apache-2.0
// dp_train's training over libhvd.so, used as a framework uses Horovod: the library is loaded with
// dlopen, each gradient is handed over as soon as it is launched, and the training thread blocks
// until all sums are there. What is trained, and how, is in dp_trainer; no NCCL here.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../dp_meeting.hpp"
#include "../dp_trainer.hpp"
#include "hvd.h"

namespace {

struct HvdOptions {
    std::string library;
    double cycle_ms = 1.0;
    double fusion_mb = 128.0;
};

[[noreturn]] void give_up(const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
    std::exit(1);
}

struct Hvd {
    explicit Hvd(const std::string& path) {
        void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            give_up(dlerror());
        }
        const auto take = [&](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) {
                give_up(path + " has no " + name);
            }
        };
        take(open_coordinator, "hvd_open_coordinator");
        take(init, "hvd_init");
        take(allreduce_async, "hvd_allreduce_async");
        take(synchronize, "hvd_synchronize");
        take(shutdown, "hvd_shutdown");
        take(error, "hvd_error");
    }
    decltype(&hvd_open_coordinator) open_coordinator = nullptr;
    decltype(&hvd_init) init = nullptr;
    decltype(&hvd_allreduce_async) allreduce_async = nullptr;
    decltype(&hvd_synchronize) synchronize = nullptr;
    decltype(&hvd_shutdown) shutdown = nullptr;
    decltype(&hvd_error) error = nullptr;
};

class HvdCommunicator final : public dp::Communicator {
  public:
    HvdCommunicator(const dp::Options& options, const HvdOptions& own)
        : options_(options), own_(own), hvd_(own.library) {}

    void connect() override {
        int port = 0;
        if (options_.rank == 0) {
            port = hvd_.open_coordinator();
            require(port > 0);
        }
        dp::share_from_rank_zero(options_, &port, sizeof port);
        HvdConfig config{};
        config.rank = options_.rank;
        config.size = options_.world_size;
        config.device = options_.device;
        config.address =
            options_.master_address.empty() ? "127.0.0.1" : options_.master_address.c_str();
        config.port = port;
        config.cycle_ms = own_.cycle_ms;
        config.fusion_bytes = static_cast<std::uint64_t>(own_.fusion_mb * 1e6);
        config.timeout_s = options_.timeout_s;
        require(hvd_.init(&config) == 0);
        if (options_.rank == 0) {
            dp::forget_meeting(options_);
        }
    }

    // Everybody else adds nothing to rank 0's bits, which are small enough for a float each.
    double from_rank_zero(double value) override {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        std::array<float, 4> parts{};
        for (std::size_t i = 0; i < parts.size() && options_.rank == 0; ++i) {
            parts[i] = static_cast<float>(bits >> (16 * i) & 0xffff);
        }
        void* shared = nullptr;
        dp::check(cudaMalloc(&shared, sizeof parts), "cudaMalloc");
        dp::check(cudaMemcpy(shared, parts.data(), sizeof parts, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
        reduce({{static_cast<float*>(shared), parts.size()}}, nullptr);
        finish(nullptr);
        dp::check(cudaMemcpy(parts.data(), shared, sizeof parts, cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
        dp::check(cudaFree(shared), "cudaFree");
        bits = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            bits |= static_cast<std::uint64_t>(parts[i]) << (16 * i);
        }
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }

    void barrier(float* scratch) override {
        reduce({{scratch, 1}}, nullptr);
        finish(nullptr);
    }

    void reduce(const std::vector<dp::Gradient>& gradients, cudaStream_t compute) override {
        for (const dp::Gradient& each : gradients) {
            const std::string name = "gradient." + std::to_string(handles_.size());
            handles_.push_back(hvd_.allreduce_async(each.begin, each.count, name.c_str(), compute));
            require(handles_.back() >= 0);
        }
    }

    void finish(cudaStream_t) override {
        for (const std::int64_t handle : handles_) {
            require(hvd_.synchronize(handle) == 0);
        }
        handles_.clear();
    }

    void disconnect() override { hvd_.shutdown(); }

  private:
    void require(bool good) const {
        if (!good) {
            give_up(std::string("libhvd: ") + hvd_.error());
        }
    }

    const dp::Options options_;
    const HvdOptions own_;
    const Hvd hvd_;
    std::vector<std::int64_t> handles_;  // since the last finish()
};

// Beside the program.
std::string default_library() {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    const std::string program(path, length > 0 ? static_cast<std::size_t>(length) : 0);
    return program.substr(0, program.rfind('/') + 1) + "libhvd.so";
}

}  // namespace

int main(int argc, char** argv) {
    HvdOptions own;
    own.library = default_library();
    const dp::Options options = dp::parse_options(argc, argv, [&](CLI::App& app) {
        app.add_option("--library", own.library, "the library to load")->capture_default_str();
        app.add_option("--cycle-ms", own.cycle_ms, "time between two negotiations, ms")
            ->check(CLI::Range(0.0, 1e4))
            ->capture_default_str();
        app.add_option("--fusion-mb", own.fusion_mb, "most that is fused into one sum, 10^6 bytes")
            ->check(CLI::Range(0.001, 1e4))
            ->capture_default_str();
    });
    HvdCommunicator communicator(options, own);
    dp::report(options, dp::train(options, communicator));
    return 0;
}

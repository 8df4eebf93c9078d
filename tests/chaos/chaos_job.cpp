// SPDX-License-Identifier: Apache-2.0
// A short-lived training job: one process a rank, a compute stream, an all-reduce on a stream of
// its own, a wait in every iteration. Its result is exact and known beforehand. It dies and leaves
// in the ways that are asked for. Knows nothing of Crossover, nothing of who kills it.
#include <cuda.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "chaos_math.hpp"

namespace {

struct Options {
    int ranks = 1;
    int device = 0;
    int iterations = 1;
    unsigned compute_us = 1000;
    std::size_t bytes = 8;
    std::uint64_t seed = 1;
    std::string ending = "return";
    int orphan_ms = 0;
};

[[noreturn]] void give_up(const char* what, const char* why) {
    std::fprintf(stderr, "chaos_job: %s: %s\n", what, why);
    std::fflush(nullptr);
    _exit(1);
}

void need(CUresult result, const char* what) {
    const char* text = nullptr;
    if (result != CUDA_SUCCESS) {
        cuGetErrorName(result, &text);
        give_up(what, text != nullptr ? text : "unknown error");
    }
}

void need(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        give_up(what, ncclGetErrorString(result));
    }
}

// The process's number as those see it who look at this machine's /proc: a PID namespace of its own
// has others.
std::string outer_pid() {
    char text[32] = {};
    const ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    return length > 0 ? text : std::to_string(getpid());
}

void say(const std::string& line) {
    const std::string whole = line + "\n";
    if (write(STDOUT_FILENO, whole.data(), whole.size()) < 0) {
        give_up("standard output", std::strerror(errno));
    }
}

// One rank's training. Ends by returning the value that it has come to.
class Rank {
  public:
    Rank(const Options& options, int rank, int id_in, int id_out)
        : options_(options), count_(options.bytes / sizeof(std::uint64_t)) {
        need(cuInit(0), "cuInit");
        int devices = 0;
        need(cuDeviceGetCount(&devices), "cuDeviceGetCount");
        CUcontext context = nullptr;
        const int device = (options.device + rank) % devices;
        need(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        CUlibrary library = nullptr;
        need(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0),
             "cuLibraryLoadData");
        step_ = kernel(library, "chaos_step");
        fold_ = kernel(library, "chaos_fold");
        need(cuStreamCreate(&compute_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        need(cuStreamCreate(&communicate_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        need(cuEventCreate(&ready_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        need(cuEventCreate(&reduced_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        need(cuMemAlloc(&value_, options.bytes), "cuMemAlloc");
        need(cuMemAlloc(&sum_, options.bytes), "cuMemAlloc");
        need(cuMemsetD8(value_, 0, options.bytes), "cuMemsetD8");
        const std::uint64_t first = chaos::first_value(options.seed, rank);
        need(cuMemcpyHtoD(value_, &first, sizeof first), "cuMemcpyHtoD");
        if (options.ranks > 1) {
            connect(rank, id_in, id_out);
        }
    }

    std::uint64_t train(int iterations) {
        std::uint64_t step = 0;
        unsigned cost_us = options_.compute_us;
        unsigned short_us = 50;
        void* step_arguments[] = {&value_, &step, &cost_us};
        void* fold_arguments[] = {&value_, &sum_, &short_us};
        for (int i = 0; i < iterations; ++i) {
            step = static_cast<std::uint64_t>(i);
            launch(step_, step_arguments);
            if (options_.ranks > 1) {
                need(cuEventRecord(ready_, compute_), "cuEventRecord");
                need(cuStreamWaitEvent(communicate_, ready_, 0), "cuStreamWaitEvent");
                need(ncclAllReduce(pointer(value_), pointer(sum_), count_, ncclUint64, ncclSum,
                                   communicator_, communicate_),
                     "ncclAllReduce");
                need(cuEventRecord(reduced_, communicate_), "cuEventRecord");
                need(cuStreamWaitEvent(compute_, reduced_, 0), "cuStreamWaitEvent");
                launch(fold_, fold_arguments);
            }
            need(cuStreamSynchronize(compute_), "cuStreamSynchronize");
        }
        std::uint64_t value = 0;
        need(cuMemcpyDtoH(&value, value_, sizeof value), "cuMemcpyDtoH");
        return value;
    }

    void leave() {
        if (communicator_ != nullptr) {
            need(ncclCommDestroy(communicator_), "ncclCommDestroy");
        }
    }

  private:
    static CUfunction kernel(CUlibrary library, const char* name) {
        CUkernel found = nullptr;
        CUfunction function = nullptr;
        need(cuLibraryGetKernel(&found, library, name), name);
        need(cuKernelGetFunction(&function, found), name);
        return function;
    }
    static void* pointer(CUdeviceptr address) {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    }
    void launch(CUfunction function, void** arguments) {
        need(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, compute_, arguments, nullptr),
             "cuLaunchKernel");
    }
    void connect(int rank, int id_in, int id_out) {
        ncclUniqueId id{};
        if (rank == 0) {
            need(ncclGetUniqueId(&id), "ncclGetUniqueId");
            for (int other = 1; other < options_.ranks; ++other) {
                if (write(id_out, &id, sizeof id) != sizeof id) {
                    give_up("unique id", std::strerror(errno));
                }
            }
        } else if (read(id_in, &id, sizeof id) != sizeof id) {
            give_up("unique id", "rank 0 has gone");
        }
        need(ncclCommInitRank(&communicator_, options_.ranks, id, rank), "ncclCommInitRank");
    }

    const Options& options_;
    const std::size_t count_;
    CUfunction step_ = nullptr;
    CUfunction fold_ = nullptr;
    CUstream compute_ = nullptr;
    CUstream communicate_ = nullptr;
    CUevent ready_ = nullptr;
    CUevent reduced_ = nullptr;
    CUdeviceptr value_ = 0;
    CUdeviceptr sum_ = 0;
    ncclComm_t communicator_ = nullptr;
};

// Becomes a new program in the middle of its work, with a context, streams and a turn.
[[noreturn]] void become_another(const Options& options) {
    std::vector<std::string> words = {"chaos_job",
                                      "--device",
                                      std::to_string(options.device),
                                      "--iterations",
                                      std::to_string(options.iterations),
                                      "--compute-us",
                                      std::to_string(options.compute_us),
                                      "--seed",
                                      std::to_string(options.seed)};
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    execv("/proc/self/exe", arguments.data());
    give_up("exec", std::strerror(errno));
}

void run_rank(const Options& options, int rank, int id_in, int id_out) {
    say("pid " + outer_pid());
    Rank training(options, rank, id_in, id_out);
    if (options.ending == "exec") {
        training.train((options.iterations + 1) / 2);
        become_another(options);
    }
    const std::uint64_t value = training.train(options.iterations);
    if (options.ending == "orphan" && fork() == 0) {
        // Inherits descriptors and mappings, and outlives the rank; touches no device.
        usleep(static_cast<useconds_t>(options.orphan_ms) * 1000U);
        _exit(0);
    }
    training.leave();
    std::array<char, 64> line{};
    std::snprintf(line.data(), line.size(), "result %d %016llx", rank,
                  static_cast<unsigned long long>(value));
    say(line.data());
}

// The launcher: it touches no device, and whether it lives is nothing to its ranks.
int launch_ranks(const Options& options) {
    int id_pipe[2];
    if (pipe(id_pipe) != 0) {
        give_up("pipe", std::strerror(errno));
    }
    for (int rank = 0; rank < options.ranks; ++rank) {
        const pid_t child = fork();
        if (child < 0) {
            give_up("fork", std::strerror(errno));
        }
        if (child == 0) {
            close(id_pipe[rank == 0 ? 0 : 1]);
            run_rank(options, rank, id_pipe[0], id_pipe[1]);
            std::exit(0);
        }
    }
    close(id_pipe[0]);
    close(id_pipe[1]);
    bool well = true;
    int status = 0;
    for (pid_t child = wait(&status); child > 0 || errno == EINTR; child = wait(&status)) {
        well = well && (child < 0 || status == 0);
    }
    return well ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("A short training job for the virtual GPU whose result is known beforehand.");
    app.add_option("--ranks", options.ranks, "processes, one a device")->check(CLI::Range(1, 8));
    app.add_option("--device", options.device, "device of rank 0")->check(CLI::Range(0, 63));
    app.add_option("--iterations", options.iterations, "iterations")->check(CLI::Range(1, 1000000));
    app.add_option("--compute-us", options.compute_us, "device time an iteration, us")
        ->check(CLI::Range(1U, 10'000'000U));
    app.add_option("--bytes", options.bytes, "bytes of an all-reduce")
        ->check(CLI::Range(std::size_t{8}, std::size_t{1} << 26));
    app.add_option("--seed", options.seed, "what the result depends on");
    app.add_option("--ending", options.ending, "return, exec in the middle, or leave an orphan")
        ->check(CLI::IsMember({"return", "exec", "orphan"}));
    app.add_option("--orphan-ms", options.orphan_ms, "how long the orphan lives, ms")
        ->check(CLI::Range(0, 60'000));
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp& help) {
        return app.exit(help);
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "chaos_job: %s\n", error.what());
        return 2;
    }
    if (options.ending == "exec" && options.ranks != 1) {
        std::fprintf(stderr, "chaos_job: --ending exec: allowed with one rank only\n");
        return 2;
    }
    return launch_ranks(options);
}

// SPDX-License-Identifier: Apache-2.0
// A small CUDA program, run by the tests in processes of its own: helper SUBCOMMAND. Prints results
// as plain words; exit status 0 unless something could not be done at all. No test logic here.

#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace {

void need(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    printf("%s: %d\n", what, static_cast<int>(result));
    exit(1);
}

CUcontext make_context() {
    need(cuInit(0), "cuInit");
    CUcontext context = nullptr;
    need(cuCtxCreate(&context, nullptr, 0, 0), "cuCtxCreate");
    return context;
}

CUfunction kernel(const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    need(cuModuleLoadData(&module, name), "cuModuleLoadData");
    need(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
    return function;
}

CUresult add(CUstream stream, CUdeviceptr p, unsigned cost_us) {
    int value = 1;
    int count = 1;
    void* parameters[] = {&p, &value, &count, &cost_us};
    static const CUfunction function = kernel("add");
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

// Result of cuInit, then one line for each visible device: UUID and PCI id.
int devices() {
    const CUresult init = cuInit(0);
    printf("init %d\n", static_cast<int>(init));
    int count = 0;
    if (init != CUDA_SUCCESS) return 0;
    need(cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (int i = 0; i < count; ++i) {
        CUuuid uuid;
        char bus[32];
        need(cuDeviceGetUuid(&uuid, i), "cuDeviceGetUuid");
        need(cuDeviceGetPCIBusId(bus, sizeof bus, i), "cuDeviceGetPCIBusId");
        printf("GPU-");
        for (int b = 0; b < 16; ++b)
            printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "",
                   static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[b])));
        printf(" %s\n", bus);
    }
    return 0;
}

// How many devices it sees, and what the first has.
int first_device() {
    need(cuInit(0), "cuInit");
    int count = 0;
    int multiprocessors = 0;
    std::size_t bytes = 0;
    std::size_t free = 0;
    std::size_t total = 0;
    char name[64];
    need(cuDeviceGetCount(&count), "cuDeviceGetCount");
    need(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
         "cuDeviceGetAttribute");
    need(cuDeviceTotalMem(&bytes, 0), "cuDeviceTotalMem");
    need(cuDeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
    make_context();
    need(cuMemGetInfo(&free, &total), "cuMemGetInfo");
    CUdeviceptr all = 0;
    const CUresult too_much = cuMemAlloc(&all, bytes + 1);
    printf("%d devices, %d multiprocessors, %zu and %zu MiB, %d, %s\n", count, multiprocessors,
           bytes >> 20, total >> 20, static_cast<int>(too_much), name);
    return 0;
}

// A child forked with work in flight tries everything; the parent goes on.
int forking() {
    make_context();
    CUdeviceptr p = 0;
    need(cuMemAlloc(&p, 4), "cuMemAlloc");
    need(cuMemsetD32(p, 0, 1), "cuMemsetD32");
    std::vector<pid_t> children;
    std::thread busy([&] {  // holds the driver's locks most of the time
        for (int i = 0; i < 2000; ++i) cuDriverGetVersion(&i), cuStreamQuery(CU_STREAM_LEGACY);
    });
    for (int i = 0; i < 20; ++i) {
        need(add(nullptr, p, 1000), "add");
        const pid_t child = fork();
        if (child == 0) {
            CUcontext context = nullptr;
            CUdeviceptr q = 0;
            const bool refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                                 cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED &&
                                 cuMemAlloc(&q, 4) == CUDA_ERROR_NOT_INITIALIZED &&
                                 cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED &&
                                 add(nullptr, p, 1) == CUDA_ERROR_NOT_INITIALIZED;
            exit(refused ? 0 : 1);  // with exit handlers, as a data loader's worker
        }
        children.push_back(child);
    }
    busy.join();
    int refused = 0;
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        refused += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    int value = 0;
    need(cuMemcpyDtoH(&value, p, 4), "cuMemcpyDtoH");
    printf("children %d value %d\n", refused, value);
    return 0;
}

// Waits for a long kernel on one thread and a value on another, while a third kills the server.
int server_death(pid_t server) {
    CUcontext context = make_context();
    CUdeviceptr p = 0;
    CUstream s = nullptr;
    need(cuMemAlloc(&p, 8), "cuMemAlloc");
    need(cuMemsetD32(p, 0, 2), "cuMemsetD32");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    need(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    need(cuStreamWaitValue32(s, p + 4, 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
    need(add(nullptr, p, 600'000'000), "add");
    CUresult other = CUDA_SUCCESS;
    std::thread waiter([&] {
        cuCtxSetCurrent(context);
        other = cuStreamSynchronize(s);
    });
    std::thread killer([server] { kill(server, SIGKILL); });
    const CUresult first = cuStreamSynchronize(nullptr);
    waiter.join();
    killer.join();
    CUdeviceptr q = 0;
    printf("sync %d wait %d launch %d alloc %d query %d\n", static_cast<int>(first),
           static_cast<int>(other), static_cast<int>(add(nullptr, p, 1)),
           static_cast<int>(cuMemAlloc(&q, 4)), static_cast<int>(cuStreamQuery(s)));
    return 0;
}

// Ends with work in flight that would write to memory that is gone.
int exit_early() {
    make_context();
    CUdeviceptr p = 0;
    need(cuMemAlloc(&p, 4), "cuMemAlloc");
    need(add(nullptr, p, 600'000'000), "add");
    printf("leaving\n");
    return 0;
}

// Whether the device has stream memory operations, by its attributes and by use.
int memory_operations() {
    make_context();
    int narrow = -1;
    int wide = -1;
    need(cuDeviceGetAttribute(&narrow, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0),
         "cuDeviceGetAttribute");
    need(cuDeviceGetAttribute(&wide, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0),
         "cuDeviceGetAttribute");
    CUdeviceptr p = 0;
    need(cuMemAlloc(&p, 8), "cuMemAlloc");
    CUstreamBatchMemOpParams op{};
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = p;
    printf("attributes %d %d write %d batch %d\n", narrow, wide,
           static_cast<int>(cuStreamWriteValue32(nullptr, p, 1, 0)),
           static_cast<int>(cuStreamBatchMemOp(nullptr, 1, &op, 0)));
    return 0;
}

// One thread fills a stream that waits; another asks the driver something else.
int full_queue() {
    CUcontext context = make_context();
    CUdeviceptr p = 0;
    CUstream s = nullptr;
    need(cuMemAlloc(&p, 8), "cuMemAlloc");
    need(cuMemsetD32(p, 0, 2), "cuMemsetD32");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    need(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    need(cuStreamWaitValue32(s, p + 4, 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
    constexpr int kLaunches = 1200;
    std::atomic<int> launched{0};
    std::thread filler([&] {
        need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        for (; launched < kLaunches; ++launched) need(add(s, p, 1), "add");
    });
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
    int before = -1;
    while (before != launched || before < 1000) {
        before = launched;
        pause();
    }
    std::atomic<bool> answered{false};
    std::thread asker([&] {
        need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        need(cuStreamQuery(nullptr), "cuStreamQuery");
        answered = true;
    });
    pause();
    const bool free = answered;
    __atomic_store_n(reinterpret_cast<int*>(p + 4), 1, __ATOMIC_RELEASE);
    filler.join();
    asker.join();
    printf("full %d answered %d then %d\n", before < kLaunches ? 1 : 0, free ? 1 : 0,
           answered ? 1 : 0);
    return 0;
}

volatile sig_atomic_t signals = 0;

// Signals sent to the process must reach the program's thread only.
int signals_stay() {
    make_context();
    struct sigaction action {};
    action.sa_handler = [](int) { signals = signals + 1; };
    sigaction(SIGUSR1, &action, nullptr);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, nullptr);  // this thread blocks it: another one would take it
    kill(getpid(), SIGUSR1);
    CUdeviceptr p = 0;
    need(cuMemAlloc(&p, 4), "cuMemAlloc");
    for (int i = 0; i < 20; ++i) need(add(nullptr, p, 1000), "add");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("taken %d\n", static_cast<int>(signals));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string command = argc >= 2 ? argv[1] : "";
    if (command == "devices") return devices();
    if (command == "first-device") return first_device();
    if (command == "fork") return forking();
    if (command == "server-death" && argc == 3) return server_death(atoi(argv[2]));
    if (command == "exit-early") return exit_early();
    if (command == "signals") return signals_stay();
    if (command == "memory-operations") return memory_operations();
    if (command == "full-queue") return full_queue();
    fprintf(stderr,
            "helper: '%s' is no subcommand; allowed: devices, first-device, fork, server-death "
            "PID, exit-early, signals, memory-operations, full-queue\n",
            command.c_str());
    return 2;
}

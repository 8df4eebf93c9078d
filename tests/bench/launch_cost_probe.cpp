// SPDX-License-Identifier: Apache-2.0
// A program that launches as fast as it can through every entry, however it was obtained, and says
// what a launch cost: an ordinary CUDA program that knows nothing of libcrossover and is run bare,
// preloaded alone and preloaded beside another job by launch_cost.py. It judges nothing.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_DUMP_STATS_AT(name) static_cast<void>(name)
#define CALLGRIND_ZERO_STATS static_cast<void>(0)
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

extern "C" {
CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, unsigned, CUstream, void**, void**);
CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig*, CUfunction, void**, void**);
CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                                unsigned, unsigned, unsigned, CUstream, void**);
CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec, CUstream);
// What nvcc makes of <<<>>> and of the registration of kernels.
cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t CUDARTAPI cudaLaunchKernel_ptsz(const void*, dim3, dim3, void**, size_t, cudaStream_t);
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*);
}

namespace {

struct Options {
    long launches = 20'000;
    long repeats = 5;
    int threads = 1;
    bool same_stream = false;     // all threads launch on one stream
    bool default_stream = false;  // handle 0
    bool no_runtime = false;      // driver entries only
    bool forbid = false;          // no system call and no write but to the own stack
    std::string break_rule;       // with the former, "call" or "write": do it, to see it noticed
    std::string only;             // part of an entry's name
};

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "launch_cost_probe: %s\n", why.c_str());
    std::exit(2);
}

template <class Result>
void check(Result result, const char* what) {
    if (static_cast<int>(result) != 0) {
        fail(std::string(what) + " gave " + std::to_string(static_cast<int>(result)));
    }
}

// ------------------------------------------------------------------------------------- entries

// What callgrind counts: this function and what it calls, nothing else of the process.
template <class Call>
[[gnu::noinline]] bool measured_loop(long launches, Call call) {
    int failed = 0;
    for (long done = 0; done < launches; ++done) {
        failed |= static_cast<int>(call());
    }
    return failed == 0;
}

struct Entry {
    std::string name;  // function/how it was obtained
    std::function<bool(CUstream, long)> run;
};

CUfunction function() {
    CUlibrary library = nullptr;
    CUkernel found = nullptr;
    check(cuLibraryLoadData(&library, "", nullptr, nullptr, 0, nullptr, nullptr, 0), "load");
    check(cuLibraryGetKernel(&found, library, "stub_kernel"), "cuLibraryGetKernel");
    return reinterpret_cast<CUfunction>(found);
}

template <class Pointer>
std::vector<std::pair<std::string, Pointer>> by_all_ways(const char* base, const char* symbol,
                                                         Pointer linked, cuuint64_t flags) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    void* const looked_up = library == nullptr ? nullptr : dlsym(library, symbol);
    void* asked = nullptr;
    CUdriverProcAddressQueryResult status{};
    if (looked_up == nullptr ||
        cuGetProcAddress_v2(base, &asked, 13000, flags, &status) != CUDA_SUCCESS) {
        fail(std::string("cannot find ") + symbol);
    }
    return {{"link", linked},
            {"dlsym", reinterpret_cast<Pointer>(looked_up)},
            {"cuGetProcAddress", reinterpret_cast<Pointer>(asked)}};
}

std::vector<Entry> driver_entries() {
    std::vector<Entry> entries;
    const auto add = [&](const char* base, const char* symbol, auto linked, bool per_thread,
                         auto make_call) {
        const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
        for (const auto& [way, pointer] : by_all_ways(base, symbol, linked, flags)) {
            entries.push_back({std::string(symbol) + "/" + way,
                               [pointer = pointer, make_call](CUstream stream, long launches) {
                                   return measured_loop(launches, make_call(pointer, stream));
                               }});
        }
    };
    const CUfunction f = function();
    const auto kernel = [f](auto pointer, CUstream stream) {
        return [=] { return pointer(f, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr); };
    };
    const auto kernel_ex = [f](auto pointer, CUstream stream) {
        CUlaunchConfig config{};
        config.gridDimX = config.gridDimY = config.gridDimZ = 1;
        config.blockDimX = config.blockDimY = config.blockDimZ = 1;
        config.hStream = stream;
        return [=] { return pointer(&config, f, nullptr, nullptr); };
    };
    const auto cooperative = [f](auto pointer, CUstream stream) {
        return [=] { return pointer(f, 1, 1, 1, 32, 1, 1, 0, stream, nullptr); };
    };
    const auto graph = [](auto pointer, CUstream stream) {
        return [=] { return pointer(nullptr, stream); };
    };
#define PROBE_ENTRY(base, make_call)            \
    add(#base, #base, &base, false, make_call); \
    add(#base, #base "_ptsz", &base##_ptsz, true, make_call);
    PROBE_ENTRY(cuLaunchKernel, kernel)
    PROBE_ENTRY(cuLaunchKernelEx, kernel_ex)
    PROBE_ENTRY(cuLaunchCooperativeKernel, cooperative)
    PROBE_ENTRY(cuGraphLaunch, graph)
#undef PROBE_ENTRY
    return entries;
}

// The runtime's entries call the driver's in turn, so these go through the library twice.
std::vector<Entry> runtime_entries() {
    static const char host_stub = 0;
    static struct {
        int magic = 0x466243b1, version = 1;
        const void* data = "stub";
        void* filename = nullptr;
    } image;
    void** const handle = __cudaRegisterFatBinary(&image);
    char name[] = "stub_kernel";
    __cudaRegisterFunction(handle, &host_stub, name, name, -1, nullptr, nullptr, nullptr, nullptr,
                           nullptr);
    check(cudaFree(nullptr), "the runtime's first call");
    const void* const stub = &host_stub;
    const auto kernel = reinterpret_cast<cudaKernel_t>(function());
    std::vector<Entry> entries;
    const auto add = [&](const char* entry, auto make_call) {
        entries.push_back({entry, [make_call](CUstream stream, long launches) {
                               return measured_loop(launches, make_call(stream));
                           }});
    };
    add("cudaLaunchKernel/link", [=](CUstream stream) {
        return [=] { return cudaLaunchKernel(stub, dim3(1), dim3(32), nullptr, 0, stream); };
    });
    add("cudaLaunchKernel_ptsz/link", [=](CUstream stream) {
        return [=] { return cudaLaunchKernel_ptsz(stub, dim3(1), dim3(32), nullptr, 0, stream); };
    });
    add("__cudaLaunchKernel/link", [=](CUstream stream) {
        return [=] { return __cudaLaunchKernel(kernel, dim3(1), dim3(32), nullptr, 0, stream); };
    });
    add("cudaLaunchKernelExC/link", [=](CUstream stream) {
        cudaLaunchConfig_t config{};
        config.gridDim = config.blockDim = dim3(1);
        config.stream = stream;
        return [=] { return cudaLaunchKernelExC(&config, stub, nullptr); };
    });
    add("cudaLaunchCooperativeKernel/link", [=](CUstream stream) {
        return [=] {
            return cudaLaunchCooperativeKernel(stub, dim3(1), dim3(32), nullptr, 0, stream);
        };
    });
    return entries;
}

// ----------------------------------------------------------------------------------- measuring

// Of the calling thread: with more threads than cores, waiting for a core is nobody's cost.
double thread_cpu_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// CPU nanoseconds a launch: median over batches and threads.
double measure(const Entry& entry, const Options& options, CUcontext context,
               const std::vector<CUstream>& streams) {
    std::vector<std::vector<double>> samples(static_cast<std::size_t>(options.threads));
    std::barrier start(options.threads);
    std::atomic<bool> failed{false};
    const auto body = [&](std::size_t number) {
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        const CUstream stream = streams[number];
        failed = !entry.run(stream, 64) || failed;  // first sight of stream and function
        start.arrive_and_wait();
        for (long repeat = 0; repeat < options.repeats; ++repeat) {
            const double before = thread_cpu_ns();
            failed = !entry.run(stream, options.launches) || failed;
            samples[number].push_back((thread_cpu_ns() - before) /
                                      static_cast<double>(options.launches));
        }
    };
    if (options.threads == 1) {
        body(0);
    } else {
        std::vector<std::thread> threads;
        for (int number = 0; number < options.threads; ++number) {
            threads.emplace_back(body, static_cast<std::size_t>(number));
        }
        for (std::thread& thread : threads) thread.join();
    }
    if (failed) fail(entry.name + " refused a launch");
    std::vector<double> all;
    for (const auto& each : samples) all.insert(all.end(), each.begin(), each.end());
    return median(all);
}

void prepare_filter() {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("seccomp is not available");
}

// From here on any system call of this thread but write and exit ends the process (SIGSYS).
void forbid_system_calls() {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) {
        static_cast<void>(!write(STDERR_FILENO, "seccomp is not available\n", 25));
        _exit(2);
    }
}

struct Ranges {
    std::array<std::pair<std::uintptr_t, std::uintptr_t>, 1024> list;  // no heap
    std::size_t count = 0;
};

// What this process may write to, but for the stack and the few pages of thread-local storage into
// which the kernel itself writes (rseq).
Ranges writable_memory() {
    constexpr std::uintptr_t kPage = 4096;
    const auto stack = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    const auto own = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer()) & ~(kPage - 1);
    Ranges found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        char rights[8] = {};
        if (std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, rights) == 3 &&
            rights[0] == 'r' && rights[1] == 'w' && (stack < begin || stack >= end)) {
            if (found.count + 2 > found.list.size()) fail("too many mappings");
            found.list[found.count++] = {begin, std::clamp(own - kPage, begin, end)};
            found.list[found.count++] = {std::clamp(own + 2 * kPage, begin, end), end};
        }
    }
    return found;
}

// From here on a write to these ends the process (SIGSEGV): its data, its heap, the library's, the
// memory that processes share. For one thread; others must be asleep.
void forbid_writes(const Ranges& ranges) {
    for (std::size_t index = 0; index < ranges.count; ++index) {
        const auto [begin, end] = ranges.list[index];
        if (begin != end && mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ) != 0) {
            static_cast<void>(!write(STDERR_FILENO, "mprotect failed\n", 16));
            _exit(2);
        }
    }
}

bool others_sleep() {
    const std::string self = std::to_string(getpid());
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string stat;
        std::getline(std::ifstream(task.path() / "stat"), stat);
        const std::size_t state = stat.rfind(')') + 2;
        if (task.path().filename() != self && (state >= stat.size() || stat[state] != 'S')) {
            return false;
        }
    }
    return true;
}

// The library's own thread has gone to sleep: seen so several times in a row.
void wait_until_others_sleep() {
    int seen = 0;
    for (int looks = 0; looks < 1000 && seen < 5; ++looks) {
        seen = others_sleep() ? seen + 1 : 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (seen < 5) fail("another thread of this process does not go to sleep");
}

volatile int somewhere = 0;

[[noreturn]] void launch_by_the_rules(const std::vector<Entry>& entries, const Options& options,
                                      CUstream stream) {
    bool accepted = true;
    for (const Entry& entry : entries) accepted = entry.run(stream, 64) && accepted;
    prepare_filter();
    wait_until_others_sleep();
    const Ranges memory = writable_memory();
    forbid_writes(memory);
    forbid_system_calls();
    for (const Entry& entry : entries) accepted = entry.run(stream, options.launches) && accepted;
    if (options.break_rule == "call") syscall(SYS_getppid);
    if (options.break_rule == "write") somewhere = 1;
    constexpr char kDone[] = "no system call, no write\n";
    accepted = write(STDOUT_FILENO, kDone, sizeof kDone - 1) == sizeof kDone - 1 && accepted;
    _exit(accepted ? 0 : 2);
}

long smaps_kib(const char* key) {
    std::ifstream file("/proc/self/smaps_rollup");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(key)) return std::atol(line.c_str() + std::strlen(key));
    }
    return -1;
}

int run(const Options& options) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::vector<CUstream> streams(static_cast<std::size_t>(options.threads));
    for (CUstream& stream : streams) {
        if (!options.default_stream) {
            check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        }
        if (options.same_stream) stream = streams.front();
    }
    std::vector<Entry> entries = driver_entries();
    if (!options.no_runtime) {
        std::vector<Entry> more = runtime_entries();
        std::move(more.begin(), more.end(), std::back_inserter(entries));
    }
    std::erase_if(entries, [&](const Entry& entry) {
        return entry.name.find(options.only) == std::string::npos;
    });
    if (entries.empty()) fail("no entry is called " + options.only);
    if (options.forbid) launch_by_the_rules(entries, options, streams[0]);
    std::string json = "{\"ns\": {";
    for (const Entry& entry : entries) {
        CALLGRIND_ZERO_STATS;
        const double ns = measure(entry, options, context, streams);
        CALLGRIND_DUMP_STATS_AT(entry.name.c_str());
        json += (json.back() == '{' ? "\"" : ", \"") + entry.name + "\": " + std::to_string(ns);
    }
    std::printf("%s}, \"rss_kib\": %ld, \"pss_kib\": %ld, \"private_dirty_kib\": %ld}\n",
                json.c_str(), smaps_kib("Rss:"), smaps_kib("Pss:"), smaps_kib("Private_Dirty:"));
    return 0;
}

// ------------------------------------------------------------------------------------ start-up

double spawn_us(char* program, char** environment) {
    char* arguments[] = {program, nullptr};
    timespec before{};
    timespec after{};
    pid_t child = 0;
    int status = 0;
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (posix_spawn(&child, program, nullptr, nullptr, arguments, environment) != 0 ||
        waitpid(child, &status, 0) != child || status != 0) {
        fail(std::string(program) + " did not run");
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    return static_cast<double>(after.tv_sec - before.tv_sec) * 1e6 +
           static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e3;
}

// Start to end of `program`, bare and with `library` preloaded, in turns.
int startup(char* library, long rounds, char* program) {
    std::string preload = std::string("LD_PRELOAD=") + library;
    char* bare[] = {nullptr};
    char* preloaded[] = {preload.data(), nullptr};
    std::vector<double> without;
    std::vector<double> with;
    std::vector<double> added;
    for (long round = 0; round < rounds; ++round) {
        const bool bare_first = round % 2 == 0;
        if (bare_first) without.push_back(spawn_us(program, bare));
        with.push_back(spawn_us(program, preloaded));
        if (!bare_first) without.push_back(spawn_us(program, bare));
        added.push_back(with.back() - without.back());
    }
    std::printf("{\"bare_us\": %.1f, \"preloaded_us\": %.1f, \"added_us\": %.1f}\n",
                median(without), median(with), median(added));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 5 && std::string_view(argv[1]) == "--startup") {
        return startup(argv[2], std::atol(argv[3]), argv[4]);
    }
    Options options;
    const auto number = [&](int& at) {
        const long value = at + 1 < argc ? std::atol(argv[++at]) : 0;
        if (value <= 0) fail(std::string(argv[at]) + ": a positive number is needed");
        return value;
    };
    for (int at = 1; at < argc; ++at) {
        const std::string_view option = argv[at];
        if (option == "--launches")
            options.launches = number(at);
        else if (option == "--repeats")
            options.repeats = number(at);
        else if (option == "--threads")
            options.threads = static_cast<int>(number(at));
        else if (option == "--same-stream")
            options.same_stream = true;
        else if (option == "--default-stream")
            options.default_stream = true;
        else if (option == "--no-runtime")
            options.no_runtime = true;
        else if (option == "--forbid")
            options.forbid = true;
        else if (option == "--break" && at + 1 < argc)
            options.break_rule = argv[++at];
        else if (option == "--only" && at + 1 < argc)
            options.only = argv[++at];
        else
            fail("unknown option " + std::string(option));
    }
    return run(options);
}

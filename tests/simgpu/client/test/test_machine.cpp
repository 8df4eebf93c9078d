// SPDX-License-Identifier: Apache-2.0
// See test_machine.hpp.

#include "test_machine.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>

namespace simgpu::test {
namespace {

constexpr int kStartMs = 30'000;

std::unique_ptr<Machine>& the_machine() {
    static std::unique_ptr<Machine> one;
    return one;
}

// Test listing must not start anything, so the machine comes up with the first test.
class MachineEnvironment : public ::testing::Environment {
  public:
    void SetUp() override {
        the_machine() = std::make_unique<Machine>(4);
        setenv("SIMGPU_DIR", the_machine()->dir().c_str(), 1);
        unsetenv("CUDA_VISIBLE_DEVICES");
        ASSERT_CU(cuInit(0));
    }
    void TearDown() override { the_machine().reset(); }
};

[[maybe_unused]] const auto* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new MachineEnvironment);

int wait_for(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

Machine::Machine(int devices, std::vector<std::string> options) {
    std::string pattern = (std::filesystem::temp_directory_path() / "simgpu-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    dir_ = pattern;
    int ready[2];
    if (pipe(ready) != 0) throw std::runtime_error("pipe");
    std::vector<std::string> words = {
        SIMGPU_TEST_SERVER,      "--dir", dir_, "--devices", std::to_string(devices), "--ready-fd",
        std::to_string(ready[1])};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    server_ = fork();
    if (server_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        execv(argv[0], argv.data());
        _exit(127);
    }
    close(ready[1]);
    fcntl(ready[0], F_SETFD, FD_CLOEXEC);
    pollfd poller{ready[0], POLLIN, 0};
    char byte = 0;
    const bool up = poll(&poller, 1, kStartMs) == 1 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    if (!up) throw std::runtime_error(std::string("no device server: ") + SIMGPU_TEST_SERVER);
}

Machine::~Machine() {
    stop();
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
}

void Machine::stop() {
    if (server_ <= 0) return;
    kill(server_, SIGKILL);
    wait_for(server_);
    server_ = -1;
}

Machine& machine() { return *the_machine(); }

void ContextTest::SetUp() { ASSERT_CU(cuCtxCreate(&context_, nullptr, 0, 0)); }

void ContextTest::TearDown() { EXPECT_CU(cuCtxDestroy(context_)); }

CUfunction kernel(const char* name) {
    static const char kImage[] = "image";
    CUlibrary library = nullptr;
    CUkernel found = nullptr;
    CUfunction function = nullptr;
    EXPECT_CU(cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
    EXPECT_CU(cuLibraryGetKernel(&found, library, name));
    EXPECT_CU(cuKernelGetFunction(&function, found));
    return function;
}

static CUresult launch(const char* name, CUstream stream, CUdeviceptr p, int a, int b,
                       unsigned cost_us) {
    void* parameters[] = {&p, &a, &b, &cost_us};
    return cuLaunchKernel(kernel(name), 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
}

CUresult launch_add(CUstream stream, CUdeviceptr p, int value, int count, unsigned cost_us) {
    return launch("add", stream, p, value, count, cost_us);
}

CUresult launch_affine(CUstream stream, CUdeviceptr p, int factor, int value, unsigned cost_us) {
    return launch("affine", stream, p, factor, value, cost_us);
}

Gate::Gate() : address_(zeroed(1)) {}

void Gate::hold(CUstream stream) const {
    EXPECT_CU(cuStreamWaitValue32(stream, address_, 1, CU_STREAM_WAIT_VALUE_EQ));
}

void Gate::open() const { __atomic_store_n(reinterpret_cast<int*>(address_), 1, __ATOMIC_RELEASE); }

CUdeviceptr zeroed(std::size_t ints) {
    CUdeviceptr p = 0;
    EXPECT_CU(cuMemAlloc(&p, ints * sizeof(int)));
    EXPECT_CU(cuMemsetD32(p, 0, ints));
    EXPECT_CU(cuCtxSynchronize());
    return p;
}

std::vector<int> read_ints(CUdeviceptr p, std::size_t count) {
    std::vector<int> values(count);
    EXPECT_CU(cuMemcpyDtoH(values.data(), p, count * sizeof(int)));
    return values;
}

HelperResult run_helper(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& variables) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    std::vector<std::string> words = {SIMGPU_TEST_HELPER};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDOUT_FILENO);
        for (const std::string& variable : variables) {
            const std::size_t at = variable.find('=');
            if (variable.back() == '!') {
                unsetenv(variable.substr(0, variable.size() - 1).c_str());
            } else {
                setenv(variable.substr(0, at).c_str(), variable.c_str() + at + 1, 1);
            }
        }
        execv(argv[0], argv.data());
        _exit(127);
    }
    close(out[1]);
    HelperResult result{};
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(out[0], buffer, sizeof buffer)) > 0)
        result.output.append(buffer, static_cast<std::size_t>(got));
    close(out[0]);
    result.status = wait_for(child);
    return result;
}

}  // namespace simgpu::test

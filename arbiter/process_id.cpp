// SPDX-License-Identifier: Apache-2.0
// See process_id.hpp.
#include "arbiter/process_id.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace crossover {
namespace {

using Remembered = std::atomic<pid_t>;

// nullptr where the kernel does not offer such memory (before Linux 4.14).
Remembered* make() noexcept {
    const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return nullptr;
    if (madvise(page, bytes, MADV_WIPEONFORK) == 0) return new (page) Remembered(0);
    munmap(page, bytes);
    return nullptr;
}

}  // namespace

pid_t process_id() noexcept {
    static Remembered* const remembered = make();
    if (remembered == nullptr) return getpid();
    pid_t id = remembered->load(std::memory_order_relaxed);
    if (id == 0) {
        id = getpid();
        remembered->store(id, std::memory_order_relaxed);
    }
    return id;
}

}  // namespace crossover

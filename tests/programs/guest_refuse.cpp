// SPDX-License-Identifier: Apache-2.0
// A preload that plays a system out of something, for one caller only. GUEST_REFUSE=crossover: no
// thread for the library of that name (what it creates begins in it). GUEST_REFUSE=space: no room
// for any file.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>

namespace {

bool refuses(const char* what) {
    const char* wanted = std::getenv("GUEST_REFUSE");
    return wanted != nullptr && std::strcmp(wanted, what) == 0;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int pthread_create(pthread_t* thread, const pthread_attr_t* how,
                                                  void* (*body)(void*), void* argument) noexcept {
    Dl_info owner{};
    if (refuses("crossover") && ::dladdr(reinterpret_cast<void*>(body), &owner) != 0 &&
        std::strstr(owner.dli_fname, "libcrossover") != nullptr) {
        return EAGAIN;
    }
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto real = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
    return real(thread, how, body, argument);
}

[[gnu::visibility("default")]] int posix_fallocate(int file, off_t from, off_t bytes) {
    if (refuses("space")) {
        return ENOSPC;
    }
    using Allocate = int (*)(int, off_t, off_t);
    static const auto real = reinterpret_cast<Allocate>(::dlsym(RTLD_NEXT, "posix_fallocate"));
    return real(file, from, bytes);
}

[[gnu::visibility("default")]] int posix_fallocate64(int file, off64_t from, off64_t bytes) {
    return posix_fallocate(file, from, bytes);
}

[[gnu::visibility("default")]] int fallocate(int file, int mode, off_t from, off_t bytes) {
    if (refuses("space")) {
        errno = ENOSPC;
        return -1;
    }
    using Allocate = int (*)(int, int, off_t, off_t);
    static const auto real = reinterpret_cast<Allocate>(::dlsym(RTLD_NEXT, "fallocate"));
    return real(file, mode, from, bytes);
}
}

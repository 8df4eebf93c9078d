// SPDX-License-Identifier: Apache-2.0
#include "shim/inference/thread_end.hpp"

#include <unistd.h>

#include <new>

namespace crossover {

namespace {

struct Request {
    AtThreadEnd function;
    std::uintptr_t value;
    Request* next;
};

class Requests {
  public:
    constexpr Requests() noexcept = default;
    Requests(const Requests&) = delete;
    Requests& operator=(const Requests&) = delete;
    ~Requests() {
        // A forked child's only thread is its main one as well.
        const bool ends_process = ::getpid() == ::gettid();
        while (first_ != nullptr) {
            Request* const request = first_;
            first_ = request->next;
            if (!ends_process) {
                request->function(request->value);
            }
            delete request;
        }
    }
    void add(Request* request) noexcept {
        request->next = first_;
        first_ = request;
    }

  private:
    Request* first_ = nullptr;
};

[[gnu::tls_model("initial-exec")]] thread_local constinit Requests requests;

}  // namespace

bool at_thread_end(AtThreadEnd function, std::uintptr_t value) noexcept {
    Request* const request = new (std::nothrow) Request{function, value, nullptr};
    if (request == nullptr) {
        return false;
    }
    requests.add(request);
    return true;
}

}  // namespace crossover

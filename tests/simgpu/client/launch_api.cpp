// SPDX-License-Identifier: Apache-2.0
// Kernel launches: parameter values are copied at the call, the host version runs on the executor
// when the device server says that the kernel is done. Occupancy too.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "memory.hpp"
#include "module.hpp"
#include "stream.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

constexpr std::uint64_t kDefaultKernelNs = 5'000;  // of a kernel that does not say
constexpr unsigned kThreadsPerMultiprocessor = 2048;
constexpr unsigned kBlocksPerMultiprocessor = 32;
constexpr unsigned kThreadsPerBlock = 1024;
constexpr int kBlocksPerCluster = 8;
constexpr std::size_t kSharedPerMultiprocessor = 233472;
constexpr std::size_t kSharedReserved = 1024;  // bytes per block
constexpr std::size_t kDefaultShared = 49152;
constexpr float kDefaultCollectiveShare = 0.015F;

// The values of a kernel's parameters, each in a place aligned for any type.
class Parameters {
  public:
    explicit Parameters(const SimgpuKernel& kernel) : kernel_(&kernel) {
        std::size_t offset = 0;
        for (std::size_t i = 0; i < kernel.parameter_count; ++i) {
            offsets_.push_back(offset);
            offset += (kernel.parameter_sizes[i] + kSlot - 1) / kSlot * kSlot;
        }
        storage_.resize(offset / kSlot);
    }

    void take(void* const* values) {
        for (std::size_t i = 0; i < offsets_.size(); ++i)
            std::memcpy(place(i), values[i], kernel_->parameter_sizes[i]);
    }

    // From another one of the same kernel.
    void take_from(const Parameters& other) {
        std::copy(other.storage_.begin(), other.storage_.end(), storage_.begin());
    }

    // From a packed buffer, laid out as the device's ABI does; false when it is too short.
    bool take_packed(const std::byte* buffer, std::size_t size) {
        std::size_t offset = 0;
        for (std::size_t i = 0; i < offsets_.size(); ++i) {
            const std::size_t bytes = kernel_->parameter_sizes[i];
            // The alignment of a type is not told: that of the largest scalar that divides its
            // size.
            const std::size_t alignment =
                std::min<std::size_t>(16, std::size_t{1} << __builtin_ctzll(bytes | 16));
            offset = (offset + alignment - 1) / alignment * alignment;
            if (offset > size || bytes > size - offset) return false;
            std::memcpy(place(i), buffer + offset, bytes);
            offset += bytes;
        }
        return true;
    }

    std::vector<void*> pointers() {
        std::vector<void*> result;
        for (std::size_t i = 0; i < offsets_.size(); ++i) result.push_back(place(i));
        return result;
    }

  private:
    static constexpr std::size_t kSlot = 16;
    struct alignas(kSlot) Slot {
        std::byte bytes[kSlot];
    };
    std::byte* place(std::size_t i) { return storage_[offsets_[i] / kSlot].bytes; }

    const SimgpuKernel* kernel_;
    std::vector<std::size_t> offsets_;
    std::vector<Slot> storage_;
};

// The buffer that `extra` names; false when it names none.
bool packed_buffer(void** extra, std::byte** buffer, std::size_t* size) {
    *buffer = nullptr;
    *size = 0;
    if (extra == nullptr) return false;
    for (std::size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            *buffer = static_cast<std::byte*>(extra[i + 1]);
        } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            *size = *static_cast<std::size_t*>(extra[i + 1]);
        } else {
            return false;
        }
    }
    return *buffer != nullptr;
}

unsigned blocks_per_multiprocessor(unsigned threads, std::size_t shared_bytes) {
    const std::size_t by_shared = kSharedPerMultiprocessor / (shared_bytes + kSharedReserved);
    const unsigned warps = (threads + 31) / 32 * 32;
    return static_cast<unsigned>(std::min<std::size_t>(
        {kThreadsPerMultiprocessor / warps, kBlocksPerMultiprocessor, by_shared}));
}

std::size_t shared_limit(const CUfunc_st& function) {
    const auto set = function.attributes.find(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    return set == function.attributes.end() ? kDefaultShared
                                            : static_cast<std::size_t>(set->second);
}

// All that a process sees have as many.
unsigned multiprocessors(const Driver& d) { return multiprocessors_of(*d.devices.front()); }

CUresult check_shape(const Driver& d, const CUfunc_st& function, const Launch& launch) {
    const SimgpuDim3& g = launch.grid;
    const SimgpuDim3& b = launch.block;
    if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (g.x > 2147483647U || g.y > 65535 || g.z > 65535) return CUDA_ERROR_INVALID_VALUE;
    if (b.x > 1024 || b.y > 1024 || b.z > 64) return CUDA_ERROR_INVALID_VALUE;
    const unsigned threads = b.x * b.y * b.z;
    if (threads > kThreadsPerBlock || launch.shared_bytes > shared_limit(function))
        return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t blocks = std::uint64_t{g.x} * g.y * g.z;
    if (launch.cooperative && blocks > std::uint64_t{multiprocessors(d)} *
                                           blocks_per_multiprocessor(threads, launch.shared_bytes))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return CUDA_SUCCESS;
}

float collective_share() {
    static const float share = [] {
        const char* text = std::getenv("SIMGPU_NCCL_SM_SHARE");
        if (text == nullptr || *text == '\0') return kDefaultCollectiveShare;
        char* end = nullptr;
        const float value = std::strtof(text, &end);
        if (*end == '\0' && value > 0.0F && value <= 1.0F) return value;
        std::fprintf(stderr, "simgpu: SIMGPU_NCCL_SM_SHARE is '%s'; allowed: above 0, at most 1\n",
                     text);
        return kDefaultCollectiveShare;
    }();
    return share;
}

CUresult make_collective(void** values, void** extra, Work* work) {
    std::byte* buffer = nullptr;
    std::size_t size = 0;
    if (values != nullptr || !packed_buffer(extra, &buffer, &size) ||
        size != sizeof(SimgpuCollective))
        return CUDA_ERROR_INVALID_VALUE;
    SimgpuCollective collective;
    std::memcpy(&collective, buffer, sizeof collective);
    if (collective.version != SIMGPU_COLLECTIVE_VERSION || collective.prepare == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    work->kind = OpKind::kCollective;
    work->cost_ns = kDefaultKernelNs;
    work->sm_share = collective_share();
    work->collective = std::make_shared<CollectiveLaunch>(collective);
    return CUDA_SUCCESS;
}

// Once for each name, so that nobody takes a no-op's results for real ones. The driver's lock is
// held.
void report_no_op(const std::string& name) {
    static auto* const reported = new std::set<std::string>;
    if (!reported->insert(name).second) return;
    std::fprintf(stderr, "simgpu: kernel '%s' has no host version: it runs as a no-op of %llu ns\n",
                 name.c_str(), static_cast<unsigned long long>(kDefaultKernelNs));
}

CUresult make_kernel(const CUfunc_st& function, const Launch& launch, void** values, void** extra,
                     Work* work) {
    work->kind = OpKind::kKernel;
    work->cost_ns = kDefaultKernelNs;
    if (function.host == nullptr) {
        report_no_op(function.name);
        const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
        work->sm_share =
            std::min(1.0F, static_cast<float>(blocks) / static_cast<float>(kMultiprocessors));
        return CUDA_SUCCESS;
    }
    const SimgpuKernel& kernel = function.host->description;
    auto parameters = std::make_shared<Parameters>(kernel);
    std::byte* buffer = nullptr;
    std::size_t size = 0;
    if (packed_buffer(extra, &buffer, &size)) {
        if (values != nullptr || !parameters->take_packed(buffer, size))
            return CUDA_ERROR_INVALID_VALUE;
    } else if (kernel.parameter_count > 0) {
        if (values == nullptr) return CUDA_ERROR_INVALID_VALUE;
        parameters->take(values);
    }
    if (kernel.sm_share > 0) work->sm_share = kernel.sm_share;
    if (kernel.cost_ns != nullptr)
        work->cost_ns = kernel.cost_ns(launch.grid, launch.block, parameters->pointers().data());
    // A copy for each run: a kernel may write to its parameters, and a graph runs it again. Made
    // here, so that a run needs no memory. Effects run one at a time.
    auto own = std::make_shared<Parameters>(kernel);
    work->effect = [run = kernel.run, grid = launch.grid, block = launch.block, parameters, own,
                    pointers = own->pointers()]() mutable {
        own->take_from(*parameters);
        run(grid, block, pointers.data());
    };
    return CUDA_SUCCESS;
}

// Takes over a collective's callbacks, if `handle` is one of those functions. Comes before every
// check: whatever fails afterwards, the launch's owner gets its release().
CUresult adopt_collective(CUfunction handle, void** values, void** extra, Work* work) noexcept {
    try {
        Driver& d = driver();
        if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;  // the lock may be held for ever
        const std::lock_guard lock(d.mutex);
        if (!d.functions.contains(handle) || !handle->collective) return CUDA_SUCCESS;
        return make_collective(values, extra, work);
    } catch (...) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

}  // namespace

CUresult kernel_work(Driver& d, CUfunction handle, const Launch& launch, void** values,
                     void** extra, Work* work) {
    const CUfunc_st* const function = resolve_function(d, handle);
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    work->node_type = CU_GRAPH_NODE_TYPE_KERNEL;
    if (const CUresult rc = check_shape(d, *function, launch); rc != CUDA_SUCCESS) return rc;
    // A collective's callbacks are in place already.
    if (function->collective) return work->collective ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return make_kernel(*function, launch, values, extra, work);
}

namespace {

CUresult launch_kernel(CUfunction handle, DefaultStream meaning, CUstream stream_handle,
                       const Launch& launch, void** values, void** extra) {
    const LaunchReturn at_the_end;
    Work work;
    if (const CUresult rc = adopt_collective(handle, values, extra, &work); rc != CUDA_SUCCESS)
        return rc;
    return call_in_context([&](Driver& d, CUcontext context, auto& lock) -> CUresult {
        CUfunc_st* const function = resolve_function(d, handle);
        if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, stream_handle, meaning, &stream);
            rc != CUDA_SUCCESS)
            return rc;
        const CUcontext home = function->module != nullptr ? function->module->context : nullptr;
        if (stream->context != context || (home != nullptr && home != context))
            return CUDA_ERROR_INVALID_HANDLE;
        if (const CUresult rc = kernel_work(d, handle, launch, values, extra, &work);
            rc != CUDA_SUCCESS)
            return rc;
        return submit(d, stream, std::move(work), lock);
    });
}

CUresult launch_ex(const CUlaunchConfig* c, DefaultStream meaning, CUfunction function,
                   void** values, void** extra) {
    if (c == nullptr || (c->numAttrs != 0 && c->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    Launch launch{{c->gridDimX, c->gridDimY, c->gridDimZ},
                  {c->blockDimX, c->blockDimY, c->blockDimZ},
                  c->sharedMemBytes};
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            launch.cooperative = c->attrs[i].value.cooperative != 0;
    }
    return launch_kernel(function, meaning, c->hStream, launch, values, extra);
}

CUresult active_blocks(int* blocks, CUfunction handle, int block_size, std::size_t shared_bytes) {
    if (blocks == nullptr || block_size <= 0 || block_size > static_cast<int>(kThreadsPerBlock))
        return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext, auto&) -> CUresult {
        if (resolve_function(d, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *blocks = static_cast<int>(
            blocks_per_multiprocessor(static_cast<unsigned>(block_size), shared_bytes));
        return CUDA_SUCCESS;
    });
}

CUresult potential_block_size(int* grid, int* block, CUfunction handle,
                              CUoccupancyB2DSize shared_of, std::size_t shared_bytes, int limit) {
    if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const int most = limit > 0 ? std::min(limit, static_cast<int>(kThreadsPerBlock))
                               : static_cast<int>(kThreadsPerBlock);
    int best = 0;
    int best_blocks = 0;
    // The largest occupancy, and of equal ones the largest block.
    for (int size = most; size > 0; size -= size % 32 == 0 ? 32 : size % 32) {
        int blocks = 0;
        const std::size_t shared = shared_of != nullptr ? shared_of(size) : shared_bytes;
        if (const CUresult rc = active_blocks(&blocks, handle, size, shared); rc != CUDA_SUCCESS)
            return rc;
        if (blocks * size <= best_blocks * best) continue;
        best = size;
        best_blocks = blocks;
    }
    *block = best;
    *grid = best_blocks * static_cast<int>(multiprocessors(driver()));
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_PTSZ(cuLaunchKernel,
            (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
             unsigned int block_x, unsigned int block_y, unsigned int block_z,
             unsigned int shared_bytes, CUstream stream, void** values, void** extra),
            launch_kernel(function, kDefault, stream,
                          {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes},
                          values, extra))
SIMGPU_PTSZ(cuLaunchKernelEx,
            (const CUlaunchConfig* config, CUfunction function, void** values, void** extra),
            launch_ex(config, kDefault, function, values, extra))
SIMGPU_PTSZ(
    cuLaunchCooperativeKernel,
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
     CUstream stream, void** values),
    launch_kernel(function, kDefault, stream,
                  {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true},
                  values, nullptr))

SIMGPU_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, CUfunction function, int block_size, std::size_t shared_bytes) {
    return active_blocks(blocks, function, block_size, shared_bytes);
}
SIMGPU_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, CUfunction function, int block_size, std::size_t shared_bytes, unsigned int) {
    return active_blocks(blocks, function, block_size, shared_bytes);
}
SIMGPU_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* grid, int* block,
                                                                CUfunction function,
                                                                CUoccupancyB2DSize shared_of,
                                                                std::size_t shared_bytes,
                                                                int limit) {
    return potential_block_size(grid, block, function, shared_of, shared_bytes, limit);
}
SIMGPU_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(
    int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of,
    std::size_t shared_bytes, int limit, unsigned int) {
    return potential_block_size(grid, block, function, shared_of, shared_bytes, limit);
}
SIMGPU_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle,
                                                                  const CUlaunchConfig*) {
    if (size == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext, auto&) -> CUresult {
        if (resolve_function(d, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *size = kBlocksPerCluster;
        return CUDA_SUCCESS;
    });
}
SIMGPU_EXPORT CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes,
                                                                       CUfunction handle,
                                                                       int blocks, int) {
    if (bytes == nullptr || blocks <= 0) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext, auto&) -> CUresult {
        const CUfunc_st* const function = resolve_function(d, handle);
        if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        const std::size_t share = kSharedPerMultiprocessor / static_cast<std::size_t>(blocks);
        *bytes = share > kSharedReserved
                     ? std::min(share - kSharedReserved, shared_limit(*function))
                     : 0;
        return CUDA_SUCCESS;
    });
}

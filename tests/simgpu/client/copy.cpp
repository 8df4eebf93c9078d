// SPDX-License-Identifier: Apache-2.0
// Copies: what a range is, what a copy costs, what happens with pageable host memory. No exported
// function here.

#include "copy.hpp"

#include <cstring>

#include "capture.hpp"

namespace simgpu {
namespace {

// Set to be of the right order; docs/calibration says what was measured.
constexpr std::uint64_t kBusLatencyNs = 6'000;
constexpr std::uint64_t kBusBytesPerNs = 50;
constexpr std::uint64_t kDeviceLatencyNs = 2'000;
constexpr std::uint64_t kDeviceBytesPerNs = 1'300;

struct Range {
    bool known = false;
    bool pageable = false;
    bool device = false;
    Device* owner = nullptr;
};

// False when a device range is not wholly inside one allocation.
bool look_up(Side side, const std::byte* base, std::size_t bytes, Range* range) {
    Allocation found;
    range->known = find_allocation(base, &found);
    if (!range->known) {
        range->pageable = true;
        return side != Side::kDevice;
    }
    range->device = found.kind == MemoryKind::kDevice;
    range->owner = found.device;
    if (side == Side::kHost && range->device) return false;
    const auto offset = static_cast<std::size_t>(base - found.base);
    if (bytes <= found.size - offset) return true;
    // Host memory may begin in a registered range and go on beyond it.
    range->pageable = true;
    return found.kind == MemoryKind::kRegistered && side != Side::kDevice;
}

void copy_box(const Place& destination, const Place& source, const Box& box) {
    for (std::size_t z = 0; z < box.depth; ++z) {
        std::byte* to = destination.base + z * destination.layer;
        const std::byte* from = source.base + z * source.layer;
        for (std::size_t y = 0; y < box.height; ++y)
            std::memmove(to + y * destination.pitch, from + y * source.pitch, box.width);
    }
}

}  // namespace

bool extent(const Place& place, const Box& box, std::size_t* bytes) {
    std::size_t rows = 0;
    std::size_t layers = 0;
    if (__builtin_mul_overflow(box.height - 1, place.pitch, &rows)) return false;
    if (__builtin_mul_overflow(box.depth - 1, place.layer, &layers)) return false;
    return !__builtin_add_overflow(rows, layers, bytes) &&
           !__builtin_add_overflow(*bytes, box.width, bytes);
}

Work copy_work(Place destination, Place source, Box box, bool crosses_bus) {
    const std::uint64_t bytes = box.width * box.height * box.depth;
    Work work;
    work.node_type = CU_GRAPH_NODE_TYPE_MEMCPY;
    work.kind = OpKind::kCopy;
    work.cost_ns = crosses_bus ? kBusLatencyNs + bytes / kBusBytesPerNs
                               : kDeviceLatencyNs + bytes / kDeviceBytesPerNs;
    work.effect = [=] { copy_box(destination, source, box); };
    return work;
}

CUresult copy(CUstream handle, DefaultStream meaning, Side to, Place destination, Side from,
              Place source, Box box, bool synchronous) {
    return call_in_context([&](Driver& d, CUcontext, auto& lock) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (synchronous) {
            if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
            if (const CUresult rc = check_not_capturing(d, stream); rc != CUDA_SUCCESS) return rc;
        }
        if (box.width == 0 || box.height == 0 || box.depth == 0) return CUDA_SUCCESS;
        std::size_t to_bytes = 0;
        std::size_t from_bytes = 0;
        if (!extent(destination, box, &to_bytes) || !extent(source, box, &from_bytes))
            return CUDA_ERROR_INVALID_VALUE;
        if (destination.base == nullptr || source.base == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Range to_range;
        Range from_range;
        if (!look_up(to, destination.base, to_bytes, &to_range)) return CUDA_ERROR_INVALID_VALUE;
        if (!look_up(from, source.base, from_bytes, &from_range)) return CUDA_ERROR_INVALID_VALUE;

        const bool crosses =
            !to_range.device || !from_range.device || to_range.owner != from_range.owner;
        Work work = copy_work(destination, source, box, crosses);
        // Pageable memory is staged: the source may change once the call has returned, and a
        // destination is complete when it returns. A captured copy reads and writes at replay.
        bool wait = synchronous && (to_range.pageable || from_range.pageable || crosses);
        if (!stream->capture && !synchronous) {
            if (from_range.pageable) {
                auto staged =
                    std::make_shared<std::vector<std::byte>>(source.base, source.base + from_bytes);
                const Place staging{staged->data(), source.pitch, source.layer};
                work.effect = [=] {
                    copy_box(destination, staging, box);
                    static_cast<void>(staged->size());  // keeps the staging buffer
                };
            }
            wait = to_range.pageable;
        }
        OpId op = 0;
        if (const CUresult rc = submit(d, stream, std::move(work), lock, nullptr, &op);
            rc != CUDA_SUCCESS)
            return rc;
        return wait ? wait_idle(d, {op}, lock) : CUDA_SUCCESS;
    });
}

Work fill_work(Place destination, Box box, std::uint32_t value, std::size_t element) {
    Work work;
    work.node_type = CU_GRAPH_NODE_TYPE_MEMSET;
    work.kind = OpKind::kKernel;
    work.cost_ns = kDeviceLatencyNs + box.width * box.height / (2 * kDeviceBytesPerNs);
    work.effect = [=] {
        for (std::size_t y = 0; y < box.height; ++y) {
            std::byte* const row = destination.base + y * destination.pitch;
            if (element == 1) {
                std::memset(row, static_cast<int>(value & 0xff), box.width);
                continue;
            }
            for (std::size_t x = 0; x < box.width; x += element)
                std::memcpy(row + x, &value, element);
        }
    };
    return work;
}

}  // namespace simgpu

// SPDX-License-Identifier: Apache-2.0
// The arithmetic of collectives; see reduce.hpp. No CUDA call, no communicator.
#include "reduce.hpp"

#include <cstring>
#include <type_traits>

namespace simgpu::nccl {
namespace {

// Types narrower than float compute in float and round back after every step.
template <typename T>
using Wide = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <typename T>
Wide<T> widen(T value) {
    return static_cast<Wide<T>>(value);
}

template <typename T>
T add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
        return T(widen(a) + widen(b));
    }
}

template <typename T>
T multiply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        // Through 64 bits without sign: small unsigned types would promote to int and overflow.
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
        return T(widen(a) * widen(b));
    }
}

template <typename T, typename Step>
void fold(std::size_t count, int ranks, const void* const* sources, void* target, Step step) {
    // A block at a time, so that a large array passes through the cache once.
    constexpr std::size_t kBlock = 4096;
    T* const out = static_cast<T*>(target);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
        const std::size_t size = count - begin < kBlock ? count - begin : kBlock;
        T* const block = out + begin;
        std::memcpy(static_cast<void*>(block), static_cast<const T*>(sources[0]) + begin,
                    size * sizeof(T));
        for (int rank = 1; rank < ranks; ++rank) {
            const T* const in = static_cast<const T*>(sources[rank]) + begin;
            for (std::size_t i = 0; i < size; ++i) {
                block[i] = step(block[i], in[i]);
            }
        }
    }
}

template <typename T>
void combine_typed(const Reduction& reduction, std::size_t count, int ranks,
                   const void* const* sources, void* target) {
    switch (reduction.kind) {
        case ReduceKind::kProd:
            fold<T>(count, ranks, sources, target, [](T a, T b) { return multiply(a, b); });
            return;
        case ReduceKind::kMin:
            fold<T>(count, ranks, sources, target,
                    [](T a, T b) { return widen(b) < widen(a) ? b : a; });
            return;
        case ReduceKind::kMax:
            fold<T>(count, ranks, sources, target,
                    [](T a, T b) { return widen(a) < widen(b) ? b : a; });
            return;
        case ReduceKind::kSum:
        case ReduceKind::kAverage:
        case ReduceKind::kPreMulSum:
            fold<T>(count, ranks, sources, target, [](T a, T b) { return add(a, b); });
            break;
    }
    if constexpr (std::is_integral_v<T>) {
        if (reduction.kind == ReduceKind::kAverage) {
            T* const out = static_cast<T*>(target);
            const auto divisor = static_cast<std::int64_t>(ranks);
            for (std::size_t i = 0; i < count; ++i) {
                if constexpr (std::is_signed_v<T>) {
                    out[i] = static_cast<T>(static_cast<std::int64_t>(out[i]) / divisor);
                } else {
                    out[i] = static_cast<T>(static_cast<std::uint64_t>(out[i]) /
                                            static_cast<std::uint64_t>(divisor));
                }
            }
        }
    }
}

template <typename T>
void scale_typed(const Reduction& reduction, std::size_t count, int ranks, const void* source,
                 void* target) {
    T factor{};
    if (reduction.kind == ReduceKind::kAverage) {
        factor = T(Wide<T>(1) / static_cast<Wide<T>>(ranks));
    } else {
        std::memcpy(static_cast<void*>(&factor), &reduction.scalar, sizeof(T));
    }
    const T* const in = static_cast<const T*>(source);
    T* const out = static_cast<T*>(target);
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = multiply(in[i], factor);
    }
}

// Calls `visit` with a value of the C++ type behind a data type.
template <typename Visit>
void with_type(ncclDataType_t type, Visit visit) {
    switch (type) {
        case ncclInt8:
            return visit(std::int8_t{});
        case ncclUint8:
            return visit(std::uint8_t{});
        case ncclInt32:
            return visit(std::int32_t{});
        case ncclUint32:
            return visit(std::uint32_t{});
        case ncclInt64:
            return visit(std::int64_t{});
        case ncclUint64:
            return visit(std::uint64_t{});
        case ncclFloat16:
            return visit(__half{});
        case ncclFloat32:
            return visit(float{});
        case ncclFloat64:
            return visit(double{});
        case ncclBfloat16:
            return visit(__nv_bfloat16{});
        case ncclFloat8e4m3:
            return visit(__nv_fp8_e4m3{});
        case ncclFloat8e5m2:
            return visit(__nv_fp8_e5m2{});
        case ncclNumTypes:
            return;
    }
}

}  // namespace

std::size_t element_size(ncclDataType_t type) {
    std::size_t size = 0;
    with_type(type, [&](auto value) { size = sizeof(value); });
    return size;
}

bool needs_scale(const Reduction& reduction, ncclDataType_t type) {
    const bool integral = type <= ncclUint64;
    return reduction.kind == ReduceKind::kPreMulSum ||
           (reduction.kind == ReduceKind::kAverage && !integral);
}

void scale(const Reduction& reduction, ncclDataType_t type, std::size_t count, int ranks,
           const void* source, void* target) {
    with_type(type, [&](auto value) {
        scale_typed<decltype(value)>(reduction, count, ranks, source, target);
    });
}

void combine(const Reduction& reduction, ncclDataType_t type, std::size_t count, int ranks,
             const void* const* sources, void* target) {
    with_type(type, [&](auto value) {
        combine_typed<decltype(value)>(reduction, count, ranks, sources, target);
    });
}

}  // namespace simgpu::nccl

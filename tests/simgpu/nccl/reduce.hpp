// SPDX-License-Identifier: Apache-2.0
// The arithmetic of collectives, on host memory: element sizes, and reductions over the ranks'
// inputs in rank order, rounded to the data type after every step, so that every rank gets the same
// bits. No CUDA call, no communicator.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace simgpu::nccl {

// Bytes of one element; 0 for an unknown type.
std::size_t element_size(ncclDataType_t type);

enum class ReduceKind : std::uint8_t {
    kSum,
    kProd,
    kMin,
    kMax,
    kAverage,    // integers: sum, then division; others: every input is multiplied by 1/ranks first
    kPreMulSum,  // every input is multiplied by its rank's scalar first
};

struct Reduction {
    ReduceKind kind = ReduceKind::kSum;
    // kPreMulSum: this rank's scalar, one element in the data type (at most 8 bytes); applied by
    // scale().
    std::uint64_t scalar = 0;
};

// Whether inputs must pass through scale() before they are combined.
bool needs_scale(const Reduction& reduction, ncclDataType_t type);
// target[i] = source[i] * factor, in the data type; the arrays may be the same. `ranks` serves
// kAverage.
void scale(const Reduction& reduction, ncclDataType_t type, std::size_t count, int ranks,
           const void* source, void* target);
// target = the combination of `ranks` arrays of `count` elements, in rank order. target may overlap
// none of them.
void combine(const Reduction& reduction, ncclDataType_t type, std::size_t count, int ranks,
             const void* const* sources, void* target);

}  // namespace simgpu::nccl

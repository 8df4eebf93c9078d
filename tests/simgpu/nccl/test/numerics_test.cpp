// SPDX-License-Identifier: Apache-2.0
// Every reduction of every data type against a serial reference, on two and three ranks. Arithmetic
// only; semantics of calls are in semantics_test.cpp.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "ranks.hpp"

namespace simgpu::test {
namespace {

constexpr std::size_t kCount = 5003;  // no multiple of anything a loop might prefer

template <typename T>
struct TypeOf;
template <>
struct TypeOf<std::int8_t> : std::integral_constant<ncclDataType_t, ncclInt8> {};
template <>
struct TypeOf<std::uint8_t> : std::integral_constant<ncclDataType_t, ncclUint8> {};
template <>
struct TypeOf<std::int32_t> : std::integral_constant<ncclDataType_t, ncclInt32> {};
template <>
struct TypeOf<std::uint32_t> : std::integral_constant<ncclDataType_t, ncclUint32> {};
template <>
struct TypeOf<std::int64_t> : std::integral_constant<ncclDataType_t, ncclInt64> {};
template <>
struct TypeOf<std::uint64_t> : std::integral_constant<ncclDataType_t, ncclUint64> {};
template <>
struct TypeOf<__half> : std::integral_constant<ncclDataType_t, ncclFloat16> {};
template <>
struct TypeOf<float> : std::integral_constant<ncclDataType_t, ncclFloat32> {};
template <>
struct TypeOf<double> : std::integral_constant<ncclDataType_t, ncclFloat64> {};
template <>
struct TypeOf<__nv_bfloat16> : std::integral_constant<ncclDataType_t, ncclBfloat16> {};
template <>
struct TypeOf<__nv_fp8_e4m3> : std::integral_constant<ncclDataType_t, ncclFloat8e4m3> {};
template <>
struct TypeOf<__nv_fp8_e5m2> : std::integral_constant<ncclDataType_t, ncclFloat8e5m2> {};

std::uint64_t noise(std::uint64_t seed) {
    seed = (seed ^ (seed >> 33)) * 0xff51afd7ed558ccd;
    seed = (seed ^ (seed >> 33)) * 0xc4ceb9fe1a85ec53;
    return seed ^ (seed >> 33);
}

// Integers of any size, so that sums wrap; floats around one.
template <typename T>
T input(int rank, std::size_t index) {
    const std::uint64_t bits = noise(index * 64 + static_cast<std::uint64_t>(rank) + 1);
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(bits);
    } else {
        return T(static_cast<float>(static_cast<double>(bits % 4001) / 1000.0 - 2.0));
    }
}

// The step of each operator, written for one pair and wide enough to be right by inspection.
template <typename T>
T sum(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else if constexpr (std::is_same_v<T, double>) {
        return a + b;
    } else {
        return T(float(a) + float(b));
    }
}

template <typename T>
T product(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else if constexpr (std::is_same_v<T, double>) {
        return a * b;
    } else {
        return T(float(a) * float(b));
    }
}

template <typename T>
bool less(T a, T b) {
    if constexpr (std::is_arithmetic_v<T>) {
        return a < b;
    } else {
        return float(a) < float(b);
    }
}

template <typename T>
T expected(ncclRedOp_t op, const std::vector<T>& inputs) {
    const auto ranks = static_cast<int>(inputs.size());
    const auto scaled = [&](const T& value) {
        if constexpr (std::is_same_v<T, double>) {
            return op == ncclAvg ? value * (1.0 / ranks) : value;
        } else if constexpr (std::is_integral_v<T>) {
            return value;
        } else {
            return op == ncclAvg ? T(float(value) * float(T(1.0F / static_cast<float>(ranks))))
                                 : value;
        }
    };
    T result = scaled(inputs[0]);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
        const T next = scaled(inputs[rank]);
        switch (op) {
            case ncclProd:
                result = product(result, next);
                break;
            case ncclMax:
                result = less(result, next) ? next : result;
                break;
            case ncclMin:
                result = less(next, result) ? next : result;
                break;
            default:
                result = sum(result, next);
                break;
        }
    }
    if constexpr (std::is_integral_v<T>) {
        if (op == ncclAvg) {
            result = static_cast<T>(result / static_cast<T>(ranks));
        }
    }
    return result;
}

template <typename T>
void expect_bits(const std::vector<T>& want, const std::vector<T>& got, const std::string& what) {
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(0, std::memcmp(&want[i], &got[i], sizeof(T)))
            << what << " differs at element " << i;
    }
}

template <typename T>
std::vector<T> inputs_of(int rank, std::size_t count) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i) {
        values.push_back(input<T>(rank, i));
    }
    return values;
}

template <typename T>
std::vector<T> reference(ncclRedOp_t op, int ranks, std::size_t count) {
    std::vector<T> result;
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<T> inputs;
        for (int rank = 0; rank < ranks; ++rank) {
            inputs.push_back(input<T>(rank, i));
        }
        result.push_back(expected(op, inputs));
    }
    return result;
}

template <typename T>
void check_type(int rank, int ranks, const ncclUniqueId& id) {
    const Rank self(rank, ranks, id);
    const ncclDataType_t type = TypeOf<T>::value;
    const auto n = static_cast<std::size_t>(ranks);
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
        const std::string name = "operator " + std::to_string(op);
        const std::vector<T> want = reference<T>(op, ranks, kCount);
        const Array<T> in(inputs_of<T>(rank, kCount));
        const Array<T> out(kCount);
        EXPECT_NCCL(ncclAllReduce(in.get(), out.get(), kCount, type, op, self.comm, self.stream));
        self.synchronize();
        expect_bits(want, out.read(), "all-reduce, " + name);

        const int root = ranks - 1;
        const Array<T> rooted(kCount);
        const std::vector<T> untouched = rooted.read();
        EXPECT_NCCL(
            ncclReduce(in.get(), rooted.get(), kCount, type, op, root, self.comm, self.stream));
        self.synchronize();
        expect_bits(rank == root ? want : untouched, rooted.read(), "reduce, " + name);

        // In place, on all ranks.
        EXPECT_NCCL(ncclAllReduce(in.get(), in.get(), kCount, type, op, self.comm, self.stream));
        self.synchronize();
        expect_bits(want, in.read(), "all-reduce in place, " + name);

        const std::size_t part = kCount / n;
        const Array<T> all(inputs_of<T>(rank, part * n));
        const Array<T> scattered(part);
        EXPECT_NCCL(
            ncclReduceScatter(all.get(), scattered.get(), part, type, op, self.comm, self.stream));
        self.synchronize();
        const auto begin = want.begin() + static_cast<std::ptrdiff_t>(part) * rank;
        expect_bits(std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(part)),
                    scattered.read(), "reduce-scatter, " + name);
    }

    // A scaled sum: every rank has a scalar of its own; once by value, once in device memory.
    std::vector<T> want;
    for (std::size_t i = 0; i < kCount; ++i) {
        T total = product(input<T>(0, i), T(2.0F));
        for (int other = 1; other < ranks; ++other) {
            total = sum(total, product(input<T>(other, i), T(static_cast<float>(other + 2))));
        }
        want.push_back(total);
    }
    T scalar = T(static_cast<float>(rank + 2));
    const Array<T> device_scalar(std::vector<T>{scalar});
    for (const bool on_device : {false, true}) {
        ncclRedOp_t op{};
        EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, on_device ? device_scalar.get() : &scalar, type,
                                             on_device ? ncclScalarDevice : ncclScalarHostImmediate,
                                             self.comm));
        const Array<T> in(inputs_of<T>(rank, kCount));
        const Array<T> out(kCount);
        EXPECT_NCCL(ncclAllReduce(in.get(), out.get(), kCount, type, op, self.comm, self.stream));
        EXPECT_NCCL(ncclRedOpDestroy(op, self.comm));
        self.synchronize();
        expect_bits(want, out.read(), on_device ? "scaled sum, device scalar" : "scaled sum");
        EXPECT_EQ(ncclInvalidArgument,
                  ncclAllReduce(in.get(), out.get(), kCount, type, op, self.comm, self.stream));
    }
}

using Check = void (*)(int, int, const ncclUniqueId&);
struct Case {
    const char* name;
    Check check;
};

class Numerics : public testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(Numerics, ReductionsMatchASerialReference) {
    const auto& [ranks, type] = GetParam();
    run_ranks(ranks, [&, count = ranks, check = type.check](int rank, const ncclUniqueId& id) {
        check(rank, count, id);
    });
}

INSTANTIATE_TEST_SUITE_P(
    AllTypes, Numerics,
    testing::Combine(
        testing::Values(2, 3),
        testing::Values(
            Case{"int8", check_type<std::int8_t>}, Case{"uint8", check_type<std::uint8_t>},
            Case{"int32", check_type<std::int32_t>}, Case{"uint32", check_type<std::uint32_t>},
            Case{"int64", check_type<std::int64_t>}, Case{"uint64", check_type<std::uint64_t>},
            Case{"half", check_type<__half>}, Case{"float", check_type<float>},
            Case{"double", check_type<double>}, Case{"bfloat16", check_type<__nv_bfloat16>},
            Case{"fp8_e4m3", check_type<__nv_fp8_e4m3>},
            Case{"fp8_e5m2", check_type<__nv_fp8_e5m2>})),
    [](const testing::TestParamInfo<std::tuple<int, Case>>& at) {
        return std::string(std::get<1>(at.param).name) + "_" +
               std::to_string(std::get<0>(at.param)) + "ranks";
    });

}  // namespace
}  // namespace simgpu::test

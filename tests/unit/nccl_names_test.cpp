// SPDX-License-Identifier: Apache-2.0
// Kernel names of NCCL's releases, as cuFuncGetName gives them, and names that only look alike.
// Nothing of the driver.
#include "shim/gate/nccl_names.hpp"

#include <gtest/gtest.h>

#include <string>

namespace crossover {
namespace {

struct Row {
    const char* release;
    const char* name;
    KernelName expected;
};

constexpr Row kRows[] = {
    {"2.4", "_Z33ncclAllReduceRingLLKernel_sum_f328ncclColl", KernelName::kNccl},
    {"2.4", "_Z31ncclBroadcastTreeKernel_copy_i88ncclColl", KernelName::kNccl},
    {"2.6", "ncclReduceScatterRingLL128Kernel_sum_f16", KernelName::kNccl},
    {"2.6", "ncclAllReduceCollNetKernel_sum_f32", KernelName::kNccl},
    {"2.7", "_Z26ncclSendRecvKernel_copy_i88ncclColl", KernelName::kNccl},
    {"2.8", "_Z38ncclKernel_AllReduce_RING_LL_Sum_float12ncclWorkElem", KernelName::kNccl},
    {"2.8", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", KernelName::kNccl},
    {"2.12", "_Z40ncclKernel_AllReduce_RING_LL_Sum_uint8_tP11ncclDevCommmP8ncclWork",
     KernelName::kNccl},
    {"2.18", "_Z47ncclKernel_ReduceScatter_RING_LL_PreMulSum_halfP11ncclDevCommmP8ncclWork",
     KernelName::kNccl},
    {"2.18", "ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16", KernelName::kNccl},
    {"2.19", "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevCommmP8ncclWork",
     KernelName::kNccl},

    {"2.21", "_Z22ncclDevKernel_SendRecvP11ncclDevCommmP8ncclWork", KernelName::kNccl},
    {"2.22", "_Z21ncclDevKernel_Generic24ncclDevKernelArgsStorageILm4096EE", KernelName::kNccl},
    {"2.28", "_Z38ncclDevKernel_AllReduce_Sum_u8_RING_LL24ncclDevKernelArgsStorageILm4096EE",
     KernelName::kNccl},
    {"2.28", "ncclDevKernel_AllGather_RING_LL", KernelName::kNccl},
    {"2.27", "_Z43ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf1616ncclSymDevArgs", KernelName::kNccl},
    {"2.28", "_Z31ncclSymkDevKernel_AllGather_LL327ncclSymkDevWorkArgs4KStorageILm4096EE",
     KernelName::kNccl},
    {"2.28", "ncclSymkDevKernel_ReduceScatter_LDMC_sum_f16", KernelName::kNccl},
    {"2.12", "_Z13oneRankReducePvS_mmb", KernelName::kHelper},
    {"2.19", "_Z13oneRankReduceI11FuncPreMulSumIfEEvPvS2_mmb", KernelName::kHelper},
    {"2.30", "oneRankReduce", KernelName::kHelper},
    {"2.32", "_Z33ncclProgressCounterCaptureGpuTimePm", KernelName::kHelper},

    {"user", "", KernelName::kOther},
    {"user", "_Z", KernelName::kOther},
    {"user", "_Z999ncclDevKernel_AllReduce", KernelName::kOther},
    {"user", "_Z99999999999999999999nccl", KernelName::kOther},
    {"user", "nccl", KernelName::kOther},
    {"user", "ncclKernel", KernelName::kOther},
    {"user", "ncclKernel_", KernelName::kOther},
    {"user", "ncclDevKernel_pack", KernelName::kOther},
    {"user", "nccl_pack_kernel", KernelName::kOther},
    {"user", "ncclPackKernel_f32", KernelName::kOther},
    {"user", "ncclTestsInitKernel_f32", KernelName::kOther},
    {"user", "ncclReduceScatterV2Kernel_f32", KernelName::kOther},
    {"user", "myncclDevKernel_AllReduce", KernelName::kOther},
    {"user", "my_ncclKernel_AllReduce_RING_LL_Sum_float", KernelName::kOther},
    {"user", "_Z35run_like_ncclDevKernel_AllReduce_f32v", KernelName::kOther},
    {"user", "_ZN4ours24ncclDevKernel_AllReduce_Ev", KernelName::kOther},
    {"user", "_Z4pack13ncclDevKernel", KernelName::kOther},
    {"user", "oneRankReduceAll", KernelName::kOther},
    {"torch", "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_T1_",
     KernelName::kOther},
};

TEST(NcclNames, EveryReleaseAndNothingElse) {
    for (const Row& row : kRows) {
        EXPECT_EQ(kernel_name(row.name), row.expected) << row.release << ": " << row.name;
    }
}

// Every prefix of a name is cut off inside some part of it; none may read past its end.
TEST(NcclNames, CutOffNamesAreNobodys) {
    const std::string name = "_Z38ncclDevKernel_AllReduce_Sum_u8_RING_LL24ncclDevKernelArgs";
    for (std::size_t length = 0; length < 4 + 38; ++length) {
        const std::string cut = name.substr(0, length);
        EXPECT_EQ(kernel_name(cut), KernelName::kOther) << cut;
    }
}

}  // namespace
}  // namespace crossover

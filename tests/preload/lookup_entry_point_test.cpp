// SPDX-License-Identifier: Apache-2.0
// The driver's functions by way of the runtime (cudaGetDriverEntryPoint and its form by version),
// as NCCL gets them. Runs with libcrossover.so preloaded on a virtual machine.
#include <cuda_runtime_api.h>

#include "lookup_common.hpp"

using lookup::is_ours;

namespace {

TEST(EntryPoint, GivesOursInBothStreamFamilies) {
    for (const char* name :
         {"cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuEventRecord"}) {
        void* found[3] = {};
        cudaDriverEntryPointQueryResult status{};
        const unsigned long long flags[3] = {cudaEnableDefault, cudaEnableLegacyStream,
                                             cudaEnablePerThreadDefaultStream};
        for (int index = 0; index < 3; ++index) {
            ASSERT_EQ(
                cudaGetDriverEntryPointByVersion(name, &found[index], 12080, flags[index], &status),
                cudaSuccess)
                << name;
            EXPECT_EQ(status, cudaDriverEntryPointSuccess) << name;
            EXPECT_TRUE(is_ours(found[index])) << name << " with flags " << flags[index];
        }
        EXPECT_EQ(found[0], found[1]) << name;
        EXPECT_NE(found[1], found[2]) << name << ": the stream family must not be lost";
    }
}

TEST(EntryPoint, WithoutAVersion) {
    using OldForm =
        cudaError_t (*)(const char*, void**, unsigned long long, cudaDriverEntryPointQueryResult*);
    const auto look_up = reinterpret_cast<OldForm>(
        dlsym(lookup::open_library("libcudart.so.12"), "cudaGetDriverEntryPoint"));
    ASSERT_NE(look_up, nullptr);
    EXPECT_FALSE(is_ours(reinterpret_cast<void*>(look_up)));
    void* launch = nullptr;
    cudaDriverEntryPointQueryResult status{};
    ASSERT_EQ(look_up("cuLaunchKernel", &launch, cudaEnableDefault, &status), cudaSuccess);
    EXPECT_TRUE(is_ours(launch));
    void* missing = &missing;
    look_up("cuNoSuchFunction", &missing, cudaEnableDefault, &status);
    EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
}

}  // namespace

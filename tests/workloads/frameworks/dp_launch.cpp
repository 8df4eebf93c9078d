// SPDX-License-Identifier: Apache-2.0
// The training kernels' launches as functions of C, for programs in Python: the arguments are
// dp_math.hpp's, the stream is the caller's. An error ends the process with one line.
#include "../dp_device.hpp"

#define DP_C_LAUNCH(name, Arguments)                                                            \
    extern "C" __attribute__((visibility("default"))) void name(const dp::Arguments* arguments, \
                                                                cudaStream_t stream) {          \
        dp::launch(*arguments, stream);                                                         \
    }

DP_C_LAUNCH(dp_launch_forward, Forward)
DP_C_LAUNCH(dp_launch_loss, Loss)
DP_C_LAUNCH(dp_launch_loss_sum, LossSum)
DP_C_LAUNCH(dp_launch_backward_weights, BackwardWeights)
DP_C_LAUNCH(dp_launch_backward_data, BackwardData)
DP_C_LAUNCH(dp_launch_step, Step)

extern "C" __attribute__((visibility("default"))) void dp_launch_burn(int blocks,
                                                                      const dp::Burn* arguments,
                                                                      cudaStream_t stream) {
    dp::launch_burn(blocks, *arguments, stream);
}

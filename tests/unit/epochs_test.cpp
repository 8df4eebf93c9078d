// SPDX-License-Identifier: Apache-2.0
// The epochs of a gate in the GPU's queues: which one is waited for, and what the word says to
// those that wait.
#include "shim/gate/epochs.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace crossover {
namespace {

using Epoch = Epochs::Epoch;

// As cuStreamWaitValue32 compares (CU_STREAM_WAIT_VALUE_GEQ).
bool passes(Epoch epoch, Epoch word) { return static_cast<std::int32_t>(word - epoch) >= 0; }

TEST(Epochs, NothingIsPendingAtFirst) {
    const Epochs epochs;
    EXPECT_EQ(epochs.pending(), 0U);
    EXPECT_EQ(epochs.word(), 0U);
}

TEST(Epochs, OneIsPendingUntilItIsLetThrough) {
    Epochs epochs;
    const Epoch first = epochs.make();
    ASSERT_NE(first, 0U);
    EXPECT_EQ(epochs.pending(), first);
    EXPECT_FALSE(passes(first, epochs.word()));
    EXPECT_EQ(epochs.make(), first) << "who comes later waits for the same";
    EXPECT_TRUE(epochs.pass(first));
    EXPECT_EQ(epochs.pending(), 0U);
    EXPECT_TRUE(passes(first, epochs.word()));
    const Epoch second = epochs.make();
    EXPECT_NE(second, first);
    EXPECT_FALSE(passes(second, epochs.word()));
    EXPECT_TRUE(passes(first, epochs.word()));
}

TEST(Epochs, OnlyThePendingOneIsLetThrough) {
    Epochs epochs;
    EXPECT_FALSE(epochs.pass(0));
    EXPECT_FALSE(epochs.pass(1));
    const Epoch first = epochs.make();
    EXPECT_FALSE(epochs.pass(first + 1));
    EXPECT_TRUE(epochs.pass(first));
    EXPECT_FALSE(epochs.pass(first)) << "once";
    const Epoch second = epochs.make();
    EXPECT_FALSE(epochs.pass(first));
    EXPECT_EQ(epochs.pending(), second);
}

TEST(Epochs, OpenForAllLetsThroughWhatWaitsAndWhatIsPutLate) {
    Epochs epochs;
    const Epoch waits = epochs.make();
    epochs.open_all();
    EXPECT_EQ(epochs.pending(), 0U);
    EXPECT_TRUE(passes(waits, epochs.word()));
    EXPECT_EQ(epochs.make(), 0U);
    for (const Epoch later : {waits + 1, waits + 1000}) {
        EXPECT_TRUE(passes(later, epochs.word()));
    }
    epochs.close();
    EXPECT_TRUE(passes(waits, epochs.word())) << "it may have been put before and be looked at now";
    const Epoch next = epochs.make();
    EXPECT_NE(next, 0U);
    EXPECT_FALSE(passes(next, epochs.word()));
}

TEST(Epochs, EveryChangeShowsInTheSnapshot) {
    Epochs epochs;
    const auto none = epochs.snapshot();
    const Epoch first = epochs.make();
    const auto made = epochs.snapshot();
    EXPECT_NE(made, none);
    epochs.make();
    EXPECT_EQ(epochs.snapshot(), made);
    epochs.pass(first);
    EXPECT_NE(epochs.snapshot(), made);
    EXPECT_NE(epochs.snapshot(), none);
}

// A job that takes a turn each millisecond comes here after fifty days.
TEST(Epochs, GoOnBeyondTheLastNumber) {
    Epochs epochs{0xFFFF'FFFE};
    Epoch before = 0xFFFF'FFFE;
    for (int i = 0; i < 4; ++i) {
        const Epoch next = epochs.make();
        ASSERT_NE(next, 0U) << "0 says that there is none";
        EXPECT_EQ(epochs.pending(), next);
        EXPECT_FALSE(passes(next, epochs.word()));
        EXPECT_TRUE(passes(before, epochs.word()));
        epochs.open_all();
        EXPECT_TRUE(passes(next, epochs.word()));
        epochs.close();
        EXPECT_TRUE(passes(next, epochs.word()));
        before = next;
    }
}

}  // namespace
}  // namespace crossover

// SPDX-License-Identifier: Apache-2.0
// Which signatures stay known.
#include "shim/inference/signature_table.hpp"

#include <gtest/gtest.h>

#include "shim/inference/history.hpp"

namespace crossover {
namespace {

TEST(SignatureTable, AFreshValueIsAsConstructed) {
    SignatureTable<int, 16> table;
    EXPECT_EQ(table.find(0), nullptr);
    EXPECT_EQ(table.use(0), 0);
    table.use(0) = 7;
    ASSERT_NE(table.find(0), nullptr);
    EXPECT_EQ(*table.find(0), 7);
    EXPECT_EQ(table.find(2), nullptr) << "in the same bucket";
}

TEST(SignatureTable, AFullBucketLosesWhatWasUsedLeastRecently) {
    SignatureTable<int, 16> table;  // two buckets
    for (const int each : {2, 4, 6, 8, 10, 12, 14, 16}) {
        table.use(static_cast<std::uint64_t>(each)) = each;
    }
    EXPECT_EQ(table.use(2), 2);
    table.use(18) = 18;
    EXPECT_EQ(table.find(4), nullptr);
    for (const int each : {2, 6, 8, 10, 12, 14, 16, 18}) {
        ASSERT_NE(table.find(static_cast<std::uint64_t>(each)), nullptr) << each;
        EXPECT_EQ(*table.find(static_cast<std::uint64_t>(each)), each);
    }
    table.use(1) = 1;
    EXPECT_NE(table.find(6), nullptr) << "the other bucket";
}

TEST(SignatureTable, TheLivePlacesOfALargeModelAllStay) {
    int lost = 0;
    for (std::uint64_t run = 0; run < 200; ++run) {
        SignatureTable<int, 2048> table;
        const auto signature = [&](std::uint64_t place) {
            return mix_signature(mix_signature(0, run), place);
        };
        constexpr std::uint64_t kPlaces = 200;
        for (int iteration = 0; iteration < 3; ++iteration) {
            for (std::uint64_t place = 0; place < kPlaces; ++place) {
                ++table.use(signature(place));
            }
        }
        for (std::uint64_t place = 0; place < kPlaces; ++place) {
            const int* const seen = table.find(signature(place));
            lost += seen == nullptr || *seen != 3 ? 1 : 0;
        }
    }
    EXPECT_LE(lost, 4) << "of 40000";
}

}  // namespace
}  // namespace crossover

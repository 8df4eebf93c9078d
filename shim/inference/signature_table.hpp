// SPDX-License-Identifier: Apache-2.0
// What is known of the places of an iteration, by their signatures. Fixed size, no allocation.
// Places come again every iteration, so those that are live must all stay: a signature shares its
// bucket with others, and in a full one the entry that was used least recently goes. (With one
// entry for each hash, of 60 live places among 2048 two would displace each other for ever in more
// than half of all runs.) Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace crossover {

// `kEntries` is a multiple of kWays.
template <class Value, std::size_t kEntries>
class SignatureTable {
  public:
    static constexpr std::size_t kWays = 8;
    static_assert(kEntries != 0 && kEntries % kWays == 0);

    // nullptr: nothing is known.
    const Value* find(std::uint64_t signature) const noexcept {
        for (const Entry& each : buckets_[signature % buckets_.size()]) {
            if (each.used_at != 0 && each.signature == signature) {
                return &each.value;
            }
        }
        return nullptr;
    }
    Value* find(std::uint64_t signature) noexcept {
        return const_cast<Value*>(std::as_const(*this).find(signature));
    }
    // Of a signature that was not known a new one. It is used now.
    Value& use(std::uint64_t signature) noexcept {
        auto& bucket = buckets_[signature % buckets_.size()];
        auto found = std::find_if(bucket.begin(), bucket.end(), [&](const Entry& each) {
            return each.used_at != 0 && each.signature == signature;
        });
        if (found == bucket.end()) {
            found = std::min_element(
                bucket.begin(), bucket.end(),
                [](const Entry& a, const Entry& b) { return a.used_at < b.used_at; });
            *found = Entry{.signature = signature};
        }
        found->used_at = ++uses_;
        return found->value;
    }

  private:
    struct Entry {
        std::uint64_t signature = 0;
        std::uint64_t used_at = 0;  // 0: never
        Value value{};
    };
    std::uint64_t uses_ = 0;
    std::array<std::array<Entry, kWays>, kEntries / kWays> buckets_{};
};

}  // namespace crossover

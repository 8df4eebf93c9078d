// SPDX-License-Identifier: Apache-2.0
// A fuzzer's bytes as numbers and pieces, and the same the other way round for seeds. Reads from
// the front, so that what a seed writes in order is read in order. Past the end everything is zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace crossover::fuzz {

class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) noexcept : data_(data), left_(size) {}

    bool empty() const noexcept { return left_ == 0; }
    // Copies `size` bytes to `out`; zeros where the input has ended.
    void bytes(void* out, std::size_t size) noexcept {
        const std::size_t have = std::min(size, left_);
        std::memset(out, 0, size);
        if (have != 0) std::memcpy(out, data_, have);
        data_ += have;
        left_ -= have;
    }
    template <class T>
    T number() noexcept {
        T value{};
        bytes(&value, sizeof value);
        return value;
    }
    std::uint8_t byte() noexcept { return number<std::uint8_t>(); }
    // A length of one byte and that many characters, without zeros.
    std::string text() {
        std::string text(std::min<std::size_t>(byte(), left_), '\0');
        bytes(text.data(), text.size());
        text.erase(std::remove(text.begin(), text.end(), '\0'), text.end());
        return text;
    }

  private:
    const std::uint8_t* data_;
    std::size_t left_;
};

class Seed {
  public:
    template <class T>
    Seed& number(T value) {
        const auto* begin = reinterpret_cast<const char*>(&value);
        bytes_.append(begin, sizeof value);
        return *this;
    }
    Seed& byte(std::uint8_t value) { return number(value); }
    Seed& text(const std::string& text) {
        byte(static_cast<std::uint8_t>(text.size()));
        bytes_ += text;
        return *this;
    }
    const std::string& bytes() const noexcept { return bytes_; }

  private:
    std::string bytes_;
};

}  // namespace crossover::fuzz

// SPDX-License-Identifier: Apache-2.0
// See device_list.hpp. Compiled into the server and into the virtual libcuda.so.1.
#include "device_list.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace simgpu {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr std::size_t kTextBytes = 4 + 36;

std::uint64_t fnv1a(std::string_view text, std::uint64_t hash) {
    for (const char c : text) {
        hash ^= static_cast<unsigned char>(c);
        hash *= 0x100000001b3U;
    }
    return hash;
}

DeviceId make_id(const std::string& name) {
    const std::uint64_t halves[2] = {fnv1a(name, 0xcbf29ce484222325U),
                                     fnv1a(name, 0x9e3779b97f4a7c15U)};
    DeviceId id{};
    static_assert(sizeof halves == sizeof id);
    std::memcpy(id.data(), halves, sizeof id);
    return id;
}

bool all_digits(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The identifier that a line of the list ends with.
bool parse_id(std::string_view line, DeviceId& id, bool& is_instance) {
    const std::size_t at = line.find("(UUID: ");
    if (at == std::string_view::npos || line.size() != at + 7 + kTextBytes + 1 ||
        line.back() != ')')
        return false;
    const std::string_view text = line.substr(at + 7, kTextBytes);
    is_instance = text.substr(0, 4) == "MIG-";
    std::size_t digit = 0;
    for (const char c : text.substr(4)) {
        if (c == '-') continue;
        const char* const found = std::strchr(kHex, c);
        if (c == '\0' || found == nullptr || digit == 2 * id.size()) return false;
        std::uint8_t& byte = id[digit / 2];
        byte = static_cast<std::uint8_t>(byte << 4 | (found - kHex));
        ++digit;
    }
    return digit == 2 * id.size() && uuid_text(id, is_instance) == text;
}

// The device that one entry of CUDA_VISIBLE_DEVICES names: of a GPU that is split its first
// instance. GPUs by number, or by as much of their UUID as tells them apart; instances by all of
// theirs.
std::optional<std::size_t> find(const std::vector<ListedDevice>& devices, std::string_view entry) {
    std::optional<std::size_t> match;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        const ListedDevice& device = devices[i];
        if (device.is_instance && entry == uuid_text(device.id, true)) return i;
        if (i > 0 && device.gpu == devices[i - 1].gpu) continue;
        if (all_digits(entry)) {
            if (entry.size() <= 6 && std::stoi(std::string(entry)) == device.gpu) return i;
        } else if (entry.substr(0, 4) == "GPU-" &&
                   uuid_text(device.gpu_id, false).starts_with(entry)) {
            if (match) return std::nullopt;
            match = i;
        }
    }
    return match;
}

}  // namespace

std::string uuid_text(const DeviceId& id, bool is_instance) {
    std::string text = is_instance ? "MIG-" : "GPU-";
    for (std::size_t i = 0; i < id.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += kHex[id[i] >> 4];
        text += kHex[id[i] & 15];
    }
    return text;
}

std::vector<ListedDevice> make_device_list(std::string_view machine, int gpus, int instances) {
    std::vector<ListedDevice> devices;
    for (int gpu = 0; gpu < gpus; ++gpu) {
        const std::string name = std::string(machine) + "#" + std::to_string(gpu);
        const ListedDevice whole{gpu, make_id(name), make_id(name), false};
        if (instances == 0) devices.push_back(whole);
        for (int instance = 0; instance < instances; ++instance) {
            devices.push_back(
                {gpu, whole.id, make_id(name + "." + std::to_string(instance)), true});
        }
    }
    return devices;
}

std::string format_device_list(const std::vector<ListedDevice>& devices) {
    std::string text;
    int last_gpu = -1;
    int instance = 0;
    for (const ListedDevice& device : devices) {
        if (device.gpu != last_gpu) {
            text += "GPU " + std::to_string(device.gpu) +
                    ": (UUID: " + uuid_text(device.gpu_id, false) + ")\n";
            instance = 0;
        }
        last_gpu = device.gpu;
        if (!device.is_instance) continue;
        text += "  MIG Device " + std::to_string(instance++) +
                ": (UUID: " + uuid_text(device.id, true) + ")\n";
    }
    return text;
}

std::vector<ListedDevice> parse_device_list(std::string_view text) {
    std::vector<ListedDevice> devices;
    ListedDevice gpu;
    bool open = false;  // a GPU's line whose instances have not been seen
    int gpus = 0;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        DeviceId id;
        bool is_instance = false;
        if (!parse_id(line, id, is_instance)) return {};
        if (is_instance) {
            if (gpus == 0) return {};
            devices.push_back({gpu.gpu, gpu.gpu_id, id, true});
            open = false;
        } else {
            if (open) devices.push_back(gpu);
            gpu = {gpus++, id, id, false};
            open = true;
        }
    }
    if (open) devices.push_back(gpu);
    return devices;
}

std::vector<std::size_t> visible_devices(const std::vector<ListedDevice>& devices,
                                         const char* list) {
    std::vector<std::size_t> visible;
    if (list == nullptr) {
        for (std::size_t i = 0; i < devices.size(); ++i) visible.push_back(i);
    } else {
        std::string_view text = list;
        for (bool more = true; more;) {
            const std::size_t end = std::min(text.find(','), text.size());
            std::string_view entry = text.substr(0, end);
            more = end < text.size();
            text.remove_prefix(more ? end + 1 : end);
            while (!entry.empty() && (entry.front() == ' ' || entry.front() == '\t'))
                entry.remove_prefix(1);
            while (!entry.empty() && (entry.back() == ' ' || entry.back() == '\t'))
                entry.remove_suffix(1);
            const std::optional<std::size_t> found = find(devices, entry);
            if (!found) break;
            // A device named twice leaves none visible at all.
            if (std::find(visible.begin(), visible.end(), *found) != visible.end()) return {};
            visible.push_back(*found);
            if (devices[*found].is_instance) break;
        }
    }
    if (!visible.empty() && devices[visible.front()].is_instance) visible.resize(1);
    return visible;
}

}  // namespace simgpu

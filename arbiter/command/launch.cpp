// SPDX-License-Identifier: Apache-2.0
// The environment of a started program: see launch.hpp.
#include "launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "arbiter/job_identity.hpp"
#include "arbiter/options.hpp"
#include "command.hpp"

namespace crossover::command {
namespace {

constexpr std::string_view kLibraryName = "libcrossover.so";
constexpr std::size_t kLongestJobName = sizeof(Options{}.job) - 1;

bool is_entry_of(std::string_view entry, std::string_view name) {
    return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
}

std::string_view base_name(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_sanitizer_runtime(std::string_view path) {
    constexpr std::array<std::string_view, 6> kRuntimes{"libasan.",  "libtsan.",   "liblsan.",
                                                        "libubsan.", "libhwasan.", "libclang_rt."};
    return std::any_of(kRuntimes.begin(), kRuntimes.end(), [path](std::string_view runtime) {
        return base_name(path).starts_with(runtime);
    });
}

// The library's parser takes a lookup without a context.
thread_local const Environment* lookup_environment = nullptr;
thread_local std::string lookup_value;

char* lookup(const char* name) {
    const std::optional<std::string> value = lookup_environment->get(name);
    if (!value) {
        return nullptr;
    }
    lookup_value = *value;
    return lookup_value.data();
}

}  // namespace

Environment Environment::of_process() {
    std::vector<std::string> entries;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        entries.emplace_back(*entry);
    }
    return Environment(std::move(entries));
}

std::optional<std::string> Environment::get(std::string_view name) const {
    for (const std::string& entry : entries_) {
        if (is_entry_of(entry, name)) {
            return entry.substr(name.size() + 1);
        }
    }
    return std::nullopt;
}

void Environment::set(const std::string& name, const std::string& value) {
    bool done = false;
    std::erase_if(entries_, [&](std::string& entry) {
        if (!is_entry_of(entry, name)) {
            return false;
        }
        if (done) {
            return true;
        }
        done = true;
        entry = name + "=" + value;
        return false;
    });
    if (!done) {
        entries_.push_back(name + "=" + value);
    }
}

void Environment::remove(std::string_view name) {
    std::erase_if(entries_, [name](const std::string& entry) { return is_entry_of(entry, name); });
}

std::vector<char*> Environment::pointers() {
    std::vector<char*> pointers;
    for (std::string& entry : entries_) {
        pointers.push_back(entry.data());
    }
    pointers.push_back(nullptr);
    return pointers;
}

std::string compose_preload(std::string_view existing, const std::string& library) {
    if (library.find_first_of(": \t\n") != std::string::npos) {
        throw UsageError("the library's path '" + library +
                         "' holds a blank or a colon, which LD_PRELOAD cannot express");
    }
    std::vector<std::string> parts;
    while (!existing.empty()) {
        const std::size_t end = existing.find_first_of(": \t\n");
        if (end != 0) {
            parts.emplace_back(existing.substr(0, end));
        }
        existing = end == std::string_view::npos ? std::string_view{} : existing.substr(end + 1);
    }
    // Another build of the library must not be loaded beside this one: the first takes its place.
    const auto is_ours = [](const std::string& part) { return base_name(part) == kLibraryName; };
    auto place = std::find_if(parts.begin(), parts.end(), is_ours);
    if (place != parts.end()) {
        *place = library;
        parts.erase(std::remove_if(place + 1, parts.end(), is_ours), parts.end());
    } else {
        place = std::find_if_not(parts.begin(), parts.end(), is_sanitizer_runtime);
        parts.insert(place, library);
    }
    std::string composed;
    for (const std::string& part : parts) {
        composed += (composed.empty() ? "" : ":") + part;
    }
    return composed;
}

std::string job_name(const std::string& command, std::string_view suffix) {
    std::string name;
    for (const char character : base_name(command)) {
        const bool plain = (character >= 'a' && character <= 'z') ||
                           (character >= 'A' && character <= 'Z') ||
                           (character >= '0' && character <= '9') || character == '.' ||
                           character == '_' || character == '-';
        name += plain ? character : '_';
    }
    const std::size_t room = kLongestJobName - std::min(kLongestJobName, suffix.size() + 1);
    return name.substr(0, room) + "-" + std::string(suffix);
}

std::string random_suffix() { return fmt::format("{:06x}", std::random_device{}() & 0xFFFFFFU); }

bool has_identity(const Environment& environment) {
    lookup_environment = &environment;
    JobIdentity identity;
    return identity_from_environment(lookup, identity) != IdentitySource::kNone;
}

Environment launch_environment(Environment base, const Settings& settings,
                               const std::string& library, const std::string& command,
                               std::string_view suffix) {
    for (const auto& [name, value] : settings) {
        base.set(name, value);
    }
    Options options;
    char error[512];
    lookup_environment = &base;
    if (!parse_environment(lookup, options, error, sizeof(error))) {
        throw UsageError(error);
    }
    if (!has_identity(base)) {
        base.set("CROSSOVER_JOB", job_name(command, suffix));
    }
    base.set("LD_PRELOAD", compose_preload(base.get("LD_PRELOAD").value_or(""), library));
    return base;
}

}  // namespace crossover::command

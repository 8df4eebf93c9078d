// SPDX-License-Identifier: Apache-2.0
// Tables and JSON of the state: see status_view.hpp.
#include "status_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace crossover::command {
namespace {

using nlohmann::ordered_json;

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

std::uint64_t since(std::uint64_t then_ns, std::uint64_t now_ns) {
    return now_ns - std::min(then_ns, now_ns);
}

std::uint64_t mean(std::uint64_t sum, std::uint64_t count) { return count == 0 ? 0 : sum / count; }

// Turns of a job that is holding count from turn_since_ns on.
std::uint64_t held_ns(const DeviceSnapshot& device, const JobSnapshot& job) {
    const bool holds = device.turn_held && device.holder == job.slot;
    return job.held_ns + (holds ? since(job.turn_since_ns, device.now_ns) : 0);
}

// Of the time that all turns of the present jobs took; none before the first turn.
std::optional<double> share_of(const DeviceSnapshot& device, const JobSnapshot& job) {
    double all = 0;
    for (const JobSnapshot& other : device.jobs) {
        all += static_cast<double>(held_ns(device, other));
    }
    if (all == 0) {
        return std::nullopt;
    }
    return static_cast<double>(held_ns(device, job)) / all;
}

std::string share_text(const DeviceSnapshot& device, const JobSnapshot& job) {
    const std::optional<double> share = share_of(device, job);
    return share ? fmt::format("{:.1f} %", *share * 100) : "-";
}

bool has_weights(const DeviceSnapshot& device) {
    return std::any_of(device.jobs.begin(), device.jobs.end(),
                       [](const JobSnapshot& job) { return job.weight != 0; });
}

std::string weight_text(const JobSnapshot& job) {
    return job.weight == 0 ? "-" : std::to_string(job.weight);
}

std::string job_name_of(const DeviceSnapshot& device, std::uint32_t slot) {
    const JobSnapshot* job = device.job_in(slot);
    return job == nullptr ? "?" : job->name;
}

std::string turn_text(const DeviceSnapshot& device) {
    if (!device.turn_held) {
        return "nobody's turn";
    }
    const JobSnapshot& holder = *device.job_in(device.holder);
    std::string text = fmt::format("{}'s turn for {:.1f} ms", holder.name,
                                   ms(since(holder.turn_since_ns, device.now_ns)));
    if (holder.lease_from_ns != 0) {
        text += fmt::format(", lease left {:.1f} ms", ms(lease_left_ns(device, holder)));
    } else {
        text += ", nobody waits";
    }
    return text;
}

// "resnet, pid 4711: waits for its turn for 6000.0 ms in …; bert has it for 100.0 ms".
std::string stall_text(const DeviceSnapshot& device, const ClientSnapshot& client) {
    std::string text = fmt::format(
        "{}, pid {}: waits for its turn for {:.1f} ms in {}; ", job_name_of(device, client.job),
        client.pid, ms(since(client.stalled_ns, device.now_ns)),
        client.stall_site.empty() ? "a place that is not known" : client.stall_site);
    if (!device.turn_held) {
        return text + "nobody has it";
    }
    const JobSnapshot& holder = *device.job_in(device.holder);
    return text + fmt::format("{} has it for {:.1f} ms", holder.name,
                              ms(since(holder.turn_since_ns, device.now_ns)));
}

ordered_json stall_json(const DeviceSnapshot& device, const ClientSnapshot& client) {
    if (client.stalled_ns == 0) {
        return nullptr;
    }
    ordered_json stall = {
        {"waits_ms", ms(since(client.stalled_ns, device.now_ns))},
        {"site", client.stall_site.empty() ? ordered_json() : ordered_json(client.stall_site)},
        {"turn_of", nullptr},
        {"turn_ms", nullptr}};
    if (device.turn_held) {
        const JobSnapshot& holder = *device.job_in(device.holder);
        stall["turn_of"] = holder.name;
        stall["turn_ms"] = ms(since(holder.turn_since_ns, device.now_ns));
    }
    return stall;
}

}  // namespace

std::uint64_t lease_left_ns(const DeviceSnapshot& device, const JobSnapshot& holder) noexcept {
    const std::uint64_t used = since(holder.lease_from_ns, device.now_ns);
    return holder.lease_ns - std::min(used, holder.lease_ns);
}

std::string status_text_of(const std::vector<DeviceSnapshot>& devices) {
    std::string text;
    for (const DeviceSnapshot& device : devices) {
        if (device.jobs.empty() || !device.live) {
            continue;
        }
        text +=
            fmt::format("{}{}: {}; round {}, {} turns, {} ended by their lease, {} clients died\n",
                        text.empty() ? "" : "\n", device.uuid, turn_text(device), device.round,
                        device.turn_count, device.expired_count, device.reaped_count);
        const bool weights = has_weights(device);
        text += fmt::format("  {:<24} {:<14} {:>8} {:>14} {:>14} {:>8}{}\n", "job", "state",
                            "turns", "mean turn ms", "mean wait ms", "share",
                            weights ? fmt::format(" {:>8}", "weight") : "");
        for (const JobSnapshot& job : device.jobs) {
            text += fmt::format("  {:<24} {:<14} {:>8} {:>14.2f} {:>14.2f} {:>8}{}\n", job.name,
                                state_text(job.state), job.turns,
                                ms(mean(held_ns(device, job), job.turns)),
                                ms(mean(job.waited_ns, job.turns)), share_text(device, job),
                                weights ? fmt::format(" {:>8}", weight_text(job)) : "");
        }
        text += fmt::format("  {:<24} {:>8} {:>7} {:<14} {:>12} {:<8} {:>10} {:>10}\n", "client of",
                            "pid", "ordinal", "phase", "since ms", "mode", "windows", "crossings");
        for (const ClientSnapshot& client : device.clients) {
            text +=
                fmt::format("  {:<24} {:>8} {:>7} {:<14} {:>12.1f} {:<8} {:>10} {:>10}\n",
                            job_name_of(device, client.job), client.pid, client.ordinal,
                            phase_text(client.phase),
                            ms(since(client.phase_ns == 0 ? client.attached_ns : client.phase_ns,
                                     device.now_ns)),
                            mode_text(client.mode), client.windows, client.crossings);
        }
        for (const ClientSnapshot& client : device.clients) {
            if (client.stalled_ns != 0) {
                text += fmt::format("  stalled: {}\n", stall_text(device, client));
            }
        }
    }
    return text.empty() ? "no jobs\n" : text;
}

ordered_json status_json_of(const std::vector<DeviceSnapshot>& devices) {
    ordered_json list = ordered_json::array();
    for (const DeviceSnapshot& device : devices) {
        if (!device.live) {
            continue;
        }
        ordered_json turn;
        if (device.turn_held) {
            const JobSnapshot& holder = *device.job_in(device.holder);
            turn = {{"job", holder.name},
                    {"since_ms", ms(since(holder.turn_since_ns, device.now_ns))},
                    {"lease_left_ms", holder.lease_from_ns == 0
                                          ? ordered_json()
                                          : ordered_json(ms(lease_left_ns(device, holder)))}};
        }
        ordered_json jobs = ordered_json::array();
        for (const JobSnapshot& job : device.jobs) {
            const std::optional<double> share = share_of(device, job);
            jobs.push_back(
                {{"name", job.name},
                 {"key", fmt::format("{:016x}", job.key)},
                 {"state", state_text(job.state)},
                 {"clients", job.clients},
                 {"turns", job.turns},
                 {"held_ms", ms(held_ns(device, job))},
                 {"waited_ms", ms(job.waited_ns)},
                 {"mean_turn_ms", ms(mean(held_ns(device, job), job.turns))},
                 {"mean_wait_ms", ms(mean(job.waited_ns, job.turns))},
                 {"share", share ? ordered_json(*share) : ordered_json()},
                 {"weight", job.weight == 0 ? ordered_json() : ordered_json(job.weight)}});
        }
        ordered_json clients = ordered_json::array();
        for (const ClientSnapshot& client : device.clients) {
            clients.push_back(
                {{"job", job_name_of(device, client.job)},
                 {"pid", client.pid},
                 {"ordinal", client.ordinal},
                 {"phase", phase_text(client.phase)},
                 {"phase_ms", ms(since(client.phase_ns == 0 ? client.attached_ns : client.phase_ns,
                                       device.now_ns))},
                 {"mode", mode_text(client.mode)},
                 {"windows", client.windows},
                 {"crossings", client.crossings},
                 {"exposed_ms", ms(client.exposed_ns)},
                 {"communicated_ms", ms(client.communicated_ns)},
                 {"stall", stall_json(device, client)}});
        }
        list.push_back({{"uuid", device.uuid},
                        {"round", device.round},
                        {"turn_count", device.turn_count},
                        {"expired_count", device.expired_count},
                        {"reaped_count", device.reaped_count},
                        {"turn", turn},
                        {"jobs", jobs},
                        {"clients", clients}});
    }
    return {{"devices", list}};
}

}  // namespace crossover::command

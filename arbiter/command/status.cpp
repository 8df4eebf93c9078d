// SPDX-License-Identifier: Apache-2.0
// `crossover status`: what the segments of a folder say at this moment.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "command.hpp"
#include "processes.hpp"
#include "segments.hpp"
#include "status_view.hpp"

namespace crossover::command {

int status_command(Arguments arguments) {
    CLI::App app(
        "Shows for each device whose turn it is, the jobs that share it and their processes.",
        "crossover status");
    set_usage(app, "crossover status [options]");
    std::string dir;
    bool json = false;
    app.add_option("--dir", dir,
                   "folder of the segments; default: CROSSOVER_DIR, else this user's private one")
        ->type_name("DIR");
    app.add_flag("--json", json, "JSON instead of tables; times in ms");
    if (!parse(app, {arguments.begin(), arguments.end()})) {
        return 0;
    }
    SegmentFolder folder(dir);
    folder.refresh();
    std::vector<DeviceSnapshot> devices;
    for (const auto& open : folder.segments()) {
        devices.push_back(snapshot_of(open->segment(), now_ns()));
    }
    if (json) {
        fmt::print("{}\n", status_json_of(devices).dump(
                               2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    } else if (!devices.empty() || folder.faults().empty()) {
        fmt::print("{}", status_text_of(devices));
    }
    for (const SegmentFault& fault : folder.faults()) {
        std::fprintf(stderr, "crossover status: %s: %s\n", fault.path.c_str(),
                     status_text(fault.status));
    }
    return folder.faults().empty() ? 0 : kExitFailure;
}

}  // namespace crossover::command

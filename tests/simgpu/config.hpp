// SPDX-License-Identifier: Apache-2.0
// Options of simgpu-server: parsing, limits and the settings text of kWelcome.
#pragma once

#include <string>

#include "engine.hpp"

namespace simgpu {

struct ServerConfig {
    EngineSettings engine;
    std::string dir;    // folder of the virtual machine; exists
    int ready_fd = -1;  // a byte is written to it once the server accepts; -1: none
    int parent = 0;     // process id of the starter; the server ends when it does; 0: does not care
    bool truth_log = true;
    std::uint64_t max_lead_ns = 200'000;  // see Server::learn_lateness
};

enum class ParseResult {
    kRun,
    kHelp,  // `text` is the help
    kBad,   // `text` is one line that names the option and what is allowed
};

// Reads the command line into `config`; `text` is set unless the result is kRun.
ParseResult parse_options(int argc, const char* const* argv, ServerConfig& config,
                          std::string& text);

// "devices=2 sharing=mps …", shorter than Notice::text.
std::string settings_text(const EngineSettings& settings);

}  // namespace simgpu

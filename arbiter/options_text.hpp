// SPDX-License-Identifier: Apache-2.0
// The rows of options.def as text, for --help, the README's table and their test. For tools:
// allocates. Layout of the text stands with who prints it.
#pragma once

#include <string>
#include <vector>

namespace crossover {

struct OptionRow {
    std::string environment;    // CROSSOVER_LEASE_MS
    std::string flag;           // --lease-ms, of crossover-run
    std::string allowed;        // "off|on|observe", "0 to 10000", "at most 47 bytes"
    std::string default_value;  // empty for an empty text
    std::string text;
    std::vector<std::string> choices;  // of a choice, else empty
};

// In the order of options.def.
std::vector<OptionRow> option_rows();

// The README's table of options in Markdown, with a final newline.
std::string options_markdown();

}  // namespace crossover

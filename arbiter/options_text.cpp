// SPDX-License-Identifier: Apache-2.0
// options.def turned into rows of text. No parsing here.
#include "arbiter/options_text.hpp"

#include <cctype>
#include <cstddef>

namespace crossover {
namespace {

std::string flag_of(const std::string& environment) {
    const std::string prefix = "CROSSOVER_";
    if (environment.rfind(prefix, 0) != 0) return "--mode";
    std::string flag = "--";
    for (const char c : environment.substr(prefix.size())) {
        flag += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return flag;
}

std::vector<std::string> split(const std::string& choices) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (;;) {
        const std::size_t end = choices.find('|', begin);
        parts.push_back(choices.substr(begin, end - begin));
        if (end == std::string::npos) return parts;
        begin = end + 1;
    }
}

OptionRow row(const std::string& environment, const std::string& allowed,
              const std::string& default_value, const std::string& text) {
    OptionRow made;
    made.environment = environment;
    made.flag = flag_of(environment);
    made.allowed = allowed;
    made.default_value = default_value;
    made.text = text;
    return made;
}

OptionRow choice_row(const std::string& environment, const std::string& choices,
                     std::size_t default_index, const std::string& text) {
    OptionRow made = row(environment, choices, split(choices).at(default_index), text);
    made.choices = split(choices);
    return made;
}

std::string escaped(const std::string& cell) {
    std::string out;
    for (const char c : cell) {
        if (c == '|') out += '\\';
        out += c;
    }
    return out;
}

}  // namespace

std::vector<OptionRow> option_rows() {
    std::vector<OptionRow> rows;
#define CX_CHOICE(field, default_value, environment, choices, text) \
    rows.push_back(choice_row(environment, choices, default_value, text));
#define CX_NUMBER(field, default_value, environment, minimum, maximum, text) \
    rows.push_back(row(environment, #minimum " to " #maximum, #default_value, text));
#define CX_TEXT(field, environment, longest, text) \
    rows.push_back(row(environment, "at most " #longest " bytes", "", text));
#include "crossover/options.def"
#undef CX_CHOICE
#undef CX_NUMBER
#undef CX_TEXT
    return rows;
}

std::string options_markdown() {
    std::string table =
        "| variable | option | allowed | default | meaning |\n|---|---|---|---|---|\n";
    for (const OptionRow& option : option_rows()) {
        const std::string shown =
            option.default_value.empty() ? "empty" : "`" + option.default_value + "`";
        table += "| `" + option.environment + "` | `" + option.flag + "` | " +
                 escaped(option.allowed) + " | " + shown + " | " + escaped(option.text) + " |\n";
    }
    return table;
}

}  // namespace crossover

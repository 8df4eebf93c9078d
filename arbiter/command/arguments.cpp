// SPDX-License-Identifier: Apache-2.0
// Command lines by CLI11: see arguments.hpp.
#include "arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <sstream>

#include "arbiter/options.hpp"
#include "arbiter/options_text.hpp"
#include "mps.hpp"

namespace crossover::command {
namespace {

constexpr std::size_t kHelpColumn = 32;
constexpr std::size_t kHelpWidth = 100;

// Options with their text in a column of its own, wrapped; what needs or excludes what stands in
// the texts.
class Formatter : public CLI::Formatter {
  public:
    explicit Formatter(std::string usage) : usage_(std::move(usage)) {}

    std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
        return "\nUsage: " + usage_ + "\n";
    }

    std::string make_option(const CLI::Option* option, bool /*is_positional*/) const override {
        std::string line = "  " + option->get_name();
        if (option->get_type_size() != 0) {
            line += " " + option->get_type_name();
        }
        line += line.size() < kHelpColumn - 1 ? std::string(kHelpColumn - line.size(), ' ')
                                              : "\n" + std::string(kHelpColumn, ' ');
        std::string result;
        std::size_t used = kHelpColumn;
        std::istringstream words(option->get_description());
        for (std::string word; words >> word;) {
            if (used > kHelpColumn && used + 1 + word.size() > kHelpWidth) {
                result += line + "\n";
                line = std::string(kHelpColumn, ' ');
                used = kHelpColumn;
            }
            line += (used > kHelpColumn ? " " : "") + word;
            used += (used > kHelpColumn ? 1 : 0) + word.size();
        }
        return result + line + "\n";
    }

  private:
    std::string usage_;
};

std::string one_line(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
        text.pop_back();
    }
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

// Empty when `text` is a whole number in the range, else the complaint that CLI11 prints after the
// flag.
std::string number_fault(const std::string& text, std::uint64_t minimum, std::uint64_t maximum) {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc{} && stop == end && value >= minimum && value <= maximum) {
        return {};
    }
    return fmt::format("'{}' is not a whole number from {} to {}", text, minimum, maximum);
}

// One variable for the library's parser, which takes a lookup without a context.
thread_local const std::pair<std::string, std::string>* lookup_entry = nullptr;
thread_local std::string lookup_value;

char* lookup(const char* name) {
    if (lookup_entry->first != name) {
        return nullptr;
    }
    lookup_value = lookup_entry->second;
    return lookup_value.data();
}

// Empty, or why the library would refuse the value: its own parser decides, in the words of the
// option.
std::string setting_fault(const OptionRow& row, const std::string& value) {
    const std::pair<std::string, std::string> entry{row.environment, value};
    lookup_entry = &entry;
    Options options;
    char error[512];
    const bool text = row.default_value.empty();
    if ((text || !value.empty()) && parse_environment(lookup, options, error, sizeof(error))) {
        return {};
    }
    return fmt::format("'{}' is not allowed; allowed: {}", value, row.allowed);
}

std::string type_of(const OptionRow& row) {
    return !row.choices.empty() ? row.allowed : row.default_value.empty() ? "TEXT" : "NUMBER";
}

std::string help_of(const OptionRow& row) {
    return row.default_value.empty()
               ? fmt::format("{} [{}]", row.text, row.environment)
               : fmt::format("{}; default {} [{}]", row.text, row.default_value, row.environment);
}

}  // namespace

void set_usage(CLI::App& app, const std::string& usage) {
    app.set_help_flag("--help,-h", "print this and exit");
    app.formatter(std::make_shared<Formatter>(usage));
}

std::vector<std::vector<std::string>> split_at_dashes(Arguments arguments) {
    std::vector<std::vector<std::string>> groups(1);
    for (const std::string& argument : arguments) {
        if (argument == "--") {
            groups.emplace_back();
        } else {
            groups.back().push_back(argument);
        }
    }
    return groups;
}

bool parse(CLI::App& app, const std::vector<std::string>& arguments) {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
        app.parse(std::move(reversed));
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", app.help());
        return false;
    } catch (const CLI::ExtrasError&) {
        const std::vector<std::string> extras = app.remaining();
        const std::string& first = extras.empty() ? arguments.front() : extras.front();
        throw UsageError(fmt::format("'{}' is {}; see --help", first,
                                     first.starts_with('-') ? "no option" : "not expected here"));
    } catch (const CLI::ParseError& error) {
        throw UsageError(one_line(error.what()) + "; see --help");
    }
    return true;
}

CLI::Option* add_number(CLI::App& app, const std::string& flag, std::uint64_t& value,
                        std::uint64_t minimum, std::uint64_t maximum, const std::string& text) {
    return app.add_option(flag, value, text)
        ->type_name("NUMBER")
        ->check(CLI::Validator(
            [minimum, maximum](std::string& given) {
                return number_fault(given, minimum, maximum);
            },
            ""));
}

void add_mps_option(CLI::App& app, std::string& choice) {
    choice = "auto";
    app.add_option("--mps", choice,
                   "run under NVIDIA's MPS: the daemon that is there, else a private one of this "
                   "user on this host, started at need and ended behind its last user; auto: goes "
                   "on without, with a line; on: or fails; default auto")
        ->type_name("auto|on|off")
        ->check(CLI::Validator(
            [](std::string& given) {
                return parse_mps_choice(given)
                           ? std::string()
                           : fmt::format("'{}' is not allowed; allowed: auto|on|off", given);
            },
            ""));
}

void add_table_options(CLI::App& app, Settings& settings,
                       const std::vector<std::string_view>& skip) {
    for (const OptionRow& row : option_rows()) {
        if (std::find(skip.begin(), skip.end(), row.environment) != skip.end()) {
            continue;
        }
        const std::string environment = row.environment;
        app.add_option_function<std::string>(
               row.flag,
               [&settings, environment](const std::string& value) {
                   settings.emplace_back(environment, value);
               },
               help_of(row))
            ->type_name(type_of(row))
            ->check(CLI::Validator([row](std::string& value) { return setting_fault(row, value); },
                                   ""));
    }
}

}  // namespace crossover::command

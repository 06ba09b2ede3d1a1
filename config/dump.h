#pragma once
// Options as text: exact JSON for child processes, and the ways to show the list of flags.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/field.h"
#include "config/options.h"

namespace troupe::config {

/// Every field, by flag name, with its value; from_json(to_json(o)) gives the same o bit for bit.
std::string to_json(const Options& options);

/// Reads what to_json wrote. Unknown keys and values of the wrong type are errors.
Result<Options> from_json(std::string_view text);

/// Refuses a text that is not UTF-8, which JSON cannot carry as it is; names the flag.
Status check_utf8(const std::vector<Field>& fields);

/// to_json() without secrets (keys and passwords are "***"), for logs and /config-info.
std::string to_public_json(const Options& options);

/// What --dump-config prints: the values in effect as indented JSON, which --config reads. Without secrets,
/// without what is unset, and without what only one start asks for.
std::string to_config_file(const Options& options);

/// Columns of help where no terminal is narrower.
inline constexpr int kHelpColumns = 100;

/// `troupe serve --help`: the common flags, grouped, each with default, unit and environment variable.
std::string help_text(int width = kHelpColumns);

/// `troupe serve --help=all`: every flag, those that nothing reads apart from the others.
std::string full_help_text(int width = kHelpColumns);

/// `troupe serve --help=FORM`: text, all, markdown, flags or man; invalid_argument for another.
Result<std::string> serve_help_in_form(const std::string& form, int width = kHelpColumns);

/// docs/options.md.
std::string options_markdown();

}  // namespace troupe::config

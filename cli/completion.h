#pragma once
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::cli {

/// A script for bash, zsh or fish that completes commands, flags and the values of flags. It asks the program
/// itself, by
/// --help=commands and COMMAND --help=flags, so that it never is out of date. invalid_argument for another
/// shell.
Result<std::string> completion_script(std::string_view shell);

}  // namespace troupe::cli

#pragma once
// One field in words, for the lists of flags.
#include <string>

#include "config/field.h"

namespace troupe::config {

/// "8180", "on", "none", or what is chosen when it is unset.
std::string default_text(const Field& field);

/// What its value looks like: "N", "TEXT", "auto|cpu|cuda"; empty for a switch.
std::string placeholder(const Field& field);

/// "-f, --follow", "--port N".
std::string spelling(const Field& field);

/// Its environment variables, FastDeploy's first.
std::string variables_text(const Field& field);

}  // namespace troupe::config

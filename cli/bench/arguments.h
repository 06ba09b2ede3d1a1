#pragma once
// What the four kinds of `troupe bench` share: their own flags before "--", the server's behind it.
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "config/field.h"
#include "config/options.h"

namespace troupe::bench {

/// Sets `fields` from what comes before "--" and gives back what comes behind it. A value is the exit code:
/// --help or an error was printed.
std::optional<int> read_own_flags(int argc, char** argv, const cli::Synopsis& synopsis,
                                  const std::vector<config::Field>& fields,
                                  std::vector<std::string>& of_serve);

/// The flags of `troupe serve` as options, with the model found. A value is the exit code: an error was
/// printed.
std::optional<int> read_serve_flags(const cli::Synopsis& synopsis, const std::vector<std::string>& of_serve,
                                    config::Options& options);

int decode_main(int argc, char** argv);
int prefill_main(int argc, char** argv);
int serve_main(int argc, char** argv);
int load_main(int argc, char** argv);

}  // namespace troupe::bench

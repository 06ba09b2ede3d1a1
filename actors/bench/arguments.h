#pragma once
// What the four kinds of `troupe bench` share: their own flags before "--", the server's behind it.
#include <optional>
#include <string>
#include <vector>

#include "actors/cli/command_line.h"
#include "config/options.h"

namespace troupe::bench {

/// argv split at the first "--".
struct Words {
  std::vector<char*> own;             ///< argv[0] and what comes before "--"
  std::vector<std::string> of_serve;  ///< what comes after it
};
Words split_words(int argc, char** argv);

/// The flags of `troupe serve` as options, with the model found. A value is the exit code: an error was
/// printed.
std::optional<int> read_serve_flags(const cli::Synopsis& synopsis, const std::vector<std::string>& words,
                                    config::Options& options);

int decode_main(int argc, char** argv);
int prefill_main(int argc, char** argv);
int serve_main(int argc, char** argv);
int load_main(int argc, char** argv);

}  // namespace troupe::bench

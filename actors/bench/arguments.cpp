#include "actors/bench/arguments.h"

#include <cstdio>
#include <filesystem>
#include <string_view>

#include "config/parse.h"
#include "config/validate.h"

namespace troupe::bench {

Words split_words(int argc, char** argv) {
  Words words;
  int at = 0;
  for (; at < argc && std::string_view(argv[at]) != "--"; ++at) words.own.push_back(argv[at]);
  for (++at; at < argc; ++at) words.of_serve.emplace_back(argv[at]);
  return words;
}

std::optional<int> read_serve_flags(const cli::Synopsis& synopsis, const std::vector<std::string>& words,
                                    config::Options& options) {
  const auto refuse = [&](const Status& status) {
    cli::complain(synopsis, status.message);
    return config::exit_code(status);
  };
  auto parsed = config::parse(words, config::process_environment());
  if (!parsed.ok()) return refuse(parsed.status());
  for (const std::string& warning : parsed->warnings) cli::complain(synopsis, "warning: " + warning);
  options = parsed->options;
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (Status found = config::resolve_model(options.model, options.device.device, executable.string());
      !found.ok()) {
    return refuse(found);
  }
  return std::nullopt;
}

}  // namespace troupe::bench

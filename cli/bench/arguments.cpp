#include "cli/bench/arguments.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "config/parse.h"
#include "config/validate.h"

namespace troupe::bench {

std::optional<int> read_own_flags(int argc, char** argv, const cli::Synopsis& synopsis,
                                  const std::vector<config::Field>& fields,
                                  std::vector<std::string>& of_serve) {
  char** const border = std::find(argv, argv + argc, std::string_view("--"));
  std::vector<std::string> words;
  if (const auto code =
          cli::read_command_line(static_cast<int>(border - argv), argv, synopsis, fields, words)) {
    return code;
  }
  if (!words.empty()) return cli::fail(synopsis, invalid("unexpected \"" + words.front() + "\""));
  if (border != argv + argc) of_serve.assign(border + 1, argv + argc);
  return std::nullopt;
}

std::optional<int> read_serve_flags(const cli::Synopsis& synopsis, const std::vector<std::string>& of_serve,
                                    config::Options& options) {
  const auto refuse = [&](const Status& status) {
    cli::complain(synopsis, status.message);
    return config::exit_code(status);
  };
  auto parsed = config::parse(of_serve, config::process_environment());
  if (!parsed.ok()) return refuse(parsed.status());
  if (!parsed->help.empty()) {
    return refuse(invalid("behind -- are flags of troupe serve; troupe serve --help tells them"));
  }
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

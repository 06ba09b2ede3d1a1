#include "cli/command_line.h"

#include <unistd.h>

#include <cstdio>

#include "cli/terminal.h"
#include "config/arguments.h"
#include "config/dump.h"
#include "config/manual.h"
#include "config/parse.h"
#include "config/platform_variables.h"

namespace troupe::cli {

std::optional<int> read_command_line(int argc, char** argv, const Synopsis& synopsis,
                                     const std::vector<config::Field>& fields,
                                     std::vector<std::string>& words) {
  const std::vector<std::string> given(argv + (argc > 0 ? 1 : 0), argv + argc);
  const Result<config::Arguments> split = config::split_arguments(given, fields);
  if (!split.ok()) return fail(synopsis, split.status());
  if (!split->help.empty()) {
    if (split->help == "text") {
      std::printf(
          "troupe %s: %s\n\nusage: %s\n%s\nexamples:\n%s", synopsis.name, synopsis.summary, synopsis.usage,
          config::describe_fields(fields, columns_of(STDOUT_FILENO, config::kHelpColumns), true).c_str(),
          synopsis.examples);
      return 0;
    }
    const auto text = config::help_in_form(
        split->help, {synopsis.name, synopsis.summary, synopsis.usage, {}, synopsis.examples, fields});
    if (!text.ok()) return fail(synopsis, text.status());
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  const config::Environment environment = config::process_environment();
  if (const std::string note = config::platform_note(environment, fields, false); !note.empty())
    complain(synopsis, note);
  Status status = config::read_environment(environment, fields);
  if (!status.ok()) return fail(synopsis, status);
  for (const config::Argument& argument : split->given) config::clear_list(*argument.field);
  const Result<config::Arguments> read = config::read_arguments(given, fields);
  if (!read.ok()) return fail(synopsis, read.status());
  words = read->words;
  return std::nullopt;
}

void complain(const Synopsis& synopsis, const std::string& message) {
  const std::string line = std::string("troupe ") + synopsis.name + ": " + printable(message);
  std::fprintf(stderr, "%s\n", wrapped_for(STDERR_FILENO, line).c_str());
}

int fail(const Synopsis& synopsis, const Status& status) {
  complain(synopsis, status.message);
  return status.code == Code::invalid_argument ? 2 : 1;
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7f)) {
      // U+0080…U+009F are control characters as well: C2 80 … C2 9F in UTF-8.
      const bool c1 = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0 &&
                      static_cast<unsigned char>(text[i + 1]) >= 0x80;
      if (c1)
        ++i;
      else
        out += text[i];
    }
  }
  return out;
}

}  // namespace troupe::cli

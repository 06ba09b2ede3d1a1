// The list of flags for people: --help and docs/options.md.
#include <algorithm>

#include "config/arguments.h"
#include "config/dump.h"
#include "config/environment.h"
#include "config/field_text.h"
#include "config/fields.h"
#include "config/manual.h"
#include "config/wrap.h"

namespace troupe::config {
namespace {

/// What `troupe serve --help` shows; --help=all shows the others as well.
constexpr std::string_view kCommon[] = {"model",
                                        "served-model-name",
                                        "tokenizer",
                                        "dtype",
                                        "download",
                                        "reasoning-parser",
                                        "tool-call-parser",
                                        "host",
                                        "port",
                                        "metrics-port",
                                        "api-key-file",
                                        "ssl-certfile",
                                        "ssl-keyfile",
                                        "device",
                                        "gpu-memory-utilization",
                                        "quantization",
                                        "max-model-len",
                                        "max-num-seqs",
                                        "max-num-batched-tokens",
                                        "swap-space",
                                        "config",
                                        "dry-run",
                                        "dump-config",
                                        "quiet",
                                        "log-dir",
                                        "log-level"};

constexpr const char* kUsage = "troupe serve [--model DIRECTORY] [OPTION…]";
constexpr const char* kSummary = "serves an ERNIE-4.5 model over an OpenAI-style HTTP API";
constexpr const char* kRules =
    "An option is written --name value or --name=value; `_` and `-` are the same. A switch is turned off "
    "with\n"
    "--no-name. Each of these overrides those before it: defaults, --config file, environment, command "
    "line.\n";
constexpr const char* kExamples = R"(  troupe serve
        the demo model on http://127.0.0.1:8180
  troupe serve --model /models/ERNIE-4.5-0.3B-PT --port 8180 --metrics-port 8181 --max-model-len 32768
  troupe serve --model /models/ERNIE-4.5-0.3B-PT --dry-run
        checks flags, files, memory, ports and directories, and prints what fits
  troupe serve --dump-config > serve.json && troupe serve --config serve.json
  troupe serve --config serve.yaml --actor-log-dir scheduler=/var/log/troupe/scheduler
  FD_API_KEY=secret troupe serve --host 0.0.0.0
)";
constexpr const char* kExitCodes =
    "exit codes: 0 stopped · 1 failed while running · 2 wrong option or model · 3 not available yet\n";

/// "`--name N` unit (default)".
std::string markdown_flag(const Field& field) {
  const std::string unit = field.unit.empty() ? "" : " " + std::string(field.unit);
  return "`" + spelling(field) + "`" + unit + " (" + default_text(field) + ")";
}

/// The flags that work, by subject.
std::string markdown_subjects(const std::vector<Field>& all) {
  std::string out;
  std::string_view group;
  for (const Field& field : all) {
    if (field.hidden || field.standing != Standing::works) continue;
    if (field.group != group) {
      group = field.group;
      out += "\n### " + std::string(group) + "\n\n";
    }
    const std::string variable = field.env.empty() ? "" : "; env " + std::string(field.env);
    out += "- " + markdown_flag(field) + ": " + std::string(field.help) + variable + "\n";
  }
  return out;
}

/// Names that share a reason, in one line. Reasons come in the order of their first name.
class ByReason {
 public:
  void add(std::string name, std::string_view reason) {
    const auto line = std::ranges::find(lines_, reason, &Line::reason);
    if (line == lines_.end()) {
      lines_.push_back(Line{reason, std::move(name)});
    } else {
      line->names += ", " + std::move(name);
    }
  }

  std::string markdown() const {
    std::string out;
    for (const Line& line : lines_) out += "- " + line.names + ": " + std::string(line.reason) + "\n";
    return out;
  }

 private:
  struct Line {
    std::string_view reason;
    std::string names;
  };
  std::vector<Line> lines_;
};

std::string markdown_unread(const std::vector<Field>& all, Standing standing) {
  ByReason reasons;
  for (const Field& field : all) {
    if (!field.hidden && field.standing == standing) reasons.add(markdown_flag(field), field.reason);
  }
  return reasons.markdown();
}

std::string markdown_variables(Effect effect) {
  ByReason reasons;
  for (const KnownVariable& known : known_variables()) {
    if (known.effect == effect) reasons.add("`" + std::string(known.name) + "`", known.reason);
  }
  return reasons.markdown();
}

}  // namespace

std::string describe_fields(const std::vector<Field>& fields, int width, bool variables) {
  constexpr int kIndent = 8;
  std::string out;
  std::string_view group;
  for (const Field& field : fields) {
    if (field.hidden) continue;
    if (field.group != group) {
      group = field.group;
      out.append("\n").append(group).append(":\n");
    }
    std::string facts = "default " + default_text(field);
    if (!field.unit.empty()) facts += "; unit " + std::string(field.unit);
    if (variables) facts += "; env " + variables_text(field);
    out += "  " + spelling(field) + "\n" +
           wrap(std::string(kIndent, ' ') + std::string(field.help) + " [" + facts + "]", kIndent, width) +
           "\n";
  }
  return out;
}

namespace {

/// The flags of one standing that have no effect, with the reason of each.
std::string describe_unread(const std::vector<Field>& fields, Standing standing, int width) {
  std::string out;
  for (const Field& field : fields) {
    if (field.hidden || field.standing != standing) continue;
    out += "  " + spelling(field) + "\n" +
           wrap(std::string(8, ' ') + std::string(field.help) + ": " + std::string(field.reason) + " [env " +
                    variables_text(field) + "]",
                8, width) +
           "\n";
  }
  return out;
}

std::string serve_help(const std::string& flags, const std::string& more) {
  return std::string("troupe serve: ") + kSummary + ".\n\nusage: " + kUsage + "\n\n" + kRules + flags + "\n" +
         more + "examples:\n" + kExamples + "\n" + kExitCodes;
}

std::vector<Field> with_standing(std::vector<Field> all, Standing standing) {
  std::erase_if(all, [&](const Field& field) { return field.standing != standing; });
  return all;
}

}  // namespace

std::string help_text(int width) {
  Options defaults;
  std::vector<Field> common = with_standing(fields(defaults), Standing::works);
  std::erase_if(common, [](const Field& field) { return std::ranges::count(kCommon, field.name) == 0; });
  return serve_help(describe_fields(common, width, true),
                    "These are the common options: --help=all shows all of them, docs/options.md too.\n\n");
}

std::string full_help_text(int width) {
  Options defaults;
  const std::vector<Field> all = fields(defaults);
  return serve_help(describe_fields(with_standing(all, Standing::works), width, true) +
                        "\nAccepted without effect, with one warning line:\n" +
                        describe_unread(all, Standing::harmless, width) +
                        "\nNot there yet, refused with exit code 3:\n" +
                        describe_unread(all, Standing::refused, width),
                    "");
}

Result<std::string> serve_help_in_form(const std::string& form, int width) {
  if (form == "text") return help_text(width);
  if (form == "all") return full_help_text(width);
  if (form == "markdown") return options_markdown();
  Options defaults;
  const std::vector<Field> works = with_standing(fields(defaults), Standing::works);
  return help_in_form(form,
                      {"serve", kSummary, kUsage, std::string(kRules) + "\n" + kExitCodes, kExamples, works});
}

std::string options_markdown() {
  Options defaults;
  const std::vector<Field> all = fields(defaults);
  return "# Options\n\n"
         "Written by `troupe serve --help=markdown` from config/fields*.cpp; `--help=all` is for a "
         "terminal.\n\n"
         "A line has a flag, its unit and, in parentheses, its default. Write `--name value` or "
         "`--name=value`; `_` and `-` are the same. A switch is turned off with `--no-name`; a list is "
         "repeated or separated by commas. Each of these overrides those before it: defaults, `--config "
         "FILE` (YAML or JSON), environment, command line. The variable of a flag is `TROUPE_` and its name "
         "in capitals with `_`; FastDeploy's own (env) is read too.\n\n"
         "## What works\n" +
         markdown_subjects(all) +
         "\n## Accepted without effect\n\nA value other than the default gives one warning line; answers "
         "and memory are the same without it.\n\n" +
         markdown_unread(all, Standing::harmless) +
         "\n## Not available yet\n\nA value other than the default ends the start with exit code 3 and "
         "\"not available yet\", since ignoring it would change answers or memory.\n\n" +
         markdown_unread(all, Standing::refused) +
         "\n## Environment variables that are not flags\n\nA `*` stands for any ending. A variable that is "
         "empty or has FastDeploy's default has no effect.\n\nNothing to do:\n\n" +
         markdown_variables(Effect::obeyed) + "\nNo effect, one warning line:\n\n" +
         markdown_variables(Effect::ignored) + "\nNot available yet, exit code 3:\n\n" +
         markdown_variables(Effect::refused);
}

}  // namespace troupe::config

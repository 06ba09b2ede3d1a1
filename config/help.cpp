// The list of flags for people: --help and docs/options.md.
#include <algorithm>

#include "config/arguments.h"
#include "config/dump.h"
#include "config/environment.h"
#include "config/fields.h"

namespace troupe::config {
namespace {

constexpr int kWidth = 100;

std::string default_text(const Field& field) {
  if (!field.when_unset.empty()) return std::string(field.when_unset);
  const std::string value = show_value(field);
  if (is_switch(field)) return value == "true" ? "on" : "off";
  return value.empty() ? "none" : value;
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (std::string_view word : words) {
    if (!out.empty()) out += '|';
    out += word;
  }
  return out;
}

std::string placeholder(const Field& field) {
  if (is_switch(field)) return {};
  if (const auto* choice = std::get_if<EnumMember>(&field.slot)) return joined(choice->names);
  if (std::holds_alternative<JsonText>(field.slot)) return "JSON";
  if (std::holds_alternative<Rate>(field.slot)) return "N/S";
  if (std::holds_alternative<std::map<std::string, std::string>*>(field.slot)) return "NAME=VALUE";
  const bool text = std::holds_alternative<std::string*>(field.slot) ||
                    std::holds_alternative<std::vector<std::string>*>(field.slot);
  if (!text) return std::holds_alternative<double*>(field.slot) ? "X" : "N";
  return field.allowed.empty() ? "TEXT" : joined(field.allowed);
}

std::string spelling(const Field& field) {
  std::string out;
  for (std::string_view alias : field.aliases) {
    if (alias.size() <= 2) out.append("-").append(alias).append(", ");
  }
  out.append("--").append(field.name);
  const std::string value = placeholder(field);
  return value.empty() ? out : out + " " + value;
}

std::string variables_text(const Field& field) {
  std::string out = variable_name(field);
  if (!field.env.empty()) out = std::string(field.env) + ", " + out;
  return out;
}

/// `text` wrapped at spaces; every line after the first is indented.
std::string wrapped(const std::string& text, int indent, int width) {
  std::string out;
  std::size_t from = 0;
  const auto room = static_cast<std::size_t>(width - indent);
  while (text.size() - from > room) {
    std::size_t cut = text.rfind(' ', from + room);
    if (cut == std::string::npos || cut <= from) cut = text.find(' ', from + room);
    if (cut == std::string::npos) break;
    out += text.substr(from, cut - from) + "\n" + std::string(static_cast<std::size_t>(indent), ' ');
    from = cut + 1;
  }
  return out + text.substr(from);
}

const char* standing_text(Standing standing) {
  switch (standing) {
    case Standing::works: return "works";
    case Standing::harmless: return "no effect, one warning line";
    case Standing::refused: return "not available yet, exit code 3";
  }
  return "";
}

std::string escaped(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string markdown_table(const std::vector<Field>& all, Standing standing) {
  std::string out;
  std::string_view group;
  for (const Field& field : all) {
    if (field.hidden || field.standing != standing) continue;
    const bool works = standing == Standing::works;
    if (field.group != group) {
      group = field.group;
      out += "\n### " + std::string(group) + "\n\n";
      out += works ? "| flag | default | unit | environment | meaning |\n|---|---|---|---|---|\n"
                   : "| flag | default | meaning | why |\n|---|---|---|---|\n";
    }
    const std::string flag = "| `" + escaped(spelling(field)) + "` | " + escaped(default_text(field)) + " | ";
    const std::string help(field.help);
    if (works) {
      out += flag + std::string(field.unit) + " | " + variables_text(field) + " | " + escaped(help) + " |\n";
    } else {
      out += flag + escaped(help) + " | " + std::string(field.reason) + " |\n";
    }
  }
  return out;
}

std::string markdown_variables() {
  std::string out = "| variable | what it does | why |\n|---|---|---|\n";
  for (const KnownVariable& known : known_variables()) {
    const char* effect = known.effect == Effect::obeyed    ? "nothing to do"
                         : known.effect == Effect::ignored ? "no effect, one warning line"
                                                           : "not available yet, exit code 3";
    out += "| `" + std::string(known.name) + "` | " + effect + " | " + std::string(known.reason) + " |\n";
  }
  return out;
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
    std::string text(field.help);
    std::string facts = "default " + default_text(field);
    if (!field.unit.empty()) facts += "; unit " + std::string(field.unit);
    if (variables) facts += "; env " + variables_text(field);
    text += " [" + facts + "]";
    if (field.standing != Standing::works) {
      text += std::string(" ") + "(" + standing_text(field.standing) + ": " + std::string(field.reason) + ")";
    }
    out += "  " + spelling(field) + "\n" + std::string(kIndent, ' ') + wrapped(text, kIndent, width) + "\n";
  }
  return out;
}

std::string help_text() {
  Options defaults;
  return R"(troupe serve: serves an ERNIE-4.5 model over an OpenAI-style HTTP API.

usage: troupe serve [--model DIRECTORY] [OPTION…]

An option is written --name value or --name=value; `_` and `-` are the same. A switch is turned off with
--no-name. Each of these overrides those before it: defaults, --config file, environment, command line.
)" + describe_fields(fields(defaults), kWidth, true) +
         R"(
examples:
  troupe serve
        the demo model on http://127.0.0.1:8180
  troupe serve --model /models/ERNIE-4.5-0.3B-PT --port 8180 --metrics-port 8181 --max-model-len 32768
  troupe serve --model /models/ERNIE-4.5-0.3B-PT --dry-run
        checks flags, files and memory, and prints what fits
  troupe serve --config serve.yaml --actor-log-dir scheduler=/var/log/troupe/scheduler
  FD_API_KEY=secret troupe serve --host 0.0.0.0

exit codes: 0 stopped · 1 failed while running · 2 wrong option or model · 3 not available yet
)";
}

std::string options_markdown() {
  Options defaults;
  const std::vector<Field> all = fields(defaults);
  return "# Options\n\n"
         "Written by `troupe serve --help=markdown` from the one list of flags, config/fields*.cpp.\n\n"
         "`troupe serve` takes FastDeploy's flags and environment variables. `_` and `-` are the same in "
         "flags "
         "and in the names of parsers. `--name value`, `--name=value`; a switch is turned off with "
         "`--no-name`; "
         "a list is repeated or separated by commas. `--config FILE` reads any of them from YAML or JSON. "
         "Each of these overrides those before it: defaults, config file, environment, command line. Every "
         "flag has a variable, `TROUPE_` and its name in capitals; FastDeploy's own name for it, where there "
         "is one, is read too.\n\n"
         "All flags are parsed and checked in full, also those of features that are not available yet.\n\n"
         "## What works\n" +
         markdown_table(all, Standing::works) +
         "\n## Accepted without effect\n\nA value other than the default gives one warning line; answers and "
         "memory are the same without it.\n" +
         markdown_table(all, Standing::harmless) +
         "\n## Not available yet\n\nA value other than the default ends the start with exit code 3 and \"not "
         "available yet\", since ignoring it would change answers or memory.\n" +
         markdown_table(all, Standing::refused) +
         "\n## Environment variables that are not flags\n\nA `*` stands for any ending. A variable that is "
         "empty or has FastDeploy's default has no effect.\n\n" +
         markdown_variables();
}

}  // namespace troupe::config

#include "config/manual.h"

#include "config/field_text.h"

namespace troupe::config {
namespace {

std::string flag_list(const std::vector<Field>& fields) {
  std::string out;
  for (const Field& field : fields) {
    if (field.hidden) continue;
    const std::string values = placeholder(field);
    out += "--" + std::string(field.name) + "\t" + (values.empty() ? "-" : values) + "\t" +
           std::string(field.help) + "\n";
  }
  return out + "--help\t-\tprint what the flags mean\n";
}

/// `text` as roff shows it: backslashes and dashes are escaped, a dot or quote at a line's begin is no
/// request.
std::string roff(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begin = i == 0 || text[i - 1] == '\n';
    if (begin && (text[i] == '.' || text[i] == '\'')) out += "\\&";
    if (text[i] == '\\') {
      out += "\\e";
    } else if (text[i] == '-') {
      out += "\\-";
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string man_page(const Manual& manual) {
  std::string out = ".TH TROUPE\\-" + roff(manual.name) + " 1\n.SH NAME\ntroupe\\-" + roff(manual.name) +
                    " \\- " + roff(manual.summary) + "\n.SH SYNOPSIS\n.nf\n" + roff(manual.usage) +
                    "\n.fi\n.SH DESCRIPTION\n.nf\n" + roff(manual.rules) + "\n.fi\n.SH OPTIONS\n";
  std::string_view group;
  for (const Field& field : manual.fields) {
    if (field.hidden) continue;
    if (field.group != group) {
      group = field.group;
      out += ".SS " + roff(group) + "\n";
    }
    std::string facts = "Default: " + default_text(field) + ".";
    if (!field.unit.empty()) facts += " Unit: " + std::string(field.unit) + ".";
    out += ".TP\n.B " + roff(spelling(field)) + "\n" + roff(std::string(field.help)) + ".\n" + roff(facts) +
           " Environment: " + roff(variables_text(field)) + ".\n";
  }
  return out + ".SH EXAMPLES\n.nf\n" + roff(manual.examples) + ".fi\n.SH SEE ALSO\n.BR troupe (1)\n";
}

}  // namespace

Result<std::string> help_in_form(const std::string& form, const Manual& manual) {
  if (form == "flags") return flag_list(manual.fields);
  if (form == "man") return man_page(manual);
  const bool serve = manual.name == "serve";
  return invalid("--help=" + form + ": expected " + (serve ? "all, markdown, " : "") + "flags or man",
                 "help");
}

}  // namespace troupe::config

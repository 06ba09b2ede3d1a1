#pragma once
// A subcommand's list of flags for other programs: for completion in shells, and as a manual page.
#include <string>
#include <vector>

#include "base/status.h"
#include "config/field.h"

namespace troupe::config {

struct Manual {
  std::string name;     ///< of the subcommand
  std::string summary;  ///< one line
  std::string usage;
  std::string rules;     ///< paragraphs below the usage; may be empty
  std::string examples;  ///< lines: commands indented by two, what they do by eight
  const std::vector<Field>& fields;
};

/// What --help=FORM prints. "flags": a line for each flag, its name, its values ("-" for a switch) and its
/// help, with tabs between. "man": a page for man(1). invalid_argument for another form.
Result<std::string> help_in_form(const std::string& form, const Manual& manual);

}  // namespace troupe::config

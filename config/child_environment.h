#pragma once
// Which environment variables a child process gets. Options and keys reach engine and workers through a file
// of options (actors/supervisor/child_arguments.h), so no variable that sets an option is handed on to them.
#include <string>
#include <vector>

#include "config/parse.h"

namespace troupe::config {

enum class ChildKind {
  front,
  engine,
  worker,
  text,    ///< works on clients' texts and forms
  media,   ///< decodes clients' pictures
  relay,   ///< connects to other machines
  fetch,   ///< fetches files that clients name
  server,  ///< `troupe serve`, started by `troupe bench`
  pager,   ///< shows a text on the terminal
};

/// The variables of `own` that a child of this kind may read, as "NAME=value". None that holds a key or a
/// password is among them.
std::vector<std::string> child_environment(ChildKind kind, const Environment& own);

}  // namespace troupe::config

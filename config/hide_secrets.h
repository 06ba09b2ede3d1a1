#pragma once
// A command line is shown to every user of the machine, in /proc/PID/cmdline and by ps. A process that needs
// no key gets none.
#include "config/options.h"

namespace troupe::config {

/// A copy in which keys, passwords, and what files of keys and certificates held, are empty.
Options without_secrets(const Options& options);

/// Overwrites the values of secret flags (--api-key) in place with asterisks. Call it as early as possible,
/// with the argv of main(), after having copied what is still needed.
void hide_secrets(int argc, char** argv);

}  // namespace troupe::config

#pragma once

namespace troupe::cli {

/// "0.1.0".
const char* version();
/// The libraries it was built with, and their versions.
const char* libraries();

}  // namespace troupe::cli

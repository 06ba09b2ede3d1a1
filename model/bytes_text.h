#pragma once
#include <cstdint>
#include <string>

namespace troupe::model {

/// For people: "1.50 GiB", "270 MiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace troupe::model

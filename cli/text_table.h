#pragma once
#include <string>
#include <vector>

namespace troupe::cli {

using TableRow = std::vector<std::string>;

/// Columns as wide as their widest cell, two spaces apart, each line indented by two.
std::string table(const std::vector<TableRow>& rows);

}  // namespace troupe::cli

#include "cli/text_table.h"

#include <algorithm>

namespace troupe::cli {

namespace {

/// Code points: the bytes that do not continue one.
std::size_t width(const std::string& cell) {
  return static_cast<std::size_t>(std::ranges::count_if(cell, [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string table(const std::vector<TableRow>& rows) {
  std::vector<std::size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string out;
  for (const TableRow& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - width(row[i]) + 2, ' ');
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace troupe::cli

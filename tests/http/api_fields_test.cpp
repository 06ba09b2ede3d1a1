// The table of docs/apis.md that says which API takes which field, against the lists that the readers check.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "http/api/client_policy.h"
#include "http/api/request_fields.h"

namespace troupe::http {
namespace {

constexpr std::uint16_t kColumns[] = {kChatApi, kCompletionsApi, kResponsesApi, kMessagesApi};
using Marks = std::array<std::string, std::size(kColumns)>;

std::string mark_of(std::string_view name, ApiSet api) {
  for (const FieldPolicy& row : field_policies()) {
    if (row.field == name && (row.apis & api) != 0) return row.use == PartUse::refused ? "400" : "left out";
  }
  for (const RequestField& field : request_fields()) {
    if (field.name == name && (field.apis & api) != 0) return field.about.empty() ? "no effect" : "yes";
  }
  return "unknown";
}

/// Of the fields that some APIs take and others do not.
std::map<std::string, Marks> expected_rows() {
  std::map<std::string, Marks> rows;
  for (const RequestField& field : request_fields()) {
    Marks marks;
    for (std::size_t i = 0; i < marks.size(); ++i) marks[i] = mark_of(field.name, kColumns[i]);
    const auto taken = static_cast<std::size_t>(std::count(marks.begin(), marks.end(), "yes"));
    if (taken > 0 && taken < marks.size()) rows[std::string(field.name)] = marks;
  }
  return rows;
}

/// The cells of a line of a table, without their blanks.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const std::size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
    cells.push_back(begin == cell.npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

/// The names of a cell such as "`best_of`, `echo`".
std::vector<std::string> names_of(const std::string& cell) {
  std::vector<std::string> names;
  std::istringstream in(cell);
  std::string between;
  for (std::string name; std::getline(in, between, '`') && std::getline(in, name, '`');)
    names.push_back(name);
  return names;
}

TEST(ApiFields, TheDocumentedTableIsThatOfTheReaders) {
  std::ifstream file(std::string(TROUPE_TEST_DATA) + "/../../docs/apis.md");
  ASSERT_TRUE(file);
  std::map<std::string, Marks> documented;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## Fields of some APIs only";
    if (!inside || !line.starts_with("| `")) continue;
    const std::vector<std::string> cells = cells_of(line);
    ASSERT_EQ(cells.size(), 6u) << line;
    EXPECT_FALSE(cells[5].empty()) << "no reason: " << line;
    for (const std::string& name : names_of(cells[0])) {
      EXPECT_TRUE(documented.try_emplace(name, Marks{cells[1], cells[2], cells[3], cells[4]}).second) << name;
    }
  }
  const auto line_of = [](const std::string& name, const Marks& marks) {
    std::string line = "| `" + name + "` |";
    for (const std::string& mark : marks) line += " " + mark + " |";
    return line;
  };
  const auto expected = expected_rows();
  EXPECT_GT(expected.size(), 20u);
  for (const auto& [name, marks] : expected) {
    const auto found = documented.find(name);
    EXPECT_TRUE(found != documented.end() && found->second == marks)
        << "docs/apis.md needs: " << line_of(name, marks);
  }
  for (const auto& [name, marks] : documented)
    EXPECT_TRUE(expected.contains(name)) << "not needed: " << line_of(name, marks);
}

}  // namespace
}  // namespace troupe::http

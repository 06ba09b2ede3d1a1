#include "model/documented/measured_speeds.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace troupe::model {
namespace {

std::string performance_page() {
  std::ifstream file(std::filesystem::path(TROUPE_TEST_DATA) / ".." / ".." / "docs" / "performance.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// How the page writes the day: the first measurements' under the machine's description.
std::string day_of(std::string_view date) {
  return date == "2026-11-22" ? "2026-11-21 and 22" : std::string(date);
}

TEST(MeasuredSteps, AreThoseOfThePage) {
  const std::string page = performance_page();
  ASSERT_FALSE(page.empty());
  for (const MeasuredStep& step : measured_steps()) {
    const std::string line(step.line);
    const std::size_t at = page.find("\n" + line);
    ASSERT_NE(at, std::string::npos) << line;
    EXPECT_EQ(page.find("\n" + line, at + 1), std::string::npos) << line << " begins several lines";
    const std::string_view figure = std::string_view(line).substr(line.rfind(std::string(step.ms)));
    EXPECT_TRUE(figure.starts_with(step.ms)) << line;
    const char next = page[at + 1 + line.rfind(std::string(step.ms)) + step.ms.size()];
    EXPECT_TRUE(next == ' ' || next == ',') << line << ": the page has more digits";
    const std::size_t heading = page.rfind("\n## ", at);
    EXPECT_NE(page.substr(heading, at - heading).find(day_of(step.date)), std::string::npos) << step.date;
  }
}

TEST(MeasuredSteps, AreFoundByWhatWasMeasured) {
  EXPECT_EQ(find_measured("ERNIE-4.5-300B-A47B", "wint4", "H200-141G", 2, 128)->ms, "52.2");
  EXPECT_EQ(find_measured("ERNIE-4.5-300B-A47B", "wint4", "H200-141G", 4, 128), nullptr);
  EXPECT_EQ(find_measured("ERNIE-4.5-0.3B", "", "H100-80G", 1, 1), nullptr);
  EXPECT_NEAR(tokens_per_s(*find_measured("ERNIE-4.5-0.3B", "", "H200-141G", 1, 128)), 63'963, 10);
}

}  // namespace
}  // namespace troupe::model

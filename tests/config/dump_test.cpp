#include "config/dump.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "config/fields.h"
#include "config/parse.h"
#include "config/wrap.h"

namespace troupe::config {
namespace {

/// Gives every field a value other than its default, so that a field missing from the dump is detected.
void disturb(Options& options) {
  for (const Field& field : fields(options)) {
    if (auto* const* p = std::get_if<bool*>(&field.slot)) **p = !**p;
    if (auto* const* p = std::get_if<std::optional<bool>*>(&field.slot)) **p = true;
    if (auto* const* p = std::get_if<int*>(&field.slot)) **p += 1;
    if (auto* const* p = std::get_if<std::optional<int>*>(&field.slot)) **p = 1234;
    if (auto* const* p = std::get_if<std::int64_t*>(&field.slot))
      **p = std::numeric_limits<std::int64_t>::max();
    if (auto* const* p = std::get_if<double*>(&field.slot)) **p += 0.1;
    if (auto* const* p = std::get_if<std::string*>(&field.slot)) **p += "\n\"ü,=";
    if (auto* const* p = std::get_if<std::vector<int>*>(&field.slot)) (*p)->push_back(7);
    if (auto* const* p = std::get_if<std::vector<std::string>*>(&field.slot)) (*p)->push_back("a,b");
    if (auto* const* p = std::get_if<std::map<std::string, std::string>*>(&field.slot)) (**p)["x=,"] = "/y,z";
    if (auto* p = std::get_if<EnumMember>(&field.slot)) p->set(p->get() == 0 ? 1 : 0);
    if (auto* p = std::get_if<ByteCount>(&field.slot)) *p->value += 1;
    if (auto* p = std::get_if<Rate>(&field.slot)) *p->count = 9, *p->seconds = 11;
    if (auto* p = std::get_if<JsonText>(&field.slot)) *p->text = R"({"a": 1})";
  }
}

TEST(Dump, RoundTripsEveryField) {
  Options disturbed;
  disturb(disturbed);
  const Result<Options> read = from_json(to_json(disturbed));
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_EQ(to_json(*read), to_json(disturbed));
  EXPECT_NE(to_json(*read), to_json(Options{}));
  Options copy = *read;
  Options defaults;
  const auto now = fields(copy);
  const auto before = fields(defaults);
  for (std::size_t i = 0; i < now.size(); ++i) {
    EXPECT_NE(show_value(now[i]), show_value(before[i])) << now[i].name << " is missing from the dump";
  }
  EXPECT_EQ(read->device.gpu_memory_utilization, disturbed.device.gpu_memory_utilization);
  EXPECT_EQ(read->log.actor_dirs, disturbed.log.actor_dirs);
  EXPECT_EQ(read->model.directory, disturbed.model.directory);
}

TEST(Dump, RefusesWhatItDidNotWrite) {
  EXPECT_FALSE(from_json("[]").ok());
  EXPECT_FALSE(from_json("{").ok());
  EXPECT_NE(from_json(R"({"prot": 1})").status().message.find("unknown option"), std::string::npos);
  EXPECT_FALSE(from_json(R"({"port": "8180"})").ok());
  EXPECT_FALSE(from_json(R"({"api-key": [1]})").ok());
  EXPECT_FALSE(from_json(R"({"dtype": "int8"})").ok());
}

TEST(Dump, ThePublicDumpHidesSecrets) {
  Options options;
  options.http.api_keys = {"sekret"};
  options.unread["scheduler-password"] = std::string("hidden-word");
  const std::string text = to_public_json(options);
  EXPECT_EQ(text.find("sekret"), std::string::npos);
  EXPECT_EQ(text.find("hidden-word"), std::string::npos);
  EXPECT_NE(to_json(options).find("sekret"), std::string::npos);
}

TEST(Fields, NamesAreUniqueAndComplete) {
  Options options;
  std::set<std::string> names;
  for (const Field& field : fields(options)) {
    EXPECT_TRUE(names.insert(std::string(field.name)).second) << field.name;
    for (std::string_view alias : field.aliases)
      EXPECT_TRUE(names.insert(std::string(alias)).second) << alias;
    EXPECT_EQ(canonical(field.name), field.name);
    EXPECT_FALSE(field.help.empty()) << field.name;
    EXPECT_EQ(field.reason.empty(), field.standing == Standing::works) << field.name;
  }
}

TEST(Fields, AFlagThatNothingReadsIsKeptUnderItsName) {
  Options options;
  std::size_t unread = 0;
  for (const Field& field : fields(options)) {
    const bool has_member = std::holds_alternative<std::monostate>(field.unread_default);
    EXPECT_EQ(has_member, field.standing == Standing::works || field.name == "block-size") << field.name;
    EXPECT_EQ(options.unread.contains(field.name), !has_member) << field.name;
    if (!has_member) ++unread;
    EXPECT_TRUE(std::visit(
        [](const auto& slot) {
          if constexpr (std::is_pointer_v<std::decay_t<decltype(slot)>>) return slot != nullptr;
          return true;
        },
        field.slot))
        << field.name;
  }
  EXPECT_EQ(options.unread.size(), unread);
}

TEST(Fields, CopiedOptionsHaveValuesOfTheirOwn) {
  Options first;
  fields(first);
  Options second = first;
  for (const Field& field : fields(second)) {
    if (field.name == "scheduler-host") {
      ASSERT_TRUE(set_value(field, "other").ok());
    }
  }
  EXPECT_EQ(unread_value<std::string>(first.unread, "scheduler-host"), "127.0.0.1");
  EXPECT_EQ(unread_value<std::string>(second.unread, "scheduler-host"), "other");
}

TEST(Help, NamesEveryFlagWithDefaultAndVariable) {
  Options options;
  const std::string text = full_help_text();
  for (const Field& field : fields(options)) {
    if (field.hidden) continue;
    EXPECT_NE(text.find("--" + std::string(field.name)), std::string::npos) << field.name;
    EXPECT_NE(text.find(variable_name(field)), std::string::npos) << field.name;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 130u) << line;
}

TEST(Help, ShowsTheCommonFlagsAndTheOthersWhenAsked) {
  const std::string common = help_text(), all = full_help_text();
  for (const char* flag : {"--model ", "--port ", "--quiet\n", "--dump-config\n", "--max-model-len "}) {
    EXPECT_NE(common.find(std::string("\n  ") + flag), std::string::npos) << flag;
  }
  EXPECT_EQ(common.find("--max-json-depth"), std::string::npos);
  EXPECT_NE(common.find("--help=all"), std::string::npos);
  const std::size_t unread = all.find("\nNot there yet, refused with exit code 3:\n");
  ASSERT_NE(unread, std::string::npos);
  EXPECT_GT(all.find("--controller-port"), unread);
  EXPECT_LT(all.find("--max-json-depth"), unread);
  EXPECT_FALSE(serve_help_in_form("roman").ok());
  EXPECT_NE(serve_help_in_form("flags")->find("--device\tauto|cpu|cuda|echo\t"), std::string::npos);
  EXPECT_NE(serve_help_in_form("flags")->find("--quiet\t-\t"), std::string::npos);
  EXPECT_NE(serve_help_in_form("man")->find(".TP\n.B \\-\\-quiet\n"), std::string::npos);
}

TEST(Dump, TheConfigFileGivesTheSameValues) {
  const auto given = parse(
      {"--max-num-seqs", "7", "--max-restarts", "5/9", "--host", "::1", "--actor-log-dir", "cache=/x"}, {});
  ASSERT_TRUE(given.ok());
  const std::string text = to_config_file(given->options);
  const std::string path = testing::TempDir() + "/troupe_dumped.json";
  std::ofstream(path) << text;
  const auto read = parse({"--config", path}, {});
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_EQ(to_config_file(read->options), text);
  EXPECT_EQ(read->options.scheduler.max_num_seqs, 7);
  EXPECT_EQ(text.find("dump-config"), std::string::npos);
}

TEST(Wrap, KeepsToTheWidthAndIndents) {
  EXPECT_EQ(wrap("one two three", 2, 9), "one two\n  three");
  EXPECT_EQ(wrap("one\ntwo three four", 2, 9), "one\ntwo three\n  four");
  EXPECT_EQ(wrap("überlänge x", 2, 5), "überlänge\n  x");
  EXPECT_EQ(wrap("", 2, 5), "");
}

TEST(Help, DocumentIsUpToDate) {
  std::ifstream file(std::string(TROUPE_TEST_DATA) + "/../../docs/options.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == options_markdown())
      << "docs/options.md is out of date; write it by: troupe serve --help=markdown > docs/options.md";
}

}  // namespace
}  // namespace troupe::config

// Lines of batches, the files that hold them, and the form that brings them.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "http/batch/batch_run.h"
#include "http/batch/multipart.h"

namespace troupe::http {
namespace {

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/troupe-batch-test-XXXXXX";
    path_ = ::mkdtemp(pattern);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string text(const std::string& name) const {
    std::ifstream in(path_ + "/" + name, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }

 private:
  std::string path_;
};

std::string request(const std::string& id) {
  return R"({"custom_id":")" + id +
         R"(","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}})" + "\n";
}

TEST(BatchLine, HasARouteAndABody) {
  const BatchLine line = read_batch_line(request("a"), "/v1/chat/completions");
  ASSERT_TRUE(line.refusal.ok()) << line.refusal.message;
  EXPECT_EQ(line.custom_id, "a");
  EXPECT_EQ(line.body, R"({"messages":[]})");
  ASSERT_NE(line.route, nullptr);
  EXPECT_EQ(line.route->path, "/v1/chat/completions");
}

TEST(BatchLine, ARefusalNamesTheField) {
  const auto param = [](const std::string& text) {
    const BatchLine line = read_batch_line(text, "/v1/chat/completions");
    EXPECT_FALSE(line.refusal.ok()) << text;
    EXPECT_EQ(line.route, nullptr);
    return line.refusal.param;
  };
  EXPECT_EQ(param("{"), "");
  EXPECT_EQ(param("[]"), "");
  EXPECT_EQ(param(R"({"custom_id":7})"), "custom_id");
  EXPECT_EQ(param(R"({"custom_id":""})"), "custom_id");
  EXPECT_EQ(param(R"({"custom_id":"a","method":"GET"})"), "method");
  EXPECT_EQ(param(R"({"custom_id":"a","method":"POST","url":"/v1/messages","body":{}})"), "url");
  EXPECT_EQ(param(R"({"custom_id":"a","method":"POST","url":"/metrics","body":{}})"), "url");
  EXPECT_EQ(param(R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{}})"), "url")
      << "not the batch's endpoint";
  EXPECT_EQ(param(R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":[]})"), "body");
  EXPECT_EQ(param(R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"stream":true}})"),
            "body.stream");
  EXPECT_EQ(read_batch_line(R"({"custom_id":"kept"})", {}).custom_id, "kept");
}

TEST(BatchLine, OfOpenAisApisAlone) {
  EXPECT_EQ(batch_urls(), "/v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings");
  EXPECT_EQ(batch_route("/v1/embeddings")->api, Api::embeddings);
  EXPECT_EQ(batch_route("/v1/responses")->api, Api::responses);
  EXPECT_EQ(batch_route("/v1/messages"), nullptr);
  EXPECT_EQ(batch_route("/tokenize"), nullptr);
  EXPECT_EQ(batch_route("/v1/batches"), nullptr);
}

TEST(BatchLine, AResultTellsItsLineAndIsNotTakenForOneWhenItIsCut) {
  const LineResult good{
      .line = 12, .custom_id = "a\"b", .status = 200, .request_id = "r", .body = "{}", .error = {}};
  std::string text = result_line("batch_1", good);
  EXPECT_EQ(text, R"({"id":"batch_req_batch_1_12","custom_id":"a\"b","response":{"status_code":200,)"
                  R"("request_id":"r","body":{}},"error":null})"
                  "\n");
  text.pop_back();
  EXPECT_EQ(line_of_result("batch_1", text), 12u);
  EXPECT_EQ(line_of_result("batch_2", text), 0u);
  EXPECT_EQ(line_of_result("batch_1", text.substr(0, text.size() - 1) + " "), 0u);
  EXPECT_EQ(line_of_result("batch_1", std::string(64, '\0')), 0u);

  const LineResult bad{.line = 3,
                       .custom_id = {},
                       .status = 0,
                       .request_id = {},
                       .body = {},
                       .error = invalid("why", "url", "invalid_line")};
  EXPECT_EQ(result_line("b", bad),
            R"({"id":"batch_req_b_3","custom_id":null,"response":null,"error":{"code":"invalid_line",)"
            R"("message":"why","param":"url","line":3}})"
            "\n");
}

TEST(LineReader, CountsEmptyLinesAndLeavesThemOut) {
  const Folder folder;
  const std::string long_one(700'000, 'x');  // longer than one read
  auto reader = LineReader::open(folder.file("in", "a\r\n\n  \nb\n" + long_one + "\nlast"), 800'000);
  ASSERT_TRUE(reader.ok());
  std::vector<std::pair<std::uint64_t, std::string>> lines;
  while (auto line = reader->next()) {
    EXPECT_FALSE(line->too_long);
    lines.emplace_back(line->number, line->text);
  }
  EXPECT_TRUE(reader->status().ok());
  const std::vector<std::pair<std::uint64_t, std::string>> expected{
      {1, "a"}, {4, "b"}, {5, long_one}, {6, "last"}};
  EXPECT_EQ(lines, expected);
}

TEST(LineReader, CutsALineThatIsTooLongAndGoesOn) {
  const Folder folder;
  auto reader = LineReader::open(folder.file("in", std::string(900'000, 'x') + "\nb\n"), 1000);
  ASSERT_TRUE(reader.ok());
  auto line = reader->next();
  ASSERT_TRUE(line && line->too_long);
  EXPECT_EQ(line->text.size(), 1000u);
  line = reader->next();
  ASSERT_TRUE(line);
  EXPECT_EQ(line->text, "b");
  EXPECT_EQ(line->number, 2u);
  EXPECT_FALSE(LineReader::open(folder.path("absent"), 10).ok());
}

TEST(LineAppender, RemovesALineThatADeathHasCut) {
  const Folder folder;
  const std::string path = folder.file("out", "one\ntwo\nthr");
  std::vector<std::string> seen;
  auto appender = LineAppender::open(path, [&](std::string_view line) {
    seen.emplace_back(line);
    return true;
  });
  ASSERT_TRUE(appender.ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(folder.text("out"), "one\ntwo\n");
  appender->append("three\n");
  EXPECT_EQ(folder.text("out"), "one\ntwo\n") << "only sync() writes";
  ASSERT_TRUE(appender->sync().ok());
  EXPECT_EQ(folder.text("out"), "one\ntwo\nthree\n");
  EXPECT_EQ(appender->bytes(), 14u);
}

TEST(LineAppender, CutsTheFileWhereALineIsNotWhole) {
  const Folder folder;
  const std::string path = folder.file("out", std::string("one\n\0\0\0\nthree\n", 14));
  ASSERT_TRUE(LineAppender::open(path, [](std::string_view line) { return line[0] != '\0'; }).ok());
  EXPECT_EQ(folder.text("out"), "one\n");
}

class BatchRunTest : public testing::Test {
 protected:
  std::unique_ptr<BatchRun> open() {
    auto run = BatchRun::open({folder_.path("in"), folder_.path("good"), folder_.path("bad")}, "b",
                              "/v1/chat/completions", 10'000);
    EXPECT_TRUE(run.ok());
    return *std::move(run);
  }
  static void answer(BatchRun& run, const BatchRun::Next& next, int status = 200) {
    run.finish({.line = next.line,
                .custom_id = next.request.custom_id,
                .status = status,
                .request_id = "r",
                .body = "{}",
                .error = {}});
  }
  Folder folder_;
};

TEST_F(BatchRunTest, ABadLineGetsItsErrorAndStopsNothing) {
  folder_.file("in", request("a") + "{\n" + request("a") + request("c"));
  auto run = open();
  std::vector<std::uint64_t> lines;
  while (auto next = run->next()) {
    lines.push_back(next->line);
    answer(*run, *next, next->line == 4 ? 400 : 200);
  }
  EXPECT_EQ(lines, (std::vector<std::uint64_t>{1, 4})) << "2 is no JSON, 3 has the custom_id of 1";
  EXPECT_TRUE(run->done());
  EXPECT_EQ(run->completed(), 1u);
  EXPECT_EQ(run->failed(), 3u);
  ASSERT_TRUE(run->sync().ok());
  const std::string bad = folder_.text("bad");
  EXPECT_NE(bad.find(R"("line":2)"), std::string::npos) << bad;
  EXPECT_NE(bad.find(R"("code":"duplicate_custom_id")"), std::string::npos) << bad;
  EXPECT_NE(bad.find(R"("custom_id":"c","response":{"status_code":400)"), std::string::npos) << bad;
}

TEST_F(BatchRunTest, ANewProcessAsksForNoFinishedRequestAgain) {
  std::string input;
  for (int i = 0; i < 20; ++i) input += request("r" + std::to_string(i));
  folder_.file("in", input);
  {
    auto run = open();
    for (int i = 0; i < 8; ++i) {
      const auto next = run->next();
      ASSERT_TRUE(next);
      if (i % 2 == 0) answer(*run, *next, i == 4 ? 500 : 200);
    }
    ASSERT_TRUE(run->sync().ok());
  }
  // The last line of the results is torn: its request is asked again.
  const std::string good = folder_.text("good");
  folder_.file("good", good.substr(0, good.size() - 5));
  auto run = open();
  EXPECT_EQ(run->completed(), 2u);
  EXPECT_EQ(run->failed(), 1u);
  std::vector<std::uint64_t> asked;
  while (auto next = run->next()) {
    asked.push_back(next->line);
    answer(*run, *next);
  }
  EXPECT_EQ(asked,
            (std::vector<std::uint64_t>{2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}));
  ASSERT_TRUE(run->sync().ok());
  const std::string lines = folder_.text("good") + folder_.text("bad");
  for (int i = 1; i <= 20; ++i) {
    const std::string id = "batch_req_b_" + std::to_string(i) + "\"";
    const std::size_t at = lines.find(id);
    ASSERT_NE(at, std::string::npos) << id;
    EXPECT_EQ(lines.find(id, at + 1), std::string::npos) << id << " stands there twice";
  }
}

TEST_F(BatchRunTest, WhatIsPutBackIsNextAndWhatIsGivenUpGetsAnError) {
  folder_.file("in", request("a") + request("b") + request("c"));
  auto run = open();
  auto first = run->next();
  ASSERT_TRUE(first);
  run->put_back(*first);
  EXPECT_EQ(run->in_flight(), 0u);
  first = run->next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->line, 1u);
  run->put_back(*first);
  run->give_up({Code::timeout, "over", {}, "batch_expired"});
  EXPECT_TRUE(run->done());
  EXPECT_EQ(run->failed(), 3u);
}

TEST_F(BatchRunTest, IsNotDoneWhereItsInputCannotBeReadOn) {
  std::filesystem::create_directory(folder_.path("in"));  // opens, and reading it fails
  auto run = open();
  EXPECT_FALSE(run->next());
  EXPECT_FALSE(run->status().ok());
  EXPECT_FALSE(run->done());
}

TEST_F(BatchRunTest, CountsRequests) {
  EXPECT_EQ(*BatchRun::count(folder_.file("two", request("a") + "\n" + request("b")), 1000), 2u);
  EXPECT_EQ(BatchRun::count(folder_.file("none", "\n\n"), 1000).status().reason, "empty_file");
}

const char* const kForm =
    "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n"
    "Content-Type: application/octet-stream\r\n\r\nline\r\n--X\r\n\r\n--XY\r\n--XX--\r\n";

TEST(Multipart, TheSameHoweverTheBytesCome) {
  const std::string form = kForm;
  for (std::size_t piece = 1; piece <= form.size(); ++piece) {
    std::string file;
    Multipart reader("XX", [&](std::string_view bytes) {
      file += bytes;
      return Status();
    });
    for (std::size_t at = 0; at < form.size(); at += piece) {
      ASSERT_TRUE(reader.take(std::string_view(form).substr(at, piece)).ok()) << piece;
    }
    ASSERT_TRUE(reader.end().ok()) << piece;
    EXPECT_EQ(file, "line\r\n--X\r\n\r\n--XY") << piece;
    EXPECT_EQ(reader.field("purpose"), "batch");
    EXPECT_EQ(reader.file_name(), "a.jsonl");
  }
}

TEST(Multipart, RefusesWhatIsNoForm) {
  const auto read = [](const std::string& form) {
    Multipart reader("XX", [](std::string_view) { return Status(); });
    Status status = reader.take(form);
    return status.ok() ? reader.end() : status;
  };
  EXPECT_FALSE(read("").ok());
  EXPECT_FALSE(read("--XX\r\n\r\n\r\nno name\r\n--XX--").ok());
  EXPECT_FALSE(read(std::string(kForm).substr(0, 200)).ok()) << "its end is missing";
  EXPECT_FALSE(read(std::string(20'000, 'x')).ok());
  const std::string file = "\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\n1\r\n--XX";
  EXPECT_TRUE(read("--XX" + file + "--").ok());
  EXPECT_FALSE(read("--XX" + file + file + "--").ok()) << "two files";
  EXPECT_EQ(Multipart::boundary_of("multipart/form-data; boundary=\"a b\""), "a b");
  EXPECT_EQ(Multipart::boundary_of("multipart/form-data; charset=x; boundary=ab"), "ab");
  EXPECT_EQ(Multipart::boundary_of("application/json; boundary=ab"), "");
  EXPECT_EQ(Multipart::boundary_of("multipart/form-data"), "");
}

}  // namespace
}  // namespace troupe::http

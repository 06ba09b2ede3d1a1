// The store and the thread of batches, with a Backend that the test answers for.
#include "http/batch/batch_service.h"

#include <sys/stat.h>

#include "http/batch_fixture.h"

namespace troupe::http {
namespace {

using test::BatchServiceTest;
using test::kIo;
using test::Resource;
using test::Verb;
using troupe::test::kPatience;

TEST_F(BatchServiceTest, ABatchRunsInTheBackgroundAndHasItsResultsInTwoFiles) {
  const std::string input = file(5);
  const Json created = create(input);
  EXPECT_EQ(text(created, "status"), "validating");
  const std::string id = text(created, "id");
  std::set<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    const Call call = engine_.next();
    EXPECT_LT(engine_.waiting(), 3u) << "no more than three at once";
    const auto& request = std::get<Request>(call.body);
    EXPECT_TRUE(request.background);
    EXPECT_GT(request.timeout_ns, 3600'000'000'000) << "the batch's time, not the request's";
    EXPECT_EQ(call.exchange.io, kIo);
    EXPECT_TRUE(ids.insert(call.request_id).second);
    reply(call, i == 2 ? 400 : 200);
  }
  const Json done = wait_for(id, "completed");
  EXPECT_EQ(count(done, "total"), 5);
  EXPECT_EQ(count(done, "completed"), 4);
  EXPECT_EQ(count(done, "failed"), 1);
  EXPECT_EQ(text(*json::member(done, "metadata"), "a"), "b");
  EXPECT_EQ(lines(content(text(done, "output_file_id"))), 4u);
  EXPECT_EQ(lines(content(text(done, "error_file_id"))), 1u);
}

TEST_F(BatchServiceTest, EmbeddingsAndResponsesRunAsChatsDo) {
  const struct {
    std::string url, good, bad, param;
    Api api;
  } cases[] = {
      {"/v1/embeddings", R"({"input":["a","b"]})", R"({"input":[]})", "input", Api::embeddings},
      {"/v1/responses", R"({"input":"a"})", R"({"input":"a","background":true})", "background",
       Api::responses},
  };
  for (const auto& of : cases) {
    const std::string id = text(create(file_of({of.bad, of.good, of.good}, of.url), {}, of.url), "id");
    const Call first = engine_.next();
    const auto& request = std::get<Request>(first.body);
    EXPECT_EQ(request.api, of.api);
    EXPECT_TRUE(request.background);
    EXPECT_GT(request.timeout_ns, 3600'000'000'000) << "the batch's time, not the request's";
    engine_.next();  // in flight when the server ends
    reply(first, 200, R"({"of":")" + of.url + R"("})");
    while (count(batch(id), "completed") < 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    open();
    reply(engine_.next());
    const Json done = wait_for(id, "completed");
    EXPECT_EQ(count(done, "completed"), 2) << of.url;
    EXPECT_EQ(count(done, "failed"), 1) << of.url;
    EXPECT_NE(content(text(done, "output_file_id")).find(R"({"of":")" + of.url + R"("})"), std::string::npos);
    const std::string error = content(text(done, "error_file_id"));
    EXPECT_NE(error.find(R"("custom_id":"r0","response":{"status_code":4)"), std::string::npos) << error;
    EXPECT_NE(error.find(R"("param":")" + of.param + "\""), std::string::npos) << error;
  }
}

TEST_F(BatchServiceTest, ARequestCountsAsItsSequencesAndTwoAreThereAlways) {
  const std::string inputs = R"({"input":["a","b","c","d","e"]})", choices = R"({"prompt":"p","n":2})";
  text(create(file_of({inputs, inputs, inputs, inputs}, "/v1/embeddings"), {}, "/v1/embeddings"), "id");
  const Call first = engine_.next(), second = engine_.next();
  reply(first);
  const Call third = engine_.next();
  EXPECT_EQ(engine_.waiting(), 0u) << "five sequences are more than the three that may be there";
  reply(second);
  const Call fourth = engine_.next();
  reply(third);
  reply(fourth);
  create(file_of({choices, choices, choices}, "/v1/completions"));
  const Call one = engine_.next(), two = engine_.next();
  object({.resource = Resource::batches, .verb = Verb::get});  // behind whatever else would be asked
  EXPECT_EQ(engine_.waiting(), 0u) << "four choices of three";
  reply(one);
  reply(engine_.next());
  reply(two);
}

TEST_F(BatchServiceTest, ANewServerGoesOnAndAsksForNothingTwice) {
  const std::string id = text(create(file(6)), "id");
  for (int i = 0; i < 2; ++i) reply(engine_.next());
  wait_for(id, "in_progress");
  while (count(batch(id), "completed") < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  while (engine_.waiting() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (int i = 0; i < 3; ++i) engine_.next();  // in flight when the server ends
  open();
  std::set<std::string> asked;
  for (int i = 0; i < 4; ++i) {
    const Call call = engine_.next();
    asked.insert(call.request_id.substr(call.request_id.rfind('_')));
    reply(call);
  }
  EXPECT_EQ(asked, (std::set<std::string>{"_3", "_4", "_5", "_6"}));
  const Json done = wait_for(id, "completed");
  EXPECT_EQ(count(done, "completed"), 6);
  const std::string results = content(text(done, "output_file_id"));
  EXPECT_EQ(lines(results), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_NE(results.find("\"r" + std::to_string(i) + "\""), std::string::npos);
}

TEST_F(BatchServiceTest, ACancelledBatchKeepsWhatIsDone) {
  const std::string id = text(create(file(6)), "id");
  reply(engine_.next());
  const Call in_flight = engine_.next();
  while (count(batch(id), "completed") < 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Json cancelled = object({.resource = Resource::cancel, .verb = Verb::post, .id = id});
  EXPECT_TRUE(text(cancelled, "status") == "cancelling") << json::to_text(cancelled);
  EXPECT_TRUE(engine_.was_cancelled(in_flight.exchange.id));
  const Json ended = wait_for(id, "cancelled");
  EXPECT_EQ(lines(content(text(ended, "output_file_id"))), 1u);
  EXPECT_EQ(text(ended, "error_file_id"), "");
  reply(in_flight);  // too late, and to nobody
  EXPECT_EQ(ask({.resource = Resource::cancel, .verb = Verb::post, .id = id}).status, 400);
}

TEST_F(BatchServiceTest, AnExpiredBatchHasAnErrorForEachRequestThatIsLeft) {
  const std::string id = text(create(file(6)), "id");
  reply(engine_.next());
  while (count(batch(id), "completed") < 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  now_s_ += 24 * 3600;
  const Json ended = wait_for(id, "expired");
  EXPECT_EQ(count(ended, "completed"), 1);
  EXPECT_EQ(count(ended, "failed"), 5);
  const std::string errors = content(text(ended, "error_file_id"));
  EXPECT_EQ(lines(errors), 5u);
  EXPECT_NE(errors.find("batch_expired"), std::string::npos);
}

TEST_F(BatchServiceTest, ARequestThatFindsTheServerFullIsAskedAgain) {
  const std::string id = text(create(file(1)), "id");
  const Call first = engine_.next();
  reply(first, 429);
  const Call again = engine_.next();
  EXPECT_EQ(again.request_id, first.request_id);
  reply(again);
  EXPECT_EQ(count(wait_for(id, "completed"), "completed"), 1);
}

TEST_F(BatchServiceTest, ManyBatchesKeepFewFilesOpen) {
  const std::string input = file(1);
  std::vector<std::string> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(text(create(input), "id"));
  wait_for(ids.back(), "in_progress");
  std::size_t open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    open += std::filesystem::read_symlink(entry, gone).string().starts_with(folder_ + "/batches/files/");
  }
  EXPECT_GT(open, 0u);
  EXPECT_LE(open, 3u * 32);
  for (std::size_t i = 0; i < ids.size(); ++i) reply(engine_.next());
  for (const std::string& id : ids) wait_for(id, "completed");
}

TEST_F(BatchServiceTest, AFileBelongsToItsKey) {
  const std::string input = file(1, "key-a");
  EXPECT_EQ(content(input, "key-b"), "status 404");
  EXPECT_EQ(content(input), "status 404");
  EXPECT_EQ(lines(content(input, "key-a")), 1u);
  StoreRequest request{.resource = Resource::batches, .verb = Verb::post, .owner = "key-b"};
  request.body =
      R"({"input_file_id":")" + input + R"(","endpoint":"/v1/completions","completion_window":"24h"})";
  EXPECT_EQ(ask(std::move(request)).status, 400);
  const Json theirs = object({.resource = Resource::files, .verb = Verb::get, .owner = "key-b"});
  EXPECT_TRUE(json::items(*json::member(theirs, "data")).empty());
  const std::string id = text(create(input, "key-a"), "id");
  EXPECT_EQ(ask({.resource = Resource::batch, .verb = Verb::get, .id = id, .owner = "key-b"}).status, 404);
  EXPECT_EQ(ask({.resource = Resource::file, .verb = Verb::remove, .id = input, .owner = "key-a"}).status,
            400)
      << "a batch reads it";
  reply(engine_.next());
}

TEST_F(BatchServiceTest, ListsHavePages) {
  std::vector<std::string> files;
  for (int i = 0; i < 5; ++i) {
    files.push_back(file(1));
    ++now_s_;
  }
  StoreRequest request{.resource = Resource::files, .verb = Verb::get, .after = files[4], .limit = "2"};
  Json page = object(request);
  const auto data = json::items(*json::member(page, "data"));
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(text(data[0], "id"), files[3]) << "newest first";
  EXPECT_EQ(text(page, "last_id"), files[2]);
  EXPECT_TRUE(json::is_true(json::member(page, "has_more")));
  request.order = "asc";
  request.after = files[2];
  page = object(request);
  EXPECT_EQ(text(page, "first_id"), files[3]);
  EXPECT_FALSE(json::is_true(json::member(page, "has_more")));
  request.limit = "0";
  EXPECT_EQ(ask(request).status, 400);
}

TEST_F(BatchServiceTest, RefusalsNameTheField) {
  EXPECT_NE(upload("x", "fine-tune").body.find("purpose"), std::string::npos);
  auto sink = service_->receive("multipart/form-data; boundary=XX");
  ASSERT_TRUE(sink.ok());
  ASSERT_TRUE((*sink)->write("--XX\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n").ok());
  EXPECT_EQ((*sink)->write(std::string(100'001 + 10, 'x')).code, Code::too_large);
  EXPECT_FALSE(service_->receive("application/json").ok());
  const std::string input = file(1);
  const auto param = [&](const std::string& body) {
    StoreRequest request{.resource = Resource::batches, .verb = Verb::post};
    request.body = body;
    const Output output = ask(std::move(request));
    EXPECT_EQ(output.status, 400) << output.body;
    return text(*json::member(json::parse(output.body).value_or(Json()), "error"), "param");
  };
  EXPECT_EQ(param(R"({"input_file_id":"no","endpoint":"/v1/completions"})"), "input_file_id");
  EXPECT_EQ(param(R"({"input_file_id":")" + input + R"(","endpoint":"/x"})"), "endpoint");
  EXPECT_EQ(
      param(R"({"input_file_id":")" + input + R"(","endpoint":"/v1/completions","completion_window":"1h"})"),
      "completion_window");
  EXPECT_EQ(param(R"({"input_file_id":")" + input + R"(","endpoint":"/v1/completions","metadata":{"a":1}})"),
            "metadata");
  // An empty file is refused when its requests are counted.
  const std::string empty = text(json::parse(upload("\n").body).value_or(Json()), "id");
  const Json failed = wait_for(text(create(empty), "id"), "failed");
  EXPECT_NE(json::to_text(failed).find("empty_file"), std::string::npos);
}

TEST_F(BatchServiceTest, TheDirectoryIsForOneServerAndClosedToOthers) {
  const std::string dir = folder_ + "/batches";
  EXPECT_FALSE(BatchStore::open(dir, 1 << 20, 0).ok()) << "this server holds it";
  struct stat found {};
  ASSERT_EQ(::stat(dir.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  const std::string open_to_all = folder_ + "/open";
  ASSERT_EQ(::mkdir(open_to_all.c_str(), 0755), 0);
  ::chmod(open_to_all.c_str(), 0755);
  EXPECT_EQ(BatchStore::open(open_to_all, 1 << 20).status().param, "batch-dir");
}

TEST_F(BatchServiceTest, FilesHaveALimitTogetherAndLeaveNothingBehind) {
  std::string big(90'000, 'x');
  int kept = 0;
  while (kept < 20 && upload(big).status == 200) ++kept;
  EXPECT_EQ(kept, 11) << "of 90,000 bytes in 1 MiB";
  EXPECT_EQ(upload(big).status, 413);
  const auto end = std::chrono::steady_clock::now() + kPatience;  // it goes behind the refusal
  const std::string uploads = folder_ + "/batches/uploads";
  while (!std::filesystem::is_empty(uploads) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(std::filesystem::is_empty(uploads));
  const Json files = object({.resource = Resource::files, .verb = Verb::get});
  const std::string id = text(json::items(*json::member(files, "data"))[0], "id");
  const Json removed = object({.resource = Resource::file, .verb = Verb::remove, .id = id});
  EXPECT_TRUE(json::is_true(json::member(removed, "deleted")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/batches/files/" + id));
  EXPECT_EQ(upload(big).status, 200);
}

}  // namespace
}  // namespace troupe::http

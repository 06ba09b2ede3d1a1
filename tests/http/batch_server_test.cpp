// Files and batches over a socket: uploads that no buffer would hold, downloads in pieces, keys.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/json.h"
#include "http/batch/batch_service.h"
#include "http/client/client.h"
#include "http/server/server.h"
#include "support/loopback_server.h"

namespace troupe::http {
namespace {

/// Serves the store, and answers every other request with its prompt.
class Echo final : public Backend {
 public:
  void submit(Call&& call) override {
    if (std::holds_alternative<StoreRequest>(call.body)) return service->submit(std::move(call));
    Output output{.exchange_id = call.exchange.id, .kind = Output::Kind::whole};
    output.body = R"({"text":")" + std::get<Request>(call.body).source.texts.at(0) + "\"}";
    std::vector<Output> outputs;
    outputs.push_back(std::move(output));
    service->take(std::move(outputs));
  }
  Result<std::unique_ptr<BodySink>> receive(std::string_view content_type) override {
    return service == nullptr ? Backend::receive(content_type) : service->receive(content_type);
  }
  void cancel(Exchange) override {}
  Health health() const override { return {.live = true, .state = Health::State::ready}; }

  std::unique_ptr<BatchService> service;
};

class BatchServerTest : public testing::Test {
 protected:
  BatchServerTest() {
    char pattern[] = "/tmp/troupe-batch-test-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    auto store = BatchStore::open(folder_ + "/batches", 1ll << 30);
    EXPECT_TRUE(store.ok());
    setup_.http.io_threads = 1;
    setup_.http.api_keys = {"one", "two"};
    setup_.limits.max_body_bytes = 1 << 20;
    setup_.limits.max_buffered_bytes = 2 << 20;
    setup_.listen_fd = troupe::test::listen_on_loopback(&port_);
    BatchService::Setup parts;
    parts.options.file_bytes = 8 << 20;
    parts.limits = setup_.limits;
    parts.io = 1;
    parts.concurrency = 4;
    parts.deliver = [this](std::uint32_t io, std::vector<Output>&& outputs) {
      server_->deliver(io, std::move(outputs));
    };
    parts.unix_seconds = [] { return 1'000'000; };
    backend_.service = std::make_unique<BatchService>(*std::move(store), std::move(parts));
    setup_.owner_salt = backend_.service->salt();
    server_ = std::make_unique<Server>(setup_, backend_);
    EXPECT_TRUE(server_->start().ok());
    backend_.service->start(backend_);
  }
  ~BatchServerTest() override {
    server_->stop();
    backend_.service->stop();
    std::filesystem::remove_all(folder_);
  }

  Client client(const std::string& key = "one") const { return Client({.port = port_, .api_key = key}); }
  static std::string form(const std::string& content) {
    return "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--XX\r\n"
           "Content-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n" +
           content + "\r\n--XX--\r\n";
  }
  static ClientResponse upload(Client& client, const std::string& content) {
    auto answer = client.post("/v1/files", "multipart/form-data; boundary=XX", form(content));
    EXPECT_TRUE(answer.ok()) << answer.status().message;
    return answer.ok() ? *std::move(answer) : ClientResponse{};
  }
  static std::string member(const std::string& body, const char* name) {
    const Json object = json::parse(body).value_or(Json());
    const std::string* text = json::text(json::member(object, name));
    return text == nullptr ? "" : *text;
  }
  static std::string download(Client& client, const std::string& id) {
    std::string bytes;
    const auto answer = client.download("/v1/files/" + id + "/content", [&](std::string_view piece) {
      bytes += piece;
      return Status();
    });
    EXPECT_TRUE(answer.ok()) << answer.status().message;
    if (!answer.ok() || answer->status != 200) return "status";
    EXPECT_EQ(answer->headers.at("content-type"), "application/jsonl");
    return bytes;
  }

  std::string folder_;
  int port_ = 0;
  ServerSetup setup_;
  Echo backend_;
  std::unique_ptr<Server> server_;
};

TEST_F(BatchServerTest, AFileBeyondTheLimitOfBodiesComesAndGoes) {
  std::string content;
  for (int i = 0; content.size() < (7u << 20); ++i) content += "line " + std::to_string(i) + "\r\n--X\n";
  Client one = client();
  const ClientResponse kept = upload(one, content);
  ASSERT_EQ(kept.status, 200) << kept.body;
  const std::string id = member(kept.body, "id");
  EXPECT_EQ(download(one, id), content);
  EXPECT_EQ(download(one, id), content) << "on the same connection";
  EXPECT_EQ(member(one.request("GET", "/v1/files/" + id)->body, "filename"), "a.jsonl");
  EXPECT_EQ(one.request("DELETE", "/v1/files/" + id)->status, 200);
  EXPECT_EQ(one.request("GET", "/v1/files/" + id)->status, 404);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/batches/uploads"));
}

TEST_F(BatchServerTest, TooLargeAndMalformedFilesAreRefused) {
  Client one = client();
  EXPECT_EQ(upload(one, std::string((8 << 20) + 1, 'x')).status, 413);
  Client two = client();
  EXPECT_EQ(two.post("/v1/files", "application/json", "{}")->status, 415);
  EXPECT_EQ(two.post("/v1/files", "multipart/form-data; boundary=XX", "no form")->status, 400);
  EXPECT_EQ(two.request("GET", "/v1/files?limit=x")->status, 400);
  EXPECT_EQ(client("wrong").post("/v1/files", "multipart/form-data; boundary=XX", form("x"))->status, 401);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/batches/files"));
}

TEST_F(BatchServerTest, ABatchOfOneKeyIsNotSeenByAnother) {
  Client one = client(), two = client("two");
  const std::string input = member(
      upload(one, R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"p"}})").body,
      "id");
  const std::string order =
      R"({"input_file_id":")" + input + R"(","endpoint":"/v1/completions","completion_window":"24h"})";
  EXPECT_EQ(two.request("POST", "/v1/batches", order)->status, 400);
  const std::string id = member(one.request("POST", "/v1/batches", order)->body, "id");
  std::string batch;
  for (int i = 0; i < 6000 && member(batch, "status") != "completed"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    batch = one.request("GET", "/v1/batches/" + id)->body;
  }
  EXPECT_EQ(member(batch, "status"), "completed") << batch;
  EXPECT_EQ(two.request("GET", "/v1/batches/" + id)->status, 404);
  EXPECT_EQ(two.request("POST", "/v1/batches/" + id + "/cancel")->status, 404);
  const std::string results = member(batch, "output_file_id");
  EXPECT_NE(download(one, results).find(R"("body":{"text":"p"}},"error":null})"), std::string::npos);
  EXPECT_EQ(download(two, results), "status");
}

}  // namespace
}  // namespace troupe::http

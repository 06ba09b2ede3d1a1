// Bad input at the level of HTTP and of JSON, sent as raw bytes: what is answered, whether the connection
// stays, and that the server serves on.
#include <thread>

#include "http/support.h"

namespace troupe::http::test {
namespace {

const std::string kGet = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
const std::string kPost =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

class CorpusTest : public ServerTest {
 protected:
  void SetUp() override {
    start();
    answer_all();
  }

  /// The error object, complete, with everything a client may look for.
  static void expect_error(const Response& response, int status, const std::string& code,
                           const json& param = nullptr) {
    ASSERT_EQ(response.status, status) << response.body;
    EXPECT_EQ(response.header("Content-Type"), "application/json");
    EXPECT_TRUE(response.header("x-request-id").has_value());
    const json error = response.error();
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_EQ(error.at("code"), code);
    EXPECT_EQ(error.at("param"), param);
    EXPECT_FALSE(error.at("message").get<std::string>().empty());
    EXPECT_EQ(error.size(), 4u);
  }

  /// Sends, expects the error, and the connection to end without anything else being answered.
  void refused_and_closed(const std::string& bytes, int status, const std::string& code) {
    RawClient client(port);
    client.send(bytes);
    expect_error(client.receive(), status, code);
    EXPECT_TRUE(client.closed()) << bytes.substr(0, 80);
    EXPECT_TRUE(client.rest().empty()) << client.rest();
    EXPECT_EQ(backend.count(), 0u);
  }

  /// Posts a body; the connection must answer the next request too.
  void refused(const std::string& body, int status, const std::string& code, const json& param = nullptr) {
    RawClient client(port);
    client.post("/v1/chat/completions", body);
    expect_error(client.receive(), status, code, param);
    client.get("/health");
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_EQ(backend.count(), 0u);
  }
};

TEST_F(CorpusTest, Row1HeaderOf100KB) {
  refused_and_closed(kGet + "X: " + std::string(100 << 10, 'x') + "\r\n\r\n", 431, "header_too_large");
}

TEST_F(CorpusTest, Row2TooManyHeaders) {
  std::string many = kGet;
  for (int i = 0; i < 10000; ++i) many += "X-" + std::to_string(i) + ": v\r\n";
  refused_and_closed(many + "\r\n", 431, "too_many_headers");
  std::string small = kGet;
  for (int i = 0; i < 1000; ++i) small += "a:b\r\n";
  refused_and_closed(small + "\r\n", 431, "too_many_headers");
}

TEST_F(CorpusTest, AHundredHeadersAndAnEightKilobyteTargetPass) {
  std::string request = "GET /health?" + std::string((8 << 10) - 8, 'q') + " HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 99; ++i) request += "a:b\r\n";
  RawClient client(port);
  client.send(request + "\r\n");
  EXPECT_EQ(client.receive().status, 200);
  client.send(request + "a:b\r\n\r\n");
  EXPECT_EQ(client.receive().status, 431);
}

TEST_F(CorpusTest, Row3UriOf100KB) {
  refused_and_closed("GET /" + std::string(100 << 10, 'u') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414,
                     "uri_too_long");
  refused_and_closed("GET /" + std::string(8 << 10, 'u') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414,
                     "uri_too_long");
}

TEST_F(CorpusTest, Row4NoHostOrTwo) {
  refused_and_closed("GET /health HTTP/1.1\r\n\r\n", 400, "bad_request");
  refused_and_closed(kGet + "host: b\r\n\r\n", 400, "bad_request");
}

TEST_F(CorpusTest, Row5ContentLengthBesideTransferEncoding) {
  refused_and_closed(kPost + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
                     "bad_framing");
  refused_and_closed(kPost + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400,
                     "bad_framing");
}

TEST_F(CorpusTest, Row6UnknownTransferEncodingSmugglesNothing) {
  const std::string hidden = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const char* coding :
       {"xchunked", "chunked, identity", "identity", "", "chunked\r\nTransfer-Encoding: chunked"}) {
    refused_and_closed(kPost + "Transfer-Encoding: " + coding + "\r\n\r\n" + hidden, 400, "bad_framing");
  }
  refused_and_closed(kPost + "Transfer-Encoding: gzip, chunked\r\n\r\n" + hidden, 501, "not_implemented");
}

TEST_F(CorpusTest, Row7ContentLengthsThatDifferOrAreNoNumber) {
  for (const char* length : {"5\r\nContent-Length: 6", "5\r\nContent-Length: 5", "5, 5", "-1", "+1", "0x1",
                             "1.0", "", "18446744073709551616", "99999999999999999999999", "1 1"}) {
    refused_and_closed(kPost + "Content-Length: " + length + "\r\n\r\n", 400, "bad_framing");
  }
}

TEST_F(CorpusTest, Row8ChunkSizesThatOverflow) {
  for (const char* size : {"FFFFFFFFFFFFFFFFF", "-1", "+5", "g", "0x5", ""}) {
    refused_and_closed(kPost + "Transfer-Encoding: chunked\r\n\r\n" + size + "\r\nabcde\r\n\r\n", 400,
                       "bad_framing");
  }
  refused_and_closed(kPost + "Transfer-Encoding: chunked\r\n\r\n5;" + std::string(1 << 20, 'e'), 400,
                     "bad_framing");
}

TEST_F(CorpusTest, Row9ManySmallChunks) {
  std::string body = R"({"messages":[{"role":"user","content":")";
  std::string request = kPost + "Transfer-Encoding: chunked\r\n\r\n";
  std::string content(3'000'000 - body.size() - 4, 'x');
  body += content + "\"}]}";
  for (std::size_t i = 0; i < body.size(); i += 6) {
    const std::string part = body.substr(i, 6);
    request += std::to_string(part.size()) + "\r\n" + part + "\r\n";
  }
  request += "0\r\n\r\n";
  RawClient client(port);
  client.send(request);
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(to_text(std::get<Request>(backend.call(0).body).source.conversation.messages).size(),
            body.size() - 13);
}

TEST_F(CorpusTest, Row10LinesThatAreNotHeaders) {
  const std::string nul("A: b\0c\r\n\r\n", 10);
  for (const std::string& bad :
       {std::string("A: b\r\n folded\r\n\r\n"), std::string("A : b\r\n\r\n"), nul,
        std::string("A: b\rc\r\n\r\n"), std::string("A: b\nC: d\r\n\r\n"), std::string("no colon\r\n\r\n"),
        std::string(": empty\r\n\r\n"), std::string("A: \x01\r\n\r\n"), std::string("A: \x7f\r\n\r\n")}) {
    refused_and_closed(kGet + bad, 400, "bad_request");
  }
  for (const std::string& bad :
       {std::string("GET /h\xC3\xA9 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n"),
        std::string("GET /health HTTP/1.9\r\nHost: localhost\r\n\r\n"), std::string("GET /health\r\n\r\n"),
        std::string("\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("GET\t/health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("GET /health HTTP/1.1\nHost: a\n\n")}) {
    refused_and_closed(bad, 400, "bad_request");
  }
}

TEST_F(CorpusTest, Row14BodyShorterThanDeclared) {
  RawClient client(port);
  client.send(kPost + "Content-Length: 100\r\n\r\n{}");
  client.close();
  EXPECT_TRUE(backend.wait_status(499));
  EXPECT_EQ(backend.count(), 0u);
  expect_alive();
}

TEST_F(CorpusTest, Row17MethodsThatAPageDoesNotTake) {
  RawClient client(port);
  const std::vector<std::array<std::string, 3>> rows = {{"GET", "/v1/chat/completions", "POST, OPTIONS"},
                                                        {"post", "/v1/chat/completions", "POST, OPTIONS"},
                                                        {"DELETE", "/v1/models", "GET, HEAD, OPTIONS"},
                                                        {"POST", "/v1/models/x", "GET, HEAD, OPTIONS"},
                                                        {"HEAD", "/tokenize", "POST, OPTIONS"},
                                                        {"PUT", "/ping", "GET, HEAD, POST, OPTIONS"},
                                                        {"POST", "/", "GET, HEAD, OPTIONS"},
                                                        {"options", "/v1/models", "GET, HEAD, OPTIONS"}};
  for (const auto& [method, path, allow] : rows) {
    client.get(path, {}, method);
    const Response response = client.receive(method == "HEAD");
    if (method == "HEAD") {
      EXPECT_EQ(response.status, 405);
    } else {
      expect_error(response, 405, "method_not_allowed");
    }
    EXPECT_EQ(response.header("Allow"), allow);
  }
  EXPECT_EQ(backend.count(), 0u);
}

TEST_F(CorpusTest, Row18PathsThatAreNoPage) {
  RawClient client(port);
  for (const char* path : {"/v1/nope", "/v1//chat/completions", "/v1/%2e%2e/metrics", "/v1\\chat",
                           "/V1/models", "/v1/models/", "/v1/chat/completions/", "/pages/",
                           "/health/../metrics", "/%68ealth", "*", "/docs/", "/pages/../docs"}) {
    client.get(path);
    expect_error(client.receive(), 404,
                 std::string_view(path).starts_with("/v1/") ? "not_offered" : "not_found");
  }
  client.get("/health?verbose=1");
  EXPECT_EQ(client.receive().status, 200);
  client.get("http://localhost/health");
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(CorpusTest, Row19OtherProtocolsOnThePlainPort) {
  refused_and_closed("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request");
  refused_and_closed("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request");
}

TEST_F(CorpusTest, Row12And20BodiesOfAnotherKind) {
  RawClient client(port);
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}");
  expect_error(client.receive(), 415, "unsupported_encoding");
  for (const char* type : {"", "Content-Type: text/plain\r\n", "Content-Type: application/jsonx\r\n",
                           "Content-Type: multipart/form-data; boundary=json\r\n"}) {
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + std::string(type) +
                "Content-Length: 2\r\n\r\n{}");
    expect_error(client.receive(), 415, "unsupported_media_type");
  }
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: Application/JSON; "
      "charset=utf-8\r\n"
      "Content-Length: 45\r\n\r\n" +
      kChat);
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(CorpusTest, Row21BodiesThatAreNotOneJsonText) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("{} x"), std::string("\xEF\xBB\xBF"),
        std::string("{\"a\":}"), std::string("{'a':1}"), std::string("{\"a\":1,}"), std::string("// c\n{}"),
        std::string("{\"a\"\0:1}", 8), std::string("{}\0", 3), std::string("{}\0 x", 5),
        std::string("{\"a\":\"\0\"}", 9)}) {
    refused(body, 400, "invalid_json");
  }
}

TEST_F(CorpusTest, Row22DeepNesting) {
  refused(std::string(100'000, '['), 400, "json_too_deep");
  refused(std::string(100'000, '[') + std::string(100'000, ']'), 400, "json_too_deep");
  refused(R"({"messages":)" + std::string(64, '[') + std::string(64, ']') + "}", 400, "json_too_deep",
          "messages");
}

TEST_F(CorpusTest, Row23ManyElements) {
  std::string body = R"({"messages":[{})";
  for (int i = 0; i < 1'000'000; ++i) body += ",{}";
  refused(body + "]}", 400, "too_many_elements", "messages");
}

TEST_F(CorpusTest, Row24TextThatIsNotUnicode) {
  refused("{\"messages\":[{\"role\":\"user\",\"content\":\"\xC3\x28\"}]}", 400, "invalid_json");
  refused("{\"messages\":[{\"role\":\"user\",\"content\":\"\xE4\xBD\"}]}", 400, "invalid_json");
  refused(R"({"messages":[{"role":"user","content":"\ud800"}]})", 400, "invalid_json");
}

TEST_F(CorpusTest, Row25BodiesThatAreNoObject) {
  for (const char* body : {"[]", "null", "\"x\"", "5", "true"}) refused(body, 400, "invalid_type");
}

TEST_F(CorpusTest, Row26NumbersThatJsonDoesNotKnow) {
  for (const char* number : {"NaN", "1e400", "Infinity", "-Infinity", "01", "1.", ".5", "0x1"}) {
    refused(R"({"temperature":)" + std::string(number) + "}", 400, "invalid_json");
  }
}

TEST_F(CorpusTest, Row27And28UnknownAndRepeatedFields) {
  RawClient client(port);
  client.post("/v1/chat/completions",
              R"({"model":"first","zebra":1,"model":"last","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(backend.call(0).ignored_fields, std::vector<std::string>{"zebra"});
  EXPECT_EQ(std::get<Request>(backend.call(0).body).answer.model, "last");
}

class CorpusLimitsTest : public CorpusTest {
 protected:
  void SetUp() override {
    setup.limits.max_body_bytes = 1000;
    setup.limits.header_timeout_s = 1;
    setup.limits.body_timeout_s = 1;
    setup.limits.idle_timeout_s = 1;
    CorpusTest::SetUp();
  }
};

TEST_F(CorpusLimitsTest, Row11BodyOneByteTooLong) {
  const std::string fill = "{\"messages\":[{\"role\":\"user\",\"content\":\"";
  const std::string exact = fill + std::string(1000 - fill.size() - 4, 'x') + "\"}]}";
  {
    RawClient client(port);
    client.post("/v1/chat/completions", exact);
    EXPECT_EQ(client.receive().status, 200);
  }
  {  // by its length alone: refused before a byte of the body is there
    RawClient client(port);
    client.send(kPost + "Content-Length: 1001\r\n\r\n");
    expect_error(client.receive(), 413, "request_too_large");
    EXPECT_TRUE(client.closed());
  }
  {
    RawClient client(port);
    client.send(kPost + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + exact + " \r\n0\r\n\r\n");
    expect_error(client.receive(), 413, "request_too_large");
    EXPECT_TRUE(client.closed());
  }
  EXPECT_EQ(backend.count(), 1u);
}

TEST_F(CorpusLimitsTest, Row13HeadersThatNeverEnd) {
  RawClient silent(port);
  RawClient slow(port);
  slow.send("GET /health HT");
  const Response response = slow.receive();
  expect_error(response, 408, "request_timeout");
  EXPECT_TRUE(slow.closed());
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(silent.rest().empty());
}

TEST_F(CorpusLimitsTest, Row14SlowBody) {
  RawClient slow(port);
  slow.send(kPost + "Content-Length: 100\r\n\r\n{");
  expect_error(slow.receive(), 408, "request_timeout");
  EXPECT_TRUE(slow.closed());
}

TEST_F(CorpusLimitsTest, ConnectionsWithoutRequestsAreClosed) {
  RawClient client(port);
  client.get("/health");
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_TRUE(client.closed());
}

TEST_F(CorpusLimitsTest, APendingAnswerIsNotATimeout) {
  backend.script = nullptr;
  RawClient client(port);
  client.post("/v1/chat/completions", kChat);
  ASSERT_TRUE(backend.wait_calls(1));
  std::this_thread::sleep_for(milliseconds(1600));
  deliver(backend.call(0).exchange, {.kind = Output::Kind::whole, .body = "{}"});
  EXPECT_EQ(client.receive().status, 200);
}

}  // namespace
}  // namespace troupe::http::test

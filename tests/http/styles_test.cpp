// Routes whose errors have another format than those of OpenAI's chat, at the server.
#include "http/server/server.h"

#include "http/support.h"

namespace troupe::http::test {
namespace {

TEST_F(ServerTest, ALostStreamOfANamedEventEndsWithAnErrorEvent) {
  start();
  const std::pair<const char*, const char*> rows[] = {
      {"/v1/responses", R"({"input":"x","stream":true})"},
      {"/v1/messages", R"({"messages":[{"role":"user","content":"x"}],"max_tokens":5,"stream":true})"}};
  for (std::size_t i = 0; i < 2; ++i) {
    RawClient client(port);
    client.post(rows[i].first, rows[i].second);
    ASSERT_TRUE(backend.wait_calls(i + 1));
    const Call& call = backend.call(i);
    const Api api = std::get<Request>(call.body).api;
    EXPECT_EQ(api, i == 0 ? Api::responses : Api::messages);
    deliver(call.exchange, {.body = "event: e\ndata: 1\n\n"});
    deliver(call.exchange, error_output(call.exchange.id, failure(Code::internal, "lost"), 0, api));
    const Response response = client.receive();
    EXPECT_TRUE(response.complete);
    const std::string expected =
        i == 0 ? "{\"error\":{\"message\":\"lost\"" : R"({"type":"error","error":{"type":"api_error")";
    EXPECT_TRUE(response.body.starts_with("event: e\ndata: 1\n\nevent: error\ndata: " + expected))
        << response.body;
    EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  }
}

TEST_F(ServerTest, ErrorsOfMessagesAreInTheirOwnWords) {
  setup.http.api_keys = {"key"};
  start();
  const auto type_of = [&](const std::string& request_body, const std::string& headers, int status) {
    RawClient client(port);
    client.post("/v1/messages", request_body, headers);
    const Response response = client.receive();
    EXPECT_EQ(response.status, status) << response.body;
    const json body = json::parse(response.body);
    EXPECT_EQ(body["type"], "error");
    EXPECT_FALSE(body["error"]["message"].get<std::string>().empty());
    return body["error"]["type"].get<std::string>();
  };
  const std::string key = "x-api-key: key\r\n";
  EXPECT_EQ(type_of("{}", "", 401), "authentication_error");
  EXPECT_EQ(type_of("{}", key, 400), "invalid_request_error");
  EXPECT_EQ(type_of("{", key, 400), "invalid_request_error");
  backend.state = Health::State::loading;
  EXPECT_EQ(type_of("{}", key, 503), "overloaded_error");
  RawClient client(port);
  client.get("/v1/messages", key);
  const Response response = client.receive();
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.header("Allow"), "POST, OPTIONS");
  EXPECT_EQ(json::parse(response.body)["type"], "error");
  client.get("/v1/responses", key);
  EXPECT_EQ(client.receive().error().at("code"), "method_not_allowed");
}

TEST_F(ServerTest, TheDocumentOfTheRoutesIsServed) {
  start();
  RawClient client(port);
  client.get("/openapi.json");
  const Response response = client.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(json::parse(response.body)["paths"].contains("/v1/responses"));
}

}  // namespace
}  // namespace troupe::http::test

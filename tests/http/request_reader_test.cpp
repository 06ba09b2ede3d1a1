// Requests as bytes: what is read of them, what is refused and why, however the bytes come.
#include "http/server/request_reader.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::http {
namespace {

using Progress = RequestReader::Progress;

struct Read {
  std::string method, target, body, refusal;
  bool keep_alive = false;
  bool complete = false;
};

/// The first request of `bytes`, which come in pieces of this size.
Read read(std::string_view bytes, std::size_t piece, const config::LimitOptions& limits = {}) {
  RequestReader reader(limits);
  Read read;
  bool in_body = false;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string_view more = bytes.substr(at, piece);
    reader.append({more.data(), more.size()});
    for (;;) {
      const Progress progress = in_body ? reader.read_body() : reader.read_head();
      if (progress == Progress::need_more) break;
      if (progress == Progress::refused) {
        read.refusal = reader.refusal().message;
        return read;
      }
      if (in_body) {
        read.body = reader.body();
        read.complete = true;
        return read;
      }
      read.method = reader.head().method;
      read.target = reader.head().target;
      read.keep_alive = reader.facts().keep_alive;
      in_body = true;
    }
  }
  return read;
}

constexpr std::size_t kWhole = 1 << 20;

std::string get(const std::string& lines) { return "GET / HTTP/1.1\r\nHost: x\r\n" + lines + "\r\n"; }
std::string chunked(const std::string& body) { return get("Transfer-Encoding: chunked\r\n") + body; }

void expect_refused(const std::string& bytes, const std::string& why) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, kWhole}) {
    EXPECT_EQ(read(bytes, piece).refusal, why) << bytes.substr(0, 120) << " in pieces of " << piece;
  }
}
void expect_body(const std::string& bytes, const std::string& body) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, kWhole}) {
    const Read got = read(bytes, piece);
    EXPECT_TRUE(got.complete) << bytes << ": " << got.refusal;
    EXPECT_EQ(got.body, body) << bytes << " in pieces of " << piece;
  }
}

TEST(RequestReader, ReadsWhatARequestIsAdmittedBy) {
  const config::LimitOptions limits;
  RequestReader reader(limits);
  const std::string bytes =
      "POST /v1/x?y HTTP/1.1\r\nhOST:  a:1\t\r\nAuthorization: Bearer k\r\nauthorization: Bearer second\r\n"
      "X-Api-Key: x\r\nContent-Type: application/json\r\nIf-None-Match: \"e\"\r\nOrigin: http://o\r\n"
      "Accept-Encoding: br, gzip\r\n"
      "Sec-Fetch-Site: none\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: a, "
      "b\r\n"
      "X-Request-Id: 7\r\nX-Forwarded-For: 1, 2\r\nx-forwarded-for: 3\r\nContent-Encoding: gzip\r\n"
      "Expect: 100-continue\r\nContent-Length: 5\r\nX-Other: \x80 y\r\n\r\nhelloGET";
  reader.append({bytes.data(), bytes.size()});
  ASSERT_EQ(reader.read_head(), Progress::complete);
  const HeadView head = reader.head();
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.target, "/v1/x?y");
  EXPECT_EQ(head.host, "a:1");
  EXPECT_EQ(head.authorization, "Bearer k");
  EXPECT_EQ(head.x_api_key, "x");
  EXPECT_EQ(head.content_type, "application/json");
  EXPECT_EQ(head.if_none_match, "\"e\"");
  EXPECT_EQ(head.accept_encoding, "br, gzip");
  EXPECT_EQ(head.origin, "http://o");
  EXPECT_EQ(head.fetch_site, "none");
  EXPECT_EQ(head.preflight_method, "POST");
  EXPECT_EQ(head.preflight_headers, "a, b");
  EXPECT_EQ(head.request_id, "7");
  EXPECT_TRUE(head.encoded);
  EXPECT_FALSE(head.host_optional);
  EXPECT_EQ(reader.forwarded_for(), "1, 2,3");
  EXPECT_TRUE(reader.facts().expect_continue);
  EXPECT_TRUE(reader.facts().keep_alive);
  EXPECT_EQ(reader.facts().content_length, 5u);
  ASSERT_EQ(reader.read_body(), Progress::complete);
  EXPECT_EQ(reader.body(), "hello");
  EXPECT_EQ(reader.body_received(), 5u);
  EXPECT_EQ(reader.buffered(), 3u);
}

// A view of the request before must not be read through the next head.
TEST(RequestReader, NothingOfARequestIsLeftForTheNext) {
  const config::LimitOptions limits;
  RequestReader reader(limits);
  const std::string bytes =
      get("Authorization: Bearer k\r\nX-Forwarded-For: 1\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
          "Expect: 100-continue\r\nContent-Length: 1\r\n") +
      "z" + get("");
  reader.append({bytes.data(), bytes.size()});
  ASSERT_EQ(reader.read_head(), Progress::complete);
  ASSERT_EQ(reader.read_body(), Progress::complete);
  reader.end_request();
  ASSERT_EQ(reader.read_head(), Progress::complete);
  EXPECT_EQ(reader.head().authorization, "");
  EXPECT_EQ(reader.forwarded_for(), "");
  EXPECT_FALSE(reader.head().encoded);
  EXPECT_FALSE(reader.facts().expect_continue);
  EXPECT_TRUE(reader.facts().keep_alive);
  ASSERT_EQ(reader.read_body(), Progress::complete);
  EXPECT_EQ(reader.body(), "");
  EXPECT_EQ(reader.body_received(), 0u);
}

TEST(RequestReader, RefusesWhatIntermediariesReadInDifferentWays) {
  const std::string malformed = "The head is malformed";
  expect_refused("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", malformed);
  expect_refused("GET  HTTP/1.1\r\nHost: x\r\n\r\n", malformed);
  expect_refused("G(T / HTTP/1.1\r\nHost: x\r\n\r\n", malformed);
  for (const char* version : {"HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1.1x", "HTTP/01.1", ""}) {
    expect_refused("GET / " + std::string(version) + "\r\nHost: x\r\n\r\n", malformed);
  }
  expect_refused(get("Connection: a b\r\n"), malformed);
  expect_refused(get("Proxy-Connection: @\r\n"), malformed);
  expect_refused("GET /\r\nHost: x\r\n\r\n", "The first line is not METHOD TARGET HTTP/1.1");
  expect_refused(get("Host: y\r\n"), "The head must name exactly one Host, it names 2");
  expect_refused("GET / HTTP/1.1\r\n\r\n", "The head must name exactly one Host, it names 0");
  expect_refused(get("A: b\r\n c\r\n"), "A header is folded over two lines");
  expect_refused(get("A : b\r\n"), "A header line has no valid name");
  expect_refused(get("A: b\nC: d\r\n"), "A line ends with a bare LF");
  expect_refused(get("A: b\rC: d\r\n"), "A CR stands alone");
  expect_refused(get(std::string("A: \0b\r\n", 7)), "The head holds a control character");
  expect_refused(get("Transfer-Encoding: gzip, chunked\r\n"),
                 "Transfer codings other than chunked are not implemented");
  expect_refused(get("Transfer-Encoding: gzip\r\n"), "Transfer-Encoding must be chunked");
  expect_refused(get("Content-Length: 1\r\nContent-Length: 1\r\n"),
                 "Content-Length must be given once, as a number of bytes");
  expect_refused(get("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
                 "Transfer-Encoding stands beside Content-Length or in HTTP/1.0");
  // A sentence that says more comes before the one that says least.
  expect_refused("GET / HTTP/2.0\r\n\r\n", "The head must name exactly one Host, it names 0");
}

TEST(RequestReader, KeepsTheConnectionUnlessALineSaysClose) {
  EXPECT_TRUE(read(get(""), kWhole).keep_alive);
  EXPECT_TRUE(read(get("Connection: , keep-alive,\r\n"), kWhole).keep_alive);
  EXPECT_FALSE(read(get("Connection: a, Close\r\n"), kWhole).keep_alive);
  EXPECT_FALSE(read(get("Connection: keep-alive\r\nConnection: close\r\n"), kWhole).keep_alive);
  EXPECT_TRUE(read(get("Proxy-Connection: close\r\n"), kWhole).keep_alive);
  EXPECT_FALSE(read("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", kWhole).keep_alive);
}

TEST(RequestReader, ReadsChunks) {
  expect_body(chunked("0\r\n\r\n"), "");
  expect_body(chunked("5\r\nhello\r\n00A\r\n0123456789\r\n0\r\n\r\n"), "hello0123456789");
}

TEST(RequestReader, ExtensionsAndTrailersAreCheckedAndDropped) {
  expect_body(chunked("3 ; x ;y = \"q\\\";\" ; z=t\r\nabc\r\n0;e\r\nA: b\r\nX-C:\r\n\r\n"), "abc");
  for (const char* body : {"g\r\n",
                           "\r\n",
                           "-1\r\n",
                           "0x1\r\n",
                           "5 \r\nhello\r\n",
                           "5;\r\n",
                           "5;a \r\n",
                           "5;a=\r\n",
                           "5;a=\"b\r\n",
                           "5;a\"b\"\r\n",
                           "5\nhello\r\n",
                           "10000000000000000\r\n",
                           "1\r\nab\r\n",
                           "1\r\na\n",
                           "0\r\nA\r\n\r\n",
                           "0\r\nA : b\r\n\r\n",
                           "0\r\nA: b\r\n c\r\n\r\n",
                           "0\r\nA: \x7f\r\n\r\n",
                           "0\r\nContent-Length: 1\r\n\r\n",
                           "0\r\nTransfer-Encoding: chunked\r\n\r\n",
                           "0\r\nConnection: close\r\n\r\n"}) {
    expect_refused(chunked(body), "The chunks of the body are malformed");
  }
}

TEST(RequestReader, BoundsTheLinesBetweenChunksAndTheData) {
  const std::string too_long = "A chunk header of the body is too long";
  expect_refused(chunked(std::string(ChunkedBody::kMaxLines, '0')), too_long);
  std::string trailers = "0\r\n";
  while (trailers.size() < ChunkedBody::kMaxLines) trailers += "A: 0123456789012345678901234567890\r\n";
  expect_refused(chunked(trailers), too_long);
  std::string many;  // the bound is of what stands between two chunks
  for (int i = 0; i < 3; ++i) many += "1;" + std::string(30 << 10, 'e') + "\r\nx\r\n";
  EXPECT_EQ(read(chunked(many + "0\r\n\r\n"), kWhole).body, "xxx");

  config::LimitOptions limits;
  limits.max_body_bytes = 8;
  for (const std::size_t piece : {std::size_t{1}, kWhole}) {
    EXPECT_EQ(read(chunked("8\r\n01234567\r\n0\r\n\r\n"), piece, limits).body, "01234567");
    EXPECT_EQ(read(chunked("8\r\n01234567\r\n1\r\n8\r\n0\r\n\r\n"), piece, limits).refusal,
              "The body has more than 8 bytes");
    EXPECT_EQ(read(chunked("ffffffffffffffff\r\n012345678"), piece, limits).refusal,
              "The body has more than 8 bytes");
  }
}

}  // namespace
}  // namespace troupe::http

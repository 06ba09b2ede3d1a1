// Fetching a repository from a hub that fails in chosen ways. Its routes are those of Hugging Face.
#include "fetch/pull.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "fetch/web_fixture.h"
#include "support/temp_directory.h"

namespace troupe::fetch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = 10'000;

std::string sha256_of(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PullFrom : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"}) {
      ::unsetenv(name);
    }
    for (std::size_t i = 0; i < 35'000; ++i) weights_ += static_cast<char>(i * 7 + i / 251);
  }

  /// The routes of a hub with a config.json and weights, but what `odd` answers.
  WebFixture::Answer hub(std::function<std::optional<WebReply>(const WebRequest&)> odd = {}) {
    return [this, odd = std::move(odd)](const WebRequest& request) -> WebReply {
      if (odd) {
        if (auto reply = odd(request)) return *std::move(reply);
      }
      if (request.target.starts_with("/api/models/org/tiny/tree/main")) return {.body = listing()};
      if (request.target.ends_with("/config.json")) return {.body = "{}"};
      if (request.target.ends_with("/model.safetensors")) return ranged(request);
      return {.status = 404};
    };
  }

  std::string listing() const {
    const auto file = [](const char* path, const std::string& content) {
      return nlohmann::json{{"type", "file"},
                            {"path", path},
                            {"size", content.size()},
                            {"oid", std::string(40, '0')},
                            {"lfs", {{"oid", sha256_of(content)}, {"size", content.size()}}}};
    };
    return nlohmann::json{file("config.json", "{}"), file("model.safetensors", weights_)}.dump();
  }

  WebReply ranged(const WebRequest& request) const {
    unsigned long begin = 0, last = 0;
    if (std::sscanf(request.header("range").c_str(), "bytes=%lu-%lu", &begin, &last) != 2)
      return {.body = weights_};
    return {.status = 206,
            .body = weights_.substr(begin, last - begin + 1),
            .headers = {"Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(last) + "/" +
                        std::to_string(weights_.size())}};
  }

  Result<Pulled> pull_from(const std::string& endpoint, const std::string& token = {}) {
    auto found = find_hub(ModelSource::huggingface, {{"HF_ENDPOINT", endpoint}, {"HF_TOKEN", token}});
    if (!found.ok()) return found.status();
    auto repository = find_repository(*std::move(found), "org/tiny", "main");
    if (!repository.ok()) return repository.status();
    const PullSettings settings{
        *std::move(repository), folder(), false, {.connections = 1, .piece_bytes = kPieceBytes}};
    return pull(
        settings, [](const Progress&) {}, stop_);
  }

  fs::path folder() const { return home_.path() / "tiny"; }
  std::string fetched(const char* name) const { return content_of(folder() / name); }

  static std::vector<std::string> ranges_of(const std::vector<WebRequest>& asked) {
    std::vector<std::string> ranges;
    for (const WebRequest& request : asked) {
      if (request.target.ends_with("/model.safetensors")) ranges.push_back(request.header("range"));
    }
    return ranges;
  }

  test::TempDirectory home_;
  std::string weights_;
  std::atomic<bool> stop_{false};
};

TEST_F(PullFrom, FilesArriveInPieces) {
  WebFixture web(hub());
  const auto pulled = pull_from(web.url());
  ASSERT_TRUE(pulled.ok()) << pulled.status().message;
  EXPECT_EQ(pulled->files, 2u);
  EXPECT_EQ(pulled->without_sum, 0u);
  EXPECT_EQ(fetched("model.safetensors"), weights_);
  EXPECT_EQ(fetched("config.json"), "{}");
  EXPECT_EQ(ranges_of(web.asked()), (std::vector<std::string>{"bytes=0-9999", "bytes=10000-19999",
                                                              "bytes=20000-29999", "bytes=30000-34999"}));
  EXPECT_FALSE(fs::exists(folder().string() + ".part"));
}

TEST_F(PullFrom, APieceThatWasCutGoesOnWhereItEnded) {
  std::atomic<bool> cut{true};
  WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
    if (request.header("range") != "bytes=10000-19999" || !cut.exchange(false)) return {};
    WebReply reply = ranged(request);
    reply.sent_bytes = 4'000;
    return reply;
  }));
  ASSERT_TRUE(pull_from(web.url()).ok());
  EXPECT_EQ(fetched("model.safetensors"), weights_);
  const auto ranges = ranges_of(web.asked());
  EXPECT_EQ(std::ranges::count(ranges, "bytes=14000-19999"), 1);
  EXPECT_EQ(std::ranges::count(ranges, "bytes=10000-19999"), 1);
}

TEST_F(PullFrom, WhatAnEarlierCallFetchedIsKept) {
  {
    WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
      if (request.header("range") == "bytes=20000-29999") stop_ = true;  // as Ctrl-C does
      return {};
    }));
    const auto stopped = pull_from(web.url());
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.status().code, Code::cancelled);
    EXPECT_FALSE(fs::exists(folder()));
    EXPECT_TRUE(fs::exists(folder().string() + ".part"));
  }
  stop_ = false;
  WebFixture web(hub());
  ASSERT_TRUE(pull_from(web.url()).ok());
  EXPECT_EQ(fetched("model.safetensors"), weights_);
  for (const std::string& range : ranges_of(web.asked())) {
    EXPECT_FALSE(range.starts_with("bytes=0-") || range.starts_with("bytes=10000-")) << range;
  }
}

TEST_F(PullFrom, AHubWithoutRangesIsReadFromTheBeginning) {
  WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
    if (!request.target.ends_with("/model.safetensors")) return {};
    return WebReply{.body = weights_};
  }));
  const auto pulled = pull_from(web.url());
  ASSERT_TRUE(pulled.ok()) << pulled.status().message;
  EXPECT_EQ(fetched("model.safetensors"), weights_);
}

TEST_F(PullFrom, AWrongSumIsFetchedAgainAndThenAnError) {
  std::atomic<int> wrong{1};
  WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
    if (request.header("range") != "bytes=0-9999" || wrong-- <= 0) return {};
    WebReply reply = ranged(request);
    reply.body[5] ^= 1;
    return reply;
  }));
  ASSERT_TRUE(pull_from(web.url()).ok());
  EXPECT_EQ(fetched("model.safetensors"), weights_);
  fs::remove_all(folder());
  wrong = 1000;
  const auto failed = pull_from(web.url());
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message.find("model.safetensors"), std::string::npos) << failed.status().message;
  EXPECT_NE(failed.status().message.find("checksum"), std::string::npos) << failed.status().message;
  EXPECT_FALSE(fs::exists(folder()));
}

TEST_F(PullFrom, RefusalsSayWhatToDo) {
  int status = 401;
  WebFixture web([&](const WebRequest&) { return WebReply{.status = status}; });
  auto pulled = pull_from(web.url());
  EXPECT_EQ(pulled.status().code, Code::unauthorized);
  EXPECT_NE(pulled.status().message.find("a token goes into the variable HF_TOKEN"), std::string::npos);
  pulled = pull_from(web.url(), "hf_secret");
  EXPECT_NE(pulled.status().message.find("the token in HF_TOKEN does not open org/tiny"), std::string::npos);
  EXPECT_EQ(pulled.status().message.find("hf_secret"), std::string::npos);
  status = 404;
  pulled = pull_from(web.url());
  EXPECT_EQ(pulled.status().code, Code::not_found);
  EXPECT_NE(pulled.status().message.find("has no org/tiny at the revision main"), std::string::npos);
}

TEST_F(PullFrom, APageInsteadOfAListOrAFile) {
  bool listing_too = true;
  WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
    if (!listing_too && request.target.starts_with("/api/")) return {};
    return WebReply{.body = "<html>Please log in</html>", .type = "text/html; charset=utf-8"};
  }));
  auto pulled = pull_from(web.url());
  ASSERT_FALSE(pulled.ok());
  EXPECT_NE(pulled.status().message.find("text/html"), std::string::npos);
  EXPECT_NE(pulled.status().message.find("login page"), std::string::npos);
  listing_too = false;
  pulled = pull_from(web.url());
  ASSERT_FALSE(pulled.ok());
  EXPECT_FALSE(fs::exists(folder()));
}

TEST_F(PullFrom, ATokenStaysWithItsHost) {
  WebFixture other(hub());
  WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
    if (request.header("authorization") != "Bearer hf_secret") return WebReply{.status = 401};
    if (!request.target.ends_with("/model.safetensors")) return {};
    return WebReply{.status = 302, .headers = {"Location: " + other.url() + "/model.safetensors"}};
  }));
  const auto pulled = pull_from(web.url(), "hf_secret");
  ASSERT_TRUE(pulled.ok()) << pulled.status().message;
  EXPECT_EQ(fetched("model.safetensors"), weights_);
  ASSERT_EQ(ranges_of(other.asked()).size(), 4u);
  for (const WebRequest& request : other.asked()) EXPECT_EQ(request.header("authorization"), "");
}

TEST_F(PullFrom, ARedirectWithinTheHostKeepsTheToken) {
  WebFixture web(hub([&](const WebRequest& request) -> std::optional<WebReply> {
    if (request.header("authorization") != "Bearer hf_secret") return WebReply{.status = 401};
    if (!request.target.starts_with("/org/tiny/resolve/") || !request.target.ends_with("/model.safetensors"))
      return {};
    return WebReply{.status = 307, .headers = {"Location: /cdn/model.safetensors"}};
  }));
  const auto pulled = pull_from(web.url(), "hf_secret");
  ASSERT_TRUE(pulled.ok()) << pulled.status().message;
  EXPECT_EQ(fetched("model.safetensors"), weights_);
}

TEST_F(PullFrom, ADiskWithoutRoomIsNamedAndTheRestIsKept) {
  WebFixture web(hub());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{15'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto failed = pull_from(web.url());
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message.find("model.safetensors"), std::string::npos) << failed.status().message;
  EXPECT_NE(failed.status().message.find("File too large"), std::string::npos) << failed.status().message;
  ASSERT_TRUE(pull_from(web.url()).ok()) << "with room it goes on";
  EXPECT_EQ(fetched("model.safetensors"), weights_);
}

/// Sets a variable for the time of a test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST_F(PullFrom, AProxyIsAskedForOtherHosts) {
  const std::string hub_url = "http://hub.invalid";  // only the proxy knows it
  const auto answer = hub();
  WebFixture proxy([&](WebRequest request) {
    EXPECT_TRUE(request.target.starts_with(hub_url + "/")) << request.target;
    request.target.erase(0, hub_url.size());
    return answer(request);
  });
  const Variable no_proxy("no_proxy", "127.0.0.1"), http_proxy("http_proxy", proxy.url());
  const auto pulled = pull_from(hub_url);
  ASSERT_TRUE(pulled.ok()) << pulled.status().message;
  EXPECT_EQ(fetched("model.safetensors"), weights_);
  const std::size_t asked = proxy.asked().size();
  fs::remove_all(folder());
  WebFixture direct(answer);
  ASSERT_TRUE(pull_from(direct.url()).ok());
  EXPECT_EQ(proxy.asked().size(), asked) << "no_proxy names the host";
}

TEST_F(PullFrom, ATokenGoesThroughAProxyInATunnelOnly) {
  WebFixture proxy([](const WebRequest&) { return WebReply{.status = 403}; });
  const Variable https_proxy("https_proxy", proxy.url());
  const auto pulled = pull_from("https://hub.invalid", "hf_secret");
  ASSERT_FALSE(pulled.ok());
  EXPECT_NE(pulled.status().message.find("403"), std::string::npos) << pulled.status().message;
  ASSERT_FALSE(proxy.asked().empty());
  for (const WebRequest& request : proxy.asked()) {
    EXPECT_EQ(request.method + " " + request.target, "CONNECT hub.invalid:443");
    EXPECT_EQ(request.header("authorization"), "");
  }
  EXPECT_EQ(pull_from("http://hub.invalid", "hf_secret").status().code, Code::invalid_argument);
}

}  // namespace
}  // namespace troupe::fetch

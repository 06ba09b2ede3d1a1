// Files by URL as a request gets them: through a process of their own, or from the allowed directory.
#include "actors/media/url_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fetch/web_fixture.h"
#include "ipc/memory_file.h"
#include "support/temp_directory.h"

namespace troupe {
namespace {

const std::atomic<bool> kPatient{false};

UrlSetup setup() { return {.executable = TROUPE_FETCH_CHILD, .hosts = {"127.0.0.1"}, .bytes = 1000}; }

std::string text_of(const ipc::Fd& file) {
  const auto mapped = ipc::map_constant_file(file.get());
  EXPECT_TRUE(mapped.ok());
  return mapped.ok() ? std::string(reinterpret_cast<const char*>(mapped->bytes.data()), mapped->bytes.size())
                     : "";
}

TEST(Url, IsFetchedIntoMemoryThatNobodyChanges) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = "bytes"}; });
  const auto file = fetch_url(setup(), web.url() + "/a.png", kPatient);
  ASSERT_TRUE(file.ok()) << file.status().message;
  EXPECT_EQ(text_of(*file), "bytes");
  EXPECT_LT(pwrite(file->get(), "x", 1, 0), 0);
}

TEST(Url, SaysWhatTheProcessSays) {
  WebFixture web([](const WebRequest&) { return WebReply{.status = 404}; });
  const Status status = fetch_url(setup(), web.url() + "/a.png", kPatient).status();
  EXPECT_EQ(status.reason, "url_failed");
  EXPECT_NE(status.message.find("404"), std::string::npos);
}

TEST(Url, NothingIsFetchedWithoutAllowedHosts) {
  UrlSetup none = setup();
  none.hosts.clear();
  const Status status = fetch_url(none, "http://127.0.0.1/", kPatient).status();
  EXPECT_EQ(status.reason, "url_not_allowed");
  EXPECT_NE(status.message.find("--allowed-media-domains"), std::string::npos);
}

TEST(Url, ALineBreakAddsNoHost) {
  EXPECT_EQ(fetch_url(setup(), "http://localhost/\nlocalhost", kPatient).status().reason, "url_not_allowed");
  EXPECT_EQ(fetch_url(setup(), "http://localhost/" + std::string(9000, 'x'), kPatient).status().reason,
            "url_not_allowed");
}

TEST(Url, AFileThatIsTooLarge) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = std::string(1001, 'x')}; });
  EXPECT_EQ(fetch_url(setup(), web.url() + "/a", kPatient).status().reason, "url_failed");
}

TEST(Url, FilesOnTheirWayShareTheirMemory) {
  WebFixture web([](const WebRequest&) { return WebReply{.body = std::string(600, 'x')}; });
  UrlSetup bounded = setup();
  bounded.memory = std::make_shared<UrlMemory>();
  bounded.memory->most = 700;
  EXPECT_TRUE(fetch_url(bounded, web.url() + "/a", kPatient).ok());
  EXPECT_EQ(bounded.memory->used, 0u);
  bounded.memory->used = 200;  // of another
  const Status status = fetch_url(bounded, web.url() + "/a", kPatient).status();
  EXPECT_EQ(status.code, Code::overloaded);
  EXPECT_EQ(status.reason, "media_memory_full");
  EXPECT_EQ(bounded.memory->used, 200u);
}

class LocalFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root() / "deep");
    std::ofstream(root() / "a.png") << "a";
    std::ofstream(root() / "deep/b.png") << "b";
    std::ofstream(root() / "deep/with aä.png") << "blank";
    std::ofstream(root() / "large") << std::string(1001, 'x');
    std::ofstream(outside_.path() / "secret") << "secret";
    std::filesystem::create_symlink(outside_.path() / "secret", root() / "link");
    std::filesystem::create_symlink(outside_.path(), root() / "way");
    setup_.directory = root();
  }
  std::filesystem::path root() const { return inside_.path(); }
  Result<ipc::Fd> read(const std::string& path) { return fetch_url(setup_, "file://" + path, kPatient); }

  test::TempDirectory inside_, outside_;
  UrlSetup setup_ = setup();
};

TEST_F(LocalFiles, OfTheDirectoryAreRead) {
  EXPECT_EQ(text_of(*read(root() / "a.png")), "a");
  EXPECT_EQ(text_of(*read(root() / "deep/b.png")), "b");
  EXPECT_EQ(text_of(*read(root() / "deep/../a.png")), "a");
  EXPECT_EQ(text_of(*read(root() / "deep/with%20a%C3%A4.png")), "blank") << "as URLs spell it";
}

TEST_F(LocalFiles, NothingElseIs) {
  const std::string base = root();
  for (const std::string& path :
       {std::string("/etc/passwd"), base + "/link", base + "/way/secret",
        base + "/../" + outside_.path().filename().string() + "/secret", base, base + "/", base + "x",
        base + "/deep", base + "/absent", base + "/a.png%00", base + "/a.png%", base + "/a.pn%6",
        base + "/%2e%2e/" + outside_.path().filename().string() + "/secret", base + "/%2fetc/passwd",
        std::string("a.png"), std::string()}) {
    EXPECT_EQ(read(path).status().reason, "url_not_allowed") << path;
  }
  EXPECT_EQ(read(base + "/large").status().reason, "url_failed");
  setup_.directory.clear();
  EXPECT_NE(read(base + "/a.png").status().message.find("--allowed-media-path"), std::string::npos);
}

}  // namespace
}  // namespace troupe

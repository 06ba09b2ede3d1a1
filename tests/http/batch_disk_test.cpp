// What batches come to on a disk that is full or broken when they end.
#include <sys/resource.h>

#include <csignal>

#include "http/batch_fixture.h"

namespace troupe::http {
namespace {

using test::BatchServiceTest;
using test::Resource;
using test::Verb;

/// No file of this process grows beyond so many bytes: writes fail as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &limit_before_);
    const rlimit small{bytes, limit_before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &limit_before_);
    std::signal(SIGXFSZ, handler_before_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_before_)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit_before_{};
};

class BatchDisk : public BatchServiceTest {
 protected:
  /// Every file that a batch names can be read.
  void expect_files_are_there(const Json& batch) {
    for (const char* name : {"output_file_id", "error_file_id"}) {
      const std::string id = text(batch, name);
      if (id.empty()) continue;
      EXPECT_GT(lines(content(id)), 0u) << name << " of " << json::to_text(batch);
    }
  }
};

TEST_F(BatchDisk, ResultsThatDoNotFitAreNotCounted) {
  const std::string id = text(create(file(2)), "id");
  const std::string results = results_of(id);
  reply(engine_.next());
  while (std::filesystem::file_size(file_path(results)) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Call last = engine_.next();
  Json ended;
  {
    const FullDisk disk(4000);
    reply(last, 200, "\"" + std::string(5000, 'x') + "\"");
    ended = wait_for(id, "failed");
  }
  EXPECT_NE(error_of(ended).find("storage: results cannot be written: File too large"), std::string::npos)
      << error_of(ended);
  EXPECT_EQ(text(ended, "output_file_id"), results);
  EXPECT_EQ(lines(content(results)), 1u);
  EXPECT_EQ(count(ended, "completed"), 1) << "as many as the file has";
}

TEST_F(BatchDisk, AFileThatCannotBeShownIsNotNamed) {
  const std::string id = text(create(file(2)), "id");
  const std::string results = results_of(id);
  const std::string in_the_way = file_path(results) + ".json.new";
  ASSERT_TRUE(std::filesystem::create_directory(in_the_way));
  reply(engine_.next());
  reply(engine_.next(), 400);
  const Json ended = wait_for(id, "failed");
  expect_files_are_there(ended);
  EXPECT_EQ(text(ended, "output_file_id"), "");
  EXPECT_NE(text(ended, "error_file_id"), "");
  EXPECT_NE(error_of(ended).find("storage: "), std::string::npos) << error_of(ended);
  EXPECT_NE(error_of(ended).find("cannot be written"), std::string::npos) << error_of(ended);
  std::filesystem::remove(in_the_way);
  open();
  const Json mended = wait_for(id, "completed");
  EXPECT_EQ(text(mended, "output_file_id"), results) << "the next server shows it";
  expect_files_are_there(mended);
  EXPECT_EQ(error_of(mended), "");
  EXPECT_EQ(engine_.waiting(), 0u) << "nothing is asked again";
}

TEST_F(BatchDisk, AFileThatHasGoneIsNotNamed) {
  const std::string id = text(create(file(2)), "id");
  reply(engine_.next());
  wait_completed(id, 1);
  std::filesystem::remove(file_path(results_of(id)));
  reply(engine_.next());
  const Json ended = wait_for(id, "failed");
  expect_files_are_there(ended);
  EXPECT_EQ(text(ended, "output_file_id"), "");
  EXPECT_NE(error_of(ended).find("storage: "), std::string::npos) << error_of(ended);
}

TEST_F(BatchDisk, ABatchEndsAlsoWhenItsLastStateCannotBeKept) {
  const std::string id = text(create(file(1)), "id");
  wait_for(id, "in_progress");
  const Call only = engine_.next();
  const std::string in_the_way = record_path(id) + ".new";
  ASSERT_TRUE(std::filesystem::create_directory(in_the_way));
  reply(only);
  const Json ended = wait_for(id, "completed");
  EXPECT_NE(text(ended, "output_file_id"), "");
  expect_files_are_there(ended);
  EXPECT_NE(error_of(ended).find("storage: "), std::string::npos) << error_of(ended);
  std::filesystem::remove(in_the_way);
  open();
  const Json again = wait_for(id, "completed");
  EXPECT_EQ(error_of(again), "");
  expect_files_are_there(again);
  EXPECT_EQ(engine_.waiting(), 0u) << "nothing is asked again";
}

TEST_F(BatchDisk, OnAFullDiskACancelledBatchEndsWithoutFilesAndTheNextServerShowsThem) {
  const std::string id = text(create(file(3)), "id");
  const std::string results = results_of(id);
  reply(engine_.next());
  while (std::filesystem::file_size(file_path(results)) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Json ended;
  {
    const FullDisk disk(20);
    object({.resource = Resource::cancel, .verb = Verb::post, .id = id});
    ended = wait_for(id, "failed");
    service_->stop();
  }
  EXPECT_EQ(text(ended, "output_file_id"), "");
  EXPECT_EQ(text(ended, "error_file_id"), "");
  EXPECT_NE(error_of(ended).find("File too large"), std::string::npos) << error_of(ended);
  open();
  object({.resource = Resource::cancel, .verb = Verb::post, .id = id});
  ended = wait_for(id, "cancelled");
  EXPECT_EQ(text(ended, "output_file_id"), results);
  EXPECT_EQ(lines(content(results)), 1u);
  EXPECT_EQ(error_of(ended), "");
}

}  // namespace
}  // namespace troupe::http

// Batches beyond those whose files may be open: they wait for their turn, and may end before it.
#include "http/batch_fixture.h"

namespace troupe::http {
namespace {

using test::BatchServiceTest;
using test::Resource;
using test::Verb;

constexpr int kMostOpen = 32;

class BatchTurns : public BatchServiceTest {
 protected:
  /// The id of a batch of three requests with one result, which waits when the server has begun again: so
  /// many older ones are open. Its `record` is changed in between.
  std::string waiting_with_a_result(const std::function<void(Json& record)>& change = [](Json&) {}) {
    now_s_ += 1000;
    const std::string id = text(create(file(3)), "id");
    reply(engine_.next());
    wait_completed(id, 1);
    now_s_ -= 1000;  // a clock that was set back makes those older that come now
    const std::string input = file(1);
    std::string last;
    for (int i = 0; i < kMostOpen; ++i) last = text(create(input), "id");
    wait_for(last, "in_progress");
    edit_record(id, change);
    open();
    return id;
  }
  bool has_open_results(const std::string& id) const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry, gone) == file_path(results_of(id))) return true;
    }
    return false;
  }
};

TEST_F(BatchTurns, OneThatWaitsCountsTheResultsOnTheDisk) {
  const std::string id = waiting_with_a_result([](Json& record) {  // as a death leaves it: counts are kept
    record["request_counts"]["completed"] = 0;                     // once a second
  });
  wait_completed(id, 1);
  EXPECT_FALSE(has_open_results(id));
  const Json list = object({.resource = Resource::batches, .verb = Verb::get, .limit = "1"});
  const Json& newest = json::items(*json::member(list, "data"))[0];
  EXPECT_EQ(text(newest, "id"), id);
  EXPECT_EQ(count(newest, "completed"), 1);
  EXPECT_EQ(text(newest, "status"), "in_progress");
}

TEST_F(BatchTurns, OneThatWaitsIsCancelledWithItsResults) {
  const std::string id = waiting_with_a_result();
  EXPECT_EQ(text(batch(id), "status"), "in_progress");
  EXPECT_FALSE(has_open_results(id));
  object({.resource = Resource::cancel, .verb = Verb::post, .id = id});
  const Json ended = wait_for(id, "cancelled");
  EXPECT_EQ(count(ended, "completed"), 1);
  EXPECT_EQ(lines(content(text(ended, "output_file_id"))), 1u);
  EXPECT_EQ(text(ended, "error_file_id"), "");
}

TEST_F(BatchTurns, ACancellationThatARestartInterruptsNeedsNoTurn) {
  const std::string id = waiting_with_a_result([](Json& record) { record["status"] = "cancelling"; });
  const Json ended = wait_for(id, "cancelled");
  EXPECT_EQ(count(ended, "completed"), 1);
  EXPECT_EQ(lines(content(text(ended, "output_file_id"))), 1u);
}

TEST_F(BatchTurns, OneThatWaitsExpiresAtItsTimeWithItsResults) {
  const std::string id =
      waiting_with_a_result([&](Json& record) { record["expires_at"] = now_s_.load() + 500; });
  EXPECT_EQ(text(batch(id), "status"), "in_progress");
  now_s_ += 500;
  const Json ended = wait_for(id, "expired");
  EXPECT_EQ(count(ended, "completed"), 1);
  EXPECT_EQ(count(ended, "failed"), 2);
  EXPECT_EQ(lines(content(text(ended, "output_file_id"))), 1u);
  EXPECT_EQ(lines(content(text(ended, "error_file_id"))), 2u);
  EXPECT_FALSE(has_open_results(id));
}

TEST_F(BatchTurns, OneThatHasNeverHadATurnExpiresAtItsTime) {
  const std::string input = file(2);
  now_s_ += 1000;
  for (int i = 0; i < kMostOpen; ++i) create(input);
  now_s_ -= 1000;
  const std::string id = text(create(input), "id");
  wait_for(id, "in_progress");
  now_s_ += 24 * 3600;
  const Json ended = wait_for(id, "expired");
  EXPECT_EQ(count(ended, "failed"), 2);
  EXPECT_EQ(lines(content(text(ended, "error_file_id"))), 2u);
}

}  // namespace
}  // namespace troupe::http

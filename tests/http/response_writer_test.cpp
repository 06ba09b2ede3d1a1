// The bytes of answers, one behind the other.
#include "http/server/response_writer.h"

#include <gtest/gtest.h>

namespace troupe::http {
namespace {

ResponseHead some_head() { return {.status = 200, .request_id = "r", .date = "now", .chunked = true}; }

/// A stream of several segments of which nothing is sent.
void append_stream(ResponseWriter& writer) {
  writer.begin_answer();
  writer.begin_stream(some_head(), {});
  for (int i = 0; i < 100; ++i) writer.append_events("data: " + std::string(4 << 10, 'x') + "\n\n");
}

TEST(ResponseWriter, CutsTheStreamThatIsUnderWay) {
  ResponseWriter writer;
  append_stream(writer);
  const std::size_t before = writer.unsent();
  EXPECT_TRUE(writer.cut_stream("data: cut\n\n"));
  EXPECT_LT(writer.unsent(), before / 2);
}

// The answer to a head that could not be read comes without begin_answer().
TEST(ResponseWriter, AStreamBehindWhichAnotherAnswerStandsIsNotCut) {
  ResponseWriter writer;
  append_stream(writer);
  writer.end_stream();
  writer.append_whole(some_head(), {.kind = Output::Kind::whole, .status = 400, .body = "{}"}, false);
  const std::size_t before = writer.unsent();
  EXPECT_FALSE(writer.cut_stream("data: cut\n\n"));
  EXPECT_EQ(writer.unsent(), before);
}

}  // namespace
}  // namespace troupe::http

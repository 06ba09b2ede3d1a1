// Messages as bytes: what would cross to another process.
#include <gtest/gtest.h>

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>

#include "actors/protocol.h"
#include "support/actor_world.h"

namespace troupe {
namespace {

class MessagesTest : public testing::ActorWorld {};

TEST_F(MessagesTest, AConversationKeepsItsValuesAndTheOrderOfItsKeys) {
  Encode job;
  job.request_id = "r";
  auto messages = http::parse_json(R"([{"role":"user","content":"é","b":1,"a":[2.5,null,true]}])", {8, 100});
  ASSERT_TRUE(messages.ok());
  job.source.conversation.messages = *std::move(messages);
  job.source.conversation.without_template = true;

  std::vector<char> bytes;
  caf::binary_serializer sink(system_, bytes);
  ASSERT_FALSE(sink(job));
  Encode read;
  caf::binary_deserializer source(system_, bytes);
  ASSERT_FALSE(source(read));
  EXPECT_EQ(read.request_id, "r");
  EXPECT_EQ(http::to_text(read.source.conversation.messages), http::to_text(job.source.conversation.messages));
  EXPECT_TRUE(read.source.conversation.tools.is_null());
  EXPECT_TRUE(read.source.conversation.without_template);
}

}  // namespace
}  // namespace troupe

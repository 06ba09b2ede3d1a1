#include "model/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "model/support/files.h"

namespace troupe::model {
namespace {

using test::raw_safetensors;
using test::TempDirectory;
using test::write_safetensors;
using test::write_text;

class CheckpointFile : public ::testing::Test {
 protected:
  Status open(const std::string& bytes) {
    write_text(directory_.path() / "model.safetensors", bytes);
    return Checkpoint::open(directory_.path()).status();
  }
  // Expects a refusal whose sentence names the file and holds `part`.
  void refused(const std::string& bytes, const std::string& part) {
    const Status status = open(bytes);
    ASSERT_FALSE(status.ok()) << part;
    EXPECT_NE(status.message.find("model.safetensors"), std::string::npos) << status.message;
    EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  }
  void header_refused(const std::string& header, const std::string& part, std::size_t data_bytes = 8) {
    refused(raw_safetensors(header, std::string(data_bytes, 'x')), part);
  }

  TempDirectory directory_;
};

TEST_F(CheckpointFile, ReadsTensors) {
  ASSERT_TRUE(open(raw_safetensors(R"({"__metadata__":{"format":"pt"},)"
                                   R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
                                   R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})",
                                   "abcdefgh"))
                  .ok());
  const auto checkpoint = Checkpoint::open(directory_.path());
  const FileTensor* b = checkpoint->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, FileType::bf16);
  EXPECT_EQ(b->shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(std::memcmp(read_tensor(*b)->data(), "efgh", 4), 0);
  EXPECT_EQ(checkpoint->find("a")->bytes, 4u);
  EXPECT_EQ(checkpoint->find("c"), nullptr);
  EXPECT_EQ(checkpoint->data_bytes(), 8u);
}

TEST_F(CheckpointFile, AcceptsScalarsAndEmptyTensors) {
  EXPECT_TRUE(open(raw_safetensors(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                                   R"("e":{"dtype":"I64","shape":[0,5],"data_offsets":[8,8]}})",
                                   "abcdefgh"))
                  .ok());
}

TEST_F(CheckpointFile, RefusesTruncatedFiles) {
  refused("", "empty");
  refused("abc", "truncated");
  refused(raw_safetensors("{}", "").substr(0, 9), "truncated");
  header_refused(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "truncated");
}

TEST_F(CheckpointFile, RefusesImpossibleHeaderLengths) {
  std::string bytes = raw_safetensors("{}", "");
  for (const std::uint64_t length : {std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    std::memcpy(bytes.data(), &length, 8);
    refused(bytes, "length");
  }
}

TEST_F(CheckpointFile, RefusesOffsetsThatDoNotFit) {
  // overlapping, with a gap, not from the start, not to the end, backwards, beyond 64 bits
  header_refused(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[6],"data_offsets":[2,8]}})",
      "begins at byte");
  header_refused(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      "begins at byte");
  header_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "begins at byte");
  header_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "4 bytes of data");
  header_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[8,4]}})", "cannot lie");
  header_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,99999999999999999999]}})", "fraction");
  header_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,8]}})", "cannot lie");
}

TEST_F(CheckpointFile, RefusesShapesWhoseProductOverflows) {
  // 2^32 * 2^32 = 2^64 wraps to 0; 2^62 * 4 bytes likewise; 2^61 * 4 + 2 would wrap to 8
  header_refused(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                 "cannot lie");
  header_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", "cannot lie");
  header_refused(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]}})", "dimension");
  header_refused(R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})", "negative");
  header_refused(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})", "dimensions");
}

TEST_F(CheckpointFile, RefusesHeadersOfAnotherShape) {
  header_refused(R"({"a":{"dtype":"Q4","shape":[8],"data_offsets":[0,8]}})", "dtype 'Q4'");
  header_refused(R"({"a":{"dtype":"U8","shape":[8]}})", "without");
  header_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "twice");
  header_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})", "unknown key");
  header_refused(R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", "number");
  header_refused(R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", "array");
  header_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,4,8]}})", "two numbers");
  header_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})", "two numbers");
  header_refused(R"({"a":5})", "number");
  header_refused(R"([])", "array");
  header_refused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})", "JSON");
  header_refused("", "JSON");
  header_refused(R"({"":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "name");
  header_refused(
      R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
      "twice");
  header_refused(std::string(1'000'000, '['), "array");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  header_refused(nested, "unknown key");
}

TEST_F(CheckpointFile, RefusesTooManyTensors) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    if (i > 0) header += ",";
    header += "\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  header_refused(header + "}", "65536 tensors", 0);
}

TEST_F(CheckpointFile, MissingFilesAreNamed) {
  const Status empty = Checkpoint::open(directory_.path()).status();
  EXPECT_EQ(empty.code, Code::not_found);
  EXPECT_NE(empty.message.find("model.safetensors"), std::string::npos);
  std::filesystem::create_directory(directory_.path() / "model.safetensors");
  EXPECT_FALSE(Checkpoint::open(directory_.path()).ok());
}

class ShardedCheckpoint : public ::testing::Test {
 protected:
  ShardedCheckpoint() {
    write_safetensors(directory_.path() / "one.safetensors", {{"a", "U8", {3}, "abc"}});
    write_safetensors(directory_.path() / "two.safetensors", {{"b", "U8", {2}, "de"}});
  }
  Result<Checkpoint> open(const std::string& index) {
    write_text(directory_.path() / "model.safetensors.index.json", index);
    return Checkpoint::open(directory_.path());
  }
  void refused(const std::string& index, const std::string& part) {
    const Status status = open(index).status();
    ASSERT_FALSE(status.ok()) << index;
    EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  }
  TempDirectory directory_;
};

TEST_F(ShardedCheckpoint, JoinsItsShards) {
  const auto checkpoint =
      open(R"({"metadata":{"total_size":5},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  EXPECT_EQ(std::memcmp(read_tensor(*checkpoint->find("a"))->data(), "abc", 3), 0);
  EXPECT_EQ(std::memcmp(read_tensor(*checkpoint->find("b"))->data(), "de", 2), 0);
}

TEST_F(ShardedCheckpoint, NamesTheMissingShard) {
  refused(R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})", "three.safetensors");
}

TEST_F(ShardedCheckpoint, NamesTheMissingTensor) {
  refused(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})", "'c'");
}

TEST_F(ShardedCheckpoint, LeavesItsDirectoryForNobody) {
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "", "a\\\\b"}) {
    refused(R"({"weight_map":{"a":")" + std::string(name) + R"("}})", "plain file name");
  }
  refused(R"({"weight_map":{"a":"one\u0000.safetensors"}})", "plain file name");
  refused(R"({"weight_map":{"a":5}})", "plain file name");
}

TEST_F(ShardedCheckpoint, RefusesTheSameTensorTwice) {
  write_safetensors(directory_.path() / "two.safetensors", {{"a", "U8", {2}, "de"}});
  refused(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})", "'a'");
}

TEST_F(ShardedCheckpoint, RefusesAnIndexOfAnotherShape) {
  refused("", "empty");
  refused("{", "JSON");
  refused("{}", "weight_map");
  refused(R"({"weight_map":[]})", "weight_map");
  refused(R"({"weight_map":{}})", "weight_map");
}

TEST_F(ShardedCheckpoint, ATruncatedShardIsNamed) {
  const std::string bytes = test::read_text(directory_.path() / "two.safetensors");
  write_text(directory_.path() / "two.safetensors", bytes.substr(0, bytes.size() - 1));
  refused(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})", "two.safetensors is truncated");
}

}  // namespace
}  // namespace troupe::model

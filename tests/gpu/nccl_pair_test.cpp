// What a pair asks of NCCL, and what it makes of the answers: with functions of the test's own.
#include "gpu/nccl_pair.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "gpu/cuda.h"

namespace troupe {
namespace {

/// What the functions of the table answer and have seen.
struct Script {
  int init = kNcclInProgress, call = kNcclInProgress, state = kNcclInProgress;
  NcclConfig config;
  int rank = -1, peer = -1, type = -1, aborts = 0;
  std::size_t bytes = 0;
  char id = 0;
};
Script script;
int communicator;

NcclFunctions table() {
  NcclFunctions nccl;
  nccl.version = 22809;
  nccl.ncclCommInitRankConfig = [](NcclCommunicator* made, int ranks, NcclUniqueId id, int rank,
                                   NcclConfig* config) {
    EXPECT_EQ(ranks, 2);
    script.rank = rank;
    script.config = *config;
    script.id = id.bytes[100];
    if (script.init == kNcclSuccess || script.init == kNcclInProgress) *made = &communicator;
    return script.init;
  };
  nccl.ncclCommGetAsyncError = [](NcclCommunicator of, int* state) {
    EXPECT_EQ(of, &communicator);
    *state = script.state;
    return kNcclSuccess;
  };
  nccl.ncclCommAbort = [](NcclCommunicator of) {
    EXPECT_EQ(of, &communicator);
    ++script.aborts;
    return kNcclSuccess;
  };
  nccl.ncclSend = [](const void*, std::size_t bytes, int type, int peer, NcclCommunicator, CUstream_st*) {
    script.bytes = bytes, script.type = type, script.peer = peer;
    return script.call;
  };
  nccl.ncclRecv = [](void*, std::size_t bytes, int type, int peer, NcclCommunicator, CUstream_st*) {
    script.bytes = bytes, script.type = type, script.peer = peer;
    return script.call;
  };
  nccl.ncclGetErrorString = [](int result) { return result == 6 ? "remote error" : "another error"; };
  nccl.ncclGetLastError = [](NcclCommunicator) { return "the peer has closed"; };
  return nccl;
}

class NcclPairTest : public ::testing::Test {
 protected:
  NcclPairTest() { script = {}; }
  static NcclId id() {
    NcclId id{};
    id[100] = std::byte{42};
    return id;
  }
  const NcclFunctions nccl_ = table();
};

TEST_F(NcclPairTest, NothingWaitsAndWhatIsUnderWayIsAborted) {
  {
    NcclPair pair(nccl_, id(), 1);
    EXPECT_EQ(script.rank, 1);
    EXPECT_EQ(script.id, 42);
    EXPECT_EQ(script.config.blocking, 0);
    EXPECT_EQ(script.config.size, 48u) << "of ncclConfig_t of 2.18";
    EXPECT_EQ(script.config.magic, 0xcafebeefu);
    EXPECT_LE(script.config.max_ctas, 4);
    EXPECT_FALSE(pair.settled());
    script.state = kNcclSuccess;
    EXPECT_TRUE(pair.settled());
    script.state = kNcclInProgress;
    pair.receive(nullptr, 5000, nullptr);
    EXPECT_EQ(script.peer, 0);
    EXPECT_EQ(script.bytes, 5000u);
    EXPECT_EQ(script.type, kNcclUint8);
    EXPECT_FALSE(pair.settled());
    EXPECT_EQ(script.aborts, 0);
  }
  EXPECT_EQ(script.aborts, 1);
}

TEST_F(NcclPairTest, TheOtherRankIsNamed) {
  NcclPair pair(nccl_, id(), 0);
  pair.send(nullptr, 7, nullptr);
  EXPECT_EQ(script.peer, 1);
  script.call = kNcclSuccess;
  pair.send(nullptr, 7, nullptr);
}

TEST_F(NcclPairTest, AnErrorIsASentence) {
  NcclPair pair(nccl_, id(), 0);
  script.state = 6;
  try {
    (void)pair.settled();
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_EQ(std::string(error.what()), "NCCL: remote error (the peer has closed)");
  }
  script.call = 5;
  EXPECT_THROW(pair.send(nullptr, 7, nullptr), CudaError);
}

TEST_F(NcclPairTest, ASearchThatCannotBeginLeavesNothingToAbort) {
  script.init = 4;
  EXPECT_THROW(NcclPair(nccl_, id(), 0), CudaError);
  EXPECT_EQ(script.aborts, 0);
}

TEST(NcclLibrary, OneThatIsNotThereIsAClause) {
  const auto opened = open_nccl("libno_such_nccl.so.2");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code, Code::unavailable);
  EXPECT_EQ(opened.status().message.find("libno_such_nccl.so.2 cannot be opened ("), 0u);
}

}  // namespace
}  // namespace troupe

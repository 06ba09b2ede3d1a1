// Masks of gated rows: which are accepted, and the bits that come of them.
#include "model/step_gates.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "kernels/sample.h"
#include "model/support/plans.h"

namespace troupe::model {
namespace {

using test::Masks;
using test::Plans;
using wire::MaskForm;
using MaskWords = std::vector<std::uint32_t>;

constexpr SlotRef kGateFirst{0, 3}, kGateSecond{2, 1}, kGateFree{1, 1};
constexpr int kGateVocab = 70;

wire::Capacity gates_capacity() {
  wire::Capacity made;
  made.max_slots = 4;
  made.vocab_size = kGateVocab;
  made.max_steps_in_flight = 2;
  return made;
}

class StepGatesTest : public ::testing::Test {
 protected:
  /// A plan with two gated rows and a free one between them.
  void open() {
    plans.gated_row(kGateFirst, 0, 1).row(kGateFree, 0, 1, true).gated_row(kGateSecond, 0, 1);
    const wire::RecordView view = plans.plan();
    gates->open(view, *view.as<wire::StepPlan>());
  }
  /// A plan with a gated row of so many draft tokens and another gated row.
  void open_with_drafts(std::int32_t drafts) {
    wire::Capacity capacity = gates_capacity();
    capacity.max_drafts = capacity.max_proposed = drafts;
    capacity.max_sampled = 8;
    gates.emplace(capacity);
    plans.row_from_last(kGateFirst, 9, 1 + drafts, wire::kGated).gated_row(kGateSecond, 0, 1);
    const wire::RecordView view = plans.plan();
    gates->open(view, *view.as<wire::StepPlan>());
  }
  /// The masks of step 1 are refused for this reason.
  void refused(const std::string& what) {
    const Status status = take(1);
    EXPECT_NE(status.message.find(what), std::string::npos) << status.message;
  }
  Status take(std::uint64_t step) {
    const wire::RecordView view = masks.masks(step);
    return gates->take(view, *view.as<wire::StepMasks>());
  }
  MaskWords bits(std::uint64_t step, SlotRef slot) const {
    const std::uint32_t* mask = gates->mask(step, slot == kGateFirst ? 0 : 1);
    return mask == nullptr ? MaskWords{} : MaskWords(mask, mask + kernels::mask_words(kGateVocab));
  }

  std::optional<StepGates> gates{gates_capacity()};
  Plans plans;
  Masks masks;
};

TEST_F(StepGatesTest, AStepIsReadyWhenEachGatedRowHasItsMask) {
  open();
  EXPECT_FALSE(gates->ready(1));
  EXPECT_EQ(gates->rows(1), 2u);
  masks.all(kGateSecond);
  ASSERT_TRUE(take(1).ok());
  EXPECT_FALSE(gates->ready(1));
  masks.allow(kGateFirst, {5});
  ASSERT_TRUE(take(1).ok());
  EXPECT_TRUE(gates->ready(1));
}

TEST_F(StepGatesTest, AStepWithoutGatedRowsIsReady) {
  const wire::RecordView view = plans.row(kGateFree, 0, 1, true).plan();
  gates->open(view, *view.as<wire::StepPlan>());
  EXPECT_TRUE(gates->ready(1));
  EXPECT_TRUE(gates->masks(1).empty());
}

TEST_F(StepGatesTest, EveryFormBecomesBits) {
  open();
  masks.allow(kGateFirst, {0, 33, 69}).add(kGateSecond, MaskForm::denied, {1, 32});
  ASSERT_TRUE(take(1).ok());
  EXPECT_EQ(bits(1, kGateFirst), (MaskWords{1, 2, 32}));
  EXPECT_EQ(bits(1, kGateSecond), (MaskWords{~2u, ~1u, ~0u}));
  EXPECT_EQ(gates->masks(1).data(), gates->mask(1, 0));
  EXPECT_EQ(gates->masks(1).size(), 6u);
  gates->close(1);

  open();
  masks.add(kGateFirst, MaskForm::bits, {7, 0, 9}).all(kGateSecond);
  ASSERT_TRUE(take(2).ok());
  EXPECT_EQ(bits(2, kGateFirst), (MaskWords{7, 0, 9}));
  EXPECT_EQ(gates->mask(2, 1), nullptr);
}

TEST_F(StepGatesTest, TwoStepsHaveMasksOfTheirOwn) {
  open();
  open();
  masks.allow(kGateFirst, {1}).allow(kGateSecond, {2});
  ASSERT_TRUE(take(2).ok());
  EXPECT_FALSE(gates->ready(1));
  masks.allow(kGateFirst, {3}).allow(kGateSecond, {4});
  ASSERT_TRUE(take(1).ok());
  EXPECT_EQ(bits(1, kGateSecond)[0], 1u << 4);
  EXPECT_EQ(bits(2, kGateSecond)[0], 1u << 2);
}

TEST_F(StepGatesTest, MemoryOfTheCallerIsUsed) {
  std::vector<std::uint32_t> memory(StepGates::memory_words(gates_capacity()));
  StepGates there(gates_capacity(), memory);
  const wire::RecordView plan = plans.gated_row(kGateFirst, 0, 1).plan();
  there.open(plan, *plan.as<wire::StepPlan>());
  const wire::RecordView some = masks.allow(kGateFirst, {0}).masks(1);
  ASSERT_TRUE(there.take(some, *some.as<wire::StepMasks>()).ok());
  EXPECT_GE(there.mask(1, 0), memory.data());
  EXPECT_LT(there.mask(1, 0), memory.data() + memory.size());
}

TEST_F(StepGatesTest, ARowOfDraftTokensHasMasksInOrder) {
  open_with_drafts(3);
  masks.add(kGateFirst, MaskForm::all, {}, 4);
  refused("4 more masks, behind 0 of 4 at most");
  masks.add(kGateSecond, MaskForm::all, {}, 1);
  refused("1 more masks, behind 0 of 1 at most");
  masks.add(kGateFirst, MaskForm::allowed, {5}, 2).all(kGateFirst);
  refused("0 more masks, behind 1 of 4 at most");
  masks.add(kGateFirst, MaskForm::allowed, {5}, 2).add(kGateFirst, MaskForm::all, {}, 1);
  ASSERT_TRUE(take(1).ok());
  masks.allow(kGateSecond, {7});
  ASSERT_TRUE(take(1).ok());
  EXPECT_FALSE(gates->ready(1)) << "one is still to come";
  masks.add(kGateFirst, MaskForm::all, {}, 1);
  refused("1 more masks, behind 2 of 4 at most");
  masks.allow(kGateFirst, {40});
  ASSERT_TRUE(take(1).ok());
  ASSERT_TRUE(gates->ready(1));
  masks.all(kGateFirst);
  refused("a second mask");
  EXPECT_EQ(gates->count(1, 0), 3);
  EXPECT_EQ(gates->count(1, 1), 1);
  EXPECT_EQ(gates->mask(1, 0, 0)[0], 1u << 5);
  EXPECT_EQ(gates->mask(1, 0, 1), nullptr);
  EXPECT_EQ(gates->mask(1, 0, 2)[1], 1u << 8);
  EXPECT_EQ(gates->mask(1, 1)[0], 1u << 7);
}

TEST_F(StepGatesTest, TheLastMaskOfARowSaysWhatIsForced) {
  open_with_drafts(2);
  masks.add(kGateFirst, MaskForm::allowed, {5}, 1, {5, 6});
  refused("forced tokens beside a mask that others follow");
  masks.add(kGateFirst, MaskForm::allowed, {5}, 0, {5, 6, 7, 8});
  refused("4 forced tokens; at most 3 can be used");
  masks.add(kGateFirst, MaskForm::allowed, {5}, 0, {5, kGateVocab});
  refused("forced token 70 is outside the vocabulary");
  masks.add(kGateFirst, MaskForm::allowed, {5}, 0, {5, -1});
  refused("forced token -1 is outside the vocabulary");
  masks.add(kGateSecond, MaskForm::allowed, {9}, 0, {9, 10, 11})
      .add(kGateFirst, MaskForm::all, {}, 1)
      .add(kGateFirst, MaskForm::allowed, {5}, 0, {5, 6});
  ASSERT_TRUE(take(1).ok());
  const auto forced = [&](std::size_t row) {
    const std::span<const TokenId> ids = gates->forced(1, row);
    return std::vector<TokenId>(ids.begin(), ids.end());
  };
  EXPECT_EQ(forced(0), (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(forced(1), (std::vector<TokenId>{9, 10, 11}));
}

TEST_F(StepGatesTest, SenselessMasksAreRefusedInOneSentence) {
  open();
  MaskWords every(kGateVocab), beyond(3, 0);
  for (std::uint32_t id = 0; id < every.size(); ++id) every[id] = id;
  beyond[2] = ~((1u << 6) - 1);  // bits past the vocabulary
  struct Case {
    std::function<void()> add;
    std::uint64_t step;
    const char* what;
  };
  const auto one = [&](SlotRef slot, MaskForm form, MaskWords words) {
    return [this, slot, form, words] { masks.add(slot, form, words); };
  };
  const Case cases[] = {
      {one(kGateFirst, MaskForm::all, {}), 2, "masks of step 2: it is not in flight"},
      {one(kGateFirst, MaskForm::all, {}), 4, "not in flight"},
      {one(kGateFree, MaskForm::all, {}), 1, "masks of step 1, slot 1 generation 1: no gated row"},
      {one({0, 2}, MaskForm::all, {}), 1, "no gated row"},
      {one({9, 1}, MaskForm::all, {}), 1, "no gated row"},
      {[&] { masks.all(kGateFirst).all(kGateFirst); }, 1, "a second mask"},
      {one(kGateFirst, MaskForm::all, {1}), 1, "1 words beside a mask that allows everything"},
      {one(kGateFirst, MaskForm::bits, {1, 2}), 1, "2 words of bits; there must be 3"},
      {one(kGateFirst, MaskForm::bits, {1, 2, 3, 4}), 1, "4 words of bits"},
      {one(kGateFirst, MaskForm::bits, {}), 1, "0 words of bits"},
      {one(kGateFirst, MaskForm::bits, {0, 0, 0}), 1, "no token is allowed"},
      {one(kGateFirst, MaskForm::bits, beyond), 1, "no token is allowed"},
      {one(kGateFirst, MaskForm::allowed, {}), 1, "no token is allowed"},
      {one(kGateFirst, MaskForm::denied, every), 1, "no token is allowed"},
      {one(kGateFirst, MaskForm::allowed, {3, 70}), 1, "id 70 is not below 70"},
      {one(kGateFirst, MaskForm::denied, {~0u}), 1, "id 4294967295 is not below 70"},
      {one(kGateFirst, MaskForm::allowed, {4, 4}), 1, "id 4 follows id 4"},
      {one(kGateFirst, MaskForm::denied, {5, 4}), 1, "id 4 follows id 5"},
      {one(kGateFirst, MaskForm{9}, {}), 1, "form 9 is not known"},
  };
  for (const Case& one : cases) {
    masks.all(kGateSecond);  // a sound one before it is not taken either
    one.add();
    const Status status = take(one.step);
    EXPECT_EQ(status.code, Code::invalid_argument);
    EXPECT_NE(status.message.find(one.what), std::string::npos) << status.message << " for " << one.what;
  }
  masks.all(kGateFirst).all(kGateSecond);
  EXPECT_TRUE(take(1).ok());
  masks.all(kGateFirst);
  EXPECT_NE(take(1).message.find("a second mask"), std::string::npos);
}

TEST_F(StepGatesTest, ArraysOutsideTheRecordAreRefused) {
  open();
  for (int which = 0; which < 2; ++which) {
    const wire::RecordView sound = masks.all(kGateFirst).masks(1);
    std::vector<std::byte> bytes(sound.bytes().begin(), sound.bytes().end());
    auto& record = *reinterpret_cast<wire::StepMasks*>(bytes.data());
    if (which == 0) record.rows.offset = 1 << 19;
    if (which == 1) reinterpret_cast<wire::RowMask*>(bytes.data() + record.rows.offset)->words = {1 << 19, 3};
    const wire::RecordView view = test::open_view(bytes);
    EXPECT_NE(gates->take(view, record).message.find("outside"), std::string::npos) << which;
  }
  EXPECT_FALSE(gates->ready(1));
}

TEST_F(StepGatesTest, AClosedOrForgottenStepIsNotInFlight) {
  open();
  masks.all(kGateFirst).all(kGateSecond);
  ASSERT_TRUE(take(1).ok());
  gates->close(1);
  masks.all(kGateFirst);
  EXPECT_EQ(take(1).code, Code::invalid_argument);
  open();
  gates->reset();
  masks.all(kGateFirst);
  EXPECT_EQ(take(2).code, Code::invalid_argument);
  plans.restart();
  open();
  masks.all(kGateFirst).all(kGateSecond);
  EXPECT_TRUE(take(1).ok()) << "step 1 of the next epoch";
}

}  // namespace
}  // namespace troupe::model

#include "actors/grammar/form_cache.h"

#include <gtest/gtest.h>

#include "actors/grammar/checked_forms.h"

namespace troupe {
namespace {

TEST(FormCache, KeepsWhatWasUsedLast) {
  FormCache cache(1 << 20, 2);
  const auto source = [](const char* text) {
    return grammar::Source{grammar::Source::Kind::regex, true, text};
  };
  const CompileOutcome refused{invalid("no"), nullptr};
  cache.put(source("a"), refused);
  cache.put(source("b"), refused);
  EXPECT_NE(cache.find(source("a")), nullptr);
  cache.put(source("c"), refused);
  EXPECT_NE(cache.find(source("a")), nullptr);
  EXPECT_EQ(cache.find(source("b")), nullptr);
  EXPECT_NE(cache.find(source("c")), nullptr);
  EXPECT_EQ(cache.entries(), 2u);
  EXPECT_EQ(cache.find({grammar::Source::Kind::regex, false, "a"}), nullptr);
  cache.put(source("a"), refused);  // again: still one entry
  EXPECT_EQ(cache.entries(), 2u);
  cache.put(source(std::string(2 << 20, 'x').c_str()), refused);  // larger than everything
  EXPECT_EQ(cache.entries(), 0u);
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(CheckedForms, FormsHaveTheNamesOfTheirBytes) {
  const HashKey key{1, 2};
  const grammar::Form form{grammar::Form::Kind::regex, R"("a")", "guided_regex"};
  const auto with = [&](auto member, auto value) {
    grammar::Form other = form;
    other.*member = value;
    return name_of(other, key);
  };
  EXPECT_EQ(name_of(form, key), name_of(grammar::Form(form), key));
  EXPECT_NE(name_of(form, key), with(&grammar::Form::value, R"("b")"));
  EXPECT_NE(name_of(form, key), with(&grammar::Form::param, "structured_outputs.regex"));
  EXPECT_NE(name_of(form, key), with(&grammar::Form::kind, grammar::Form::Kind::grammar));
}

}  // namespace
}  // namespace troupe

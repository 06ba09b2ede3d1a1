// The mask of one row of a constrained answer, and what compiling and carrying a form costs, over schemas
// made by the generator of the tests (objects, lists, unions, recursion, patterns, formats, bounded strings)
// and answers drawn from the masks. Vocabularies: the demo model's (49k), and one of 103k tokens that is made
// up of syllables, because the tokenizers of ERNIE are not part of the project. CPU time of the thread.
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "bench/cpu_clock.h"
#include "bench/report.h"
#include "tests/grammar/support/random_schema.h"
#include "tests/grammar/support/test_vocabulary.h"
#include "text/grammar/constraint.h"

namespace troupe {
namespace {

using grammar::Constraint;
using grammar::ConstraintSpec;
using grammar::Json;
using grammar::TokenMask;

constexpr int kSchemas = 60;
constexpr int kWalks = 4;
constexpr int kTokens = 160;  // of an answer, at most

double at(std::vector<double>& values, double quantile) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(quantile * static_cast<double>(values.size() - 1))];
}

TokenId draw(const TokenMask& mask, int vocabulary, std::mt19937& random) {
  std::vector<TokenId> allowed;
  for (TokenId id = 0; id < vocabulary; ++id) {
    const auto word = static_cast<std::uint32_t>(id);
    bool in = true;
    if (mask.form == TokenMask::Form::bits) in = (mask.words[word / 32] >> (word % 32)) & 1;
    if (mask.form == TokenMask::Form::allowed)
      in = std::binary_search(mask.words.begin(), mask.words.end(), word);
    if (mask.form == TokenMask::Form::denied)
      in = !std::binary_search(mask.words.begin(), mask.words.end(), word);
    if (in) allowed.push_back(id);
  }
  return allowed[random() % allowed.size()];
}

void measure(bench::Report& report, const std::string& name, const grammar::Vocabulary& vocabulary) {
  const grammar::TokenTable table(vocabulary);
  std::mt19937 random(3);
  std::vector<double> masks, accepts, compiles, carries;
  for (int i = 0; i < kSchemas; ++i) {
    Json schema = testing::SchemaMaker(static_cast<std::uint32_t>(i)).make();
    if (i % 4 == 0) schema["properties"]["note"] = {{"type", "string"}, {"maxLength", 200}};
    if (!grammar::enforceable(schema, "schema").ok()) continue;
    const double begin = bench::cpu_us();
    const auto form = grammar::compile(table, {grammar::Source::Kind::json_schema, true, schema.dump()}, 1);
    compiles.push_back((bench::cpu_us() - begin) / 1e3);
    if (!form.ok()) continue;
    const std::string bytes = (*form)->to_bytes();
    const double carried = bench::cpu_us();
    auto spec = std::make_shared<ConstraintSpec>();
    spec->form = *grammar::CompiledForm::from_bytes(table, bytes);
    carries.push_back((bench::cpu_us() - carried) / 1e3);
    spec->stop_ids = vocabulary.stop_ids;
    spec->vocabulary = table.size();
    for (int walk = 0; walk < kWalks; ++walk) {
      Constraint constraint(spec);
      TokenMask mask;
      for (int n = 0; n < kTokens && !constraint.ended(); ++n) {
        const double before = bench::cpu_us();
        constraint.mask(mask);
        const double after = bench::cpu_us();
        masks.push_back(after - before);
        const TokenId token = draw(mask, table.size(), random);
        const double drawn = bench::cpu_us();
        constraint.accept(token);
        accepts.push_back(bench::cpu_us() - drawn);
      }
    }
  }
  const auto row = [&](const std::string& what, double value, const char* unit, double must = 0) {
    report.row({"mask." + what + "." + name, value, unit, 0, must, bench::Better::lower});
  };
  row("row_p50", at(masks, 0.5), "us", 40);
  row("row_p99", at(masks, 0.99), "us", 1000);
  row("row_max", at(masks, 1), "us");
  row("accept_p50", at(accepts, 0.5), "us");
  row("accept_p99", at(accepts, 0.99), "us");
  row("compile_p50", at(compiles, 0.5), "ms");
  row("compile_max", at(compiles, 1), "ms");
  row("carry_p50", at(carries, 0.5), "ms");
  row("carry_max", at(carries, 1), "ms");
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  using namespace troupe;
  bench::Report report(argc, argv);
  const std::string demo = TROUPE_DEMO_MODEL;
  if (std::filesystem::exists(demo)) {
    const auto tokenizer = Tokenizer::load(demo);
    if (tokenizer.ok()) {
      measure(report, "demo_49k",
              grammar::vocabulary_of(**tokenizer, (*tokenizer)->vocab_size(),
                                     {(*tokenizer)->eos_id().value_or(0)}));
    }
  }
  measure(report, "synthetic_103k", testing::test_vocabulary(103'424));
  return report.all_met() ? 0 : 1;
}

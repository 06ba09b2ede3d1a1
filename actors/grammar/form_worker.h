#pragma once
// The work of a process for forms: reads what clients have written, checks and compiles it. It holds nothing
// between two jobs but the vocabulary, so it may be killed at any time.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/grammar/frames.h"
#include "text/grammar/compiler.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {

/// Pure: from the bytes of a job to those of its answer. One thread uses it.
class FormWorker {
 public:
  /// `image` is that of the model's vocabulary. Forms are compiled with `threads` threads. Nothing: the bytes
  /// are damaged.
  static std::optional<FormWorker> make(std::string_view rules, std::string image, int threads);

  /// Takes as long, and as much memory, as a hostile form likes, and may crash. Nothing: the bytes are
  /// damaged.
  std::optional<std::string> answer(std::string_view job);

 private:
  FormWorker(frames::Rules rules, std::shared_ptr<const VocabularyImage> texts, int threads);
  Result<grammar::Source> check(const grammar::Form& form) const;
  const grammar::TokenTable& table();

  frames::Rules rules_;
  std::shared_ptr<const VocabularyImage> texts_;
  std::optional<grammar::TokenTable> table_;  ///< sorted when the first form is compiled
  int threads_;
};

/// `troupe text --forms --fd=N`: the process itself, with its limits. Returns its exit code.
int form_main(const std::vector<std::string>& words);

}  // namespace troupe

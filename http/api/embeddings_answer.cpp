#include "http/api/embeddings_answer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/base64.h"
#include "http/api/json_text.h"

namespace troupe::http {
namespace {

std::vector<float> formed(const EmbeddingForm& form, std::span<const float> values) {
  if (form.dimensions > 0)
    values = values.first(std::min(values.size(), static_cast<std::size_t>(form.dimensions)));
  std::vector<float> out(values.begin(), values.end());
  if (!form.normalize) return out;
  double squares = 0;
  for (const float value : out) squares += static_cast<double>(value) * value;
  if (squares == 0) return out;
  const double scale = 1 / std::sqrt(squares);
  for (float& value : out) value = static_cast<float>(value * scale);
  return out;
}

void append_numbers(std::string& out, std::span<const float> values) {
  out.push_back('[');
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_float(out, values[i]);
  }
  out.push_back(']');
}

}  // namespace

void append_embeddings_begin(std::string& out) { out.append(R"({"object":"list","data":[)"); }

void append_embedding(std::string& out, const EmbeddingForm& form, std::int32_t index,
                      std::span<const float> values) {
  if (index > 0) out.push_back(',');
  out.append(R"({"object":"embedding","index":)").append(std::to_string(index)).append(R"(,"embedding":)");
  const std::vector<float> numbers = formed(form, values);
  if (form.base64) {
    out.push_back('"');
    append_base64(out, {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
    out.push_back('"');
  } else {
    append_numbers(out, numbers);
  }
  out.push_back('}');
}

void append_embeddings_end(std::string& out, const Answer& answer, const Usage& usage) {
  out.append(R"(],"model":)");
  append_json_string(out, answer.model);
  out.append(R"(,"id":)");
  append_json_string(out, answer.id);
  const std::string tokens = std::to_string(usage.prompt_tokens);
  out.append(R"(,"created":)").append(std::to_string(answer.created_s));
  out.append(R"(,"usage":{"prompt_tokens":)").append(tokens).append(R"(,"total_tokens":)").append(tokens);
  out.append(R"(,"prompt_tokens_details":{"cached_tokens":)").append(std::to_string(usage.cached_tokens));
  out.append("}}}");
}

}  // namespace troupe::http

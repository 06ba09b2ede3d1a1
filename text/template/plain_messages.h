#pragma once
// Messages in the one form that every chat template can read. Templates of text models add strings to strings and
// iterate over what is there: a content of null, a list of parts or a null tool_calls ends them with an error.
#include <nlohmann/json.hpp>

#include "text/template/chat_template.h"

namespace troupe {

/// Makes requests' messages readable for one template. Immutable; any number of threads may use one.
class PlainMessages {
 public:
  /// Renders a conversation to learn whether the template takes the arguments of a call as a text. Null: no template.
  explicit PlainMessages(const ChatTemplate* chat);

  /// `messages` is a list of objects that the readers of http/ have checked. Afterwards each has a string as its content
  /// (parts are joined, a line each; an object becomes its JSON), no member that is null, and no tool_calls without calls.
  /// The arguments of a call are an object; a text that is no JSON stays one where the template takes that, else it
  /// becomes {}. Thoughts are in reasoning_content, also where a client has sent them as `reasoning` alone.
  void apply(nlohmann::ordered_json& messages) const;

 private:
  bool takes_text_arguments_ = false;
};

}  // namespace troupe

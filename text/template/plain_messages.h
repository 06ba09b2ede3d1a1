#pragma once
// Messages in the one form that every chat template can read. Templates of text models add strings to
// strings, iterate over what is there, and often know one system message, the first: a content of null, a
// list of parts, a null tool_calls or a second system message, which agents send, ends them with an error.
#include "base/json.h"
#include "text/template/chat_template.h"

namespace troupe {

/// Makes requests' messages readable for one template. Immutable; any number of threads may use one.
class PlainMessages {
 public:
  /// Renders a few conversations to learn what the template takes. Null: no template.
  explicit PlainMessages(const ChatTemplate* chat);

  /// `messages` is a list of objects that the readers of http/ have checked. Afterwards each has a string as
  /// its content (parts are joined, a line each; an object becomes its JSON), no member that is null, and no
  /// tool_calls without calls. The arguments of a call are an object; a text that is no JSON stays one where
  /// the template takes that, else it becomes {}. Thoughts are in reasoning_content, also where a client has
  /// sent them as `reasoning` alone. Where the template does not show several system messages, those at the
  /// begin are one, a line each; where it does not show one behind other messages, that is the user's.
  void apply(Json& messages) const;

 private:
  void place_systems(Json& messages) const;

  bool takes_text_arguments_ = false;
  bool takes_systems_ = true;       ///< several at the begin
  bool takes_later_system_ = true;  ///< one behind an answer
};

}  // namespace troupe

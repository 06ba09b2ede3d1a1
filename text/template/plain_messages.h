#pragma once
// Messages in the one form that every chat template can read. Templates of text models add strings to
// strings, iterate over what is there, and often know one system message, the first: a content of null, a
// list of parts, a null tool_calls or a second system message, which agents send, ends them with an error.
#include <string>

#include "base/json.h"
#include "text/template/chat_template.h"
#include "text/template/media_marks.h"

namespace troupe {

/// Makes requests' messages readable for one template. Immutable; any number of threads may use one.
class PlainMessages {
 public:
  /// Renders a few conversations to learn what the template takes. Null: no template. `marks` are those of a
  /// model that sees; null: it does not.
  explicit PlainMessages(const ChatTemplate* chat, const MediaMarks* marks = nullptr);

  /// `messages` is a list of objects that the readers of http/ have checked. Afterwards each has a string as
  /// its content (parts are joined, a line each; an object becomes its JSON), no member that is null, and no
  /// tool_calls without calls. The arguments of a call are an object; a text that is no JSON stays one where
  /// the template takes that, else it becomes {}. Thoughts are in reasoning_content, also where a client has
  /// sent them as `reasoning` alone. Where the template does not show several system messages, those at the
  /// begin are one, a line each; where it does not show one behind other messages, that is the user's.
  /// With a template that has places for images or videos, a list with such parts stays a list, and so does
  /// the user's list of texts; items of a tool's answer stand in a message of the user behind it where the
  /// template shows none there. The order of items stays.
  void apply(Json& messages) const;

 private:
  void learn_parts(const ChatTemplate& chat, const MediaMarks& marks);
  void make_content(Json& message) const;
  Json spelled(const Json& part) const;
  void move_items_of_tools(Json& messages) const;
  void place_systems(Json& messages) const;

  bool takes_text_arguments_ = false;
  bool takes_systems_ = true;       ///< several at the begin
  bool takes_later_system_ = true;  ///< one behind an answer
  std::string image_type_;          ///< of a part, as the template knows it; empty: it has no place for one
  std::string video_type_;
  bool takes_items_of_tools_ = false;
  bool takes_parts_alone_ = false;  ///< it does not show a content that is a string
};

}  // namespace troupe

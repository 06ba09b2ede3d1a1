#pragma once
// Requests of other APIs become the body of a chat request, which is then read like any other: the checks,
// the limits and the extensions of all APIs are the same. A failure names the field that the client has
// written. Private to the parsers of http/api/.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/api/media_parts.h"
#include "http/api/openai_fields.h"

namespace troupe::http {

/// A field of a chat request and the one that it was made from: {"stop", "stop_sequences"}. Paths below a
/// field follow it.
struct FieldOrigin {
  std::string_view chat;
  std::string_view own;
};

/// How an API spells the fields of a chat request that it has under other names.
struct Wording {
  std::span<const FieldOrigin> fields;
  /// The member of a tool that is function.parameters in chat. Tools have no member `function`.
  std::string_view tool_schema;

  /// The path as the client wrote it.
  std::string path(std::string_view chat_path) const;
  /// The failure with its field as the client wrote it.
  Status status(Status status) const;
};

/// Moves the members from `own` to `chat` that mean the same in every API: sampling, extensions, model and
/// stream.
void move_shared(Json& own, Json& chat);

/// Moves a member, if it is there and not null, to the place `to`.
void move_member(Json& own, std::string_view from, Json& chat, const char* to);

/// "PATH is missing", with the reason "missing_required_parameter".
Status missing_field(const std::string& path);

/// A refusal with the reason "unsupported_parameter".
Status not_offered(const std::string& field, const std::string& why);

/// reasoning_effort, the name that the effort has in chat; what the API's own field says goes before it.
void read_effort(Fields& own, Json& chat);

/// Refuses `n` above 1 in the APIs whose answer is one.
void check_one_answer(Fields& own);

/// The member of an object; nullptr when it is absent or null, or `value` is no object.
inline Json* member_of(Json& value, std::string_view name) { return troupe::json::given(value, name); }

/// Whether a message's content may hold images and videos beside text.
enum class ContentKind : std::uint8_t { text, visual };

/// What a chat message may hold as its content: text as it is, or the parts of a list: texts, which have one
/// of `text_types`, and images and videos, whose data goes to `media`. One text becomes a string. Other parts
/// are refused.
Result<Json> read_content(Json& content, const std::string& path,
                          std::span<const std::string_view> text_types, ContentKind kind, MediaParts& media);
/// The same for one part of a list.
Result<Json> read_content_part(Json& part, const std::string& path,
                               std::span<const std::string_view> text_types, ContentKind kind,
                               MediaParts& media);
/// A list of parts that read_content_part() has given, as a message's content.
Json as_content(Json parts);

/// Chat messages, made from items. What one turn of the assistant consists of (thoughts, text, calls; in this
/// order) becomes one message.
class MessageList {
 public:
  void add(std::string_view role, Json content);
  void add_thoughts(std::string text);
  /// Behind calls of the same turn it goes on with the text before them: a chat message has its text in one
  /// place.
  void add_assistant_text(Json content);
  /// `arguments` is an object, or a text that begins as one.
  void add_call(std::string id, std::string name, Json arguments);
  void add_result(std::string call_id, Json content);
  Json take() { return std::move(messages_); }

 private:
  /// The message of the assistant that an item continues; a new one when the last message has a member named
  /// in `taken`.
  Json& turn(std::initializer_list<const char*> taken);

  Json messages_ = Json::array();
};

}  // namespace troupe::http

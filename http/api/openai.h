#pragma once
// All of OpenAI's requests, answers and errors.
#include "http/api/openai_error.h"     // IWYU pragma: export
#include "http/api/openai_request.h"   // IWYU pragma: export
#include "http/api/openai_response.h"  // IWYU pragma: export

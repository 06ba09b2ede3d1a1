# Sets page_bytes: the C++ source with the files that the program serves as pages.
set(page_files chat.html topology.html docs.html pages.css common.js chat.js chat_answer.js chat_images.js chat_list.js
  chat_settings.js chat_store.js chat_strip.js chat_tree.js chat_view.js highlight.js markdown.js markdown_inline.js math.js
  topology.js docs.js icon.svg)
list(TRANSFORM page_files PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/pages/)

# KaTeX sets formulas. tools/setup unpacks it from Debian's package; without it formulas stay text.
set(katex_fetched ${PROJECT_SOURCE_DIR}/build/katex/usr/share/javascript/katex/katex.js)
set(katex ${CMAKE_CURRENT_BINARY_DIR}/katex.js)
if(EXISTS ${katex_fetched})
  file(READ ${katex_fetched} katex_script)
  file(CONFIGURE OUTPUT ${katex} @ONLY CONTENT
"/*! KaTeX, https://katex.org, MIT licence. Copyright (c) 2013-2020 Khan Academy and other contributors. Permission is hereby
granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
\"Software\"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify,
merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions: The above copyright notice and this permission notice shall be
included in all copies or substantial portions of the Software. THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY
KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE
AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR
THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
@katex_script@")
else()
  message(STATUS "no KaTeX (tools/setup fetches it): the chat page shows formulas as text")
  file(WRITE ${katex} "// This program was built without KaTeX.\n")
endif()
list(APPEND page_files ${katex})

set(page_bytes ${CMAKE_CURRENT_BINARY_DIR}/page_bytes.cpp)
add_custom_command(OUTPUT ${page_bytes}
  COMMAND ${CMAKE_COMMAND} -DOUT=${page_bytes} "-DFILES=${page_files}" -P ${CMAKE_CURRENT_SOURCE_DIR}/pages/embed_pages.cmake
  DEPENDS ${page_files} pages/embed_pages.cmake
  VERBATIM)

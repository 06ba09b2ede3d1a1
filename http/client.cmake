# The client side, apart from the server: `troupe chat` and the benches link it.
troupe_module(http_client
  HEADERS client.h client_socket.h load_client.h response_reader.h tls_client.h
  SOURCES client.cpp client_socket.cpp load_client.cpp response_reader.cpp tls_client.cpp
  DEPS troupe::base troupe::http_tls nlohmann_json::nlohmann_json Boost::headers)

# The client side, apart from the server: `troupe chat` and the benches link it.
troupe_module(http_client
  HEADERS client/client.h client/client_socket.h client/load_client.h client/response_reader.h
          client/tls_client.h
  SOURCES client/client.cpp client/client_socket.cpp client/load_client.cpp client/response_reader.cpp
          client/tls_client.cpp
  DEPS troupe::base troupe::http_tls nlohmann_json::nlohmann_json Boost::headers)

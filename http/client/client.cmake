# The client side, apart from the server: `troupe chat`, the benches and tests link it. Beast and TLS are compiled
# in client/client_connection.cpp alone.
troupe_module(http_client
  HEADERS client/client.h client/client_connection.h client/event_reader.h client/load_client.h client/tls_client.h
  SOURCES client/client.cpp client/client_connection.cpp client/event_reader.cpp client/load_client.cpp
          client/tls_client.cpp
  DEPS troupe::base troupe::http_tls nlohmann_json::nlohmann_json Boost::headers)

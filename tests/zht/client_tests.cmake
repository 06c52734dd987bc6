add_unit_test(zht_support_test
  SOURCES support_test.cc program_test.cc
  USES zht_support)
add_unit_test(zht_types_test
  SOURCES types_test.cc
  USES zht_api)
add_unit_test(zht_client_unit_test
  SOURCES client_unit_test.cc pipe_line_test.cc
  USES zht_client zht_pipe zht_proto)
# Runs the `zht` program as its node.
add_unit_test(zht_client_server_test
  SOURCES client_server_test.cc
  USES zht_client zht_proto TIMEOUT 300)
add_dependencies(zht_client_server_test zht_program)
add_unit_test(zht_cli_test
  SOURCES cli_test.cc
  USES zht_support TIMEOUT 300)
add_dependencies(zht_cli_test zht_program)
# Has its node inside.
add_unit_test(zht_client_node_test
  SOURCES client_node_test.cc client_async_test.cc
  USES zht_node zht_asio)

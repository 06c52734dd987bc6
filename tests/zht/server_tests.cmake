add_unit_test(zht_core_test
  SOURCES core_test.cc crash_sim_test.cc frame_test.cc result_table_test.cc
  USES test_support zht_core zht_wire)
add_unit_test(zht_replicated_test
  SOURCES replicated_test.cc idle_test.cc schedules_test.cc bounds_test.cc bad_line_test.cc cut_test.cc
  USES zht_core zht_wire)
add_unit_test(zht_resp_test
  SOURCES resp_test.cc
  USES test_support zht_resp)
add_unit_test(zht_endpoint_test
  SOURCES endpoint_test.cc datagram_client_test.cc settings_test.cc peer_link_test.cc instance_peers_test.cc
  USES zht_net zht_client zht_node zht_server zht_support zht_proto)
add_unit_test(zht_security_test
  SOURCES security_test.cc
  USES zht_security zht_net zht_client zht_node zht_support)
add_unit_test(zht_peer_frame_test
  SOURCES peer_frame_test.cc membership_test.cc claims_test.cc
  USES zht_replication zht_server zht_proto)
add_unit_test(zht_backup_test
  SOURCES backup_format_test.cc
  USES zht_backup fusionfs_backup)
target_compile_definitions(zht_backup_test PRIVATE ZHT_TREE="${PROJECT_SOURCE_DIR}")

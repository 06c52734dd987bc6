add_unit_test(zht_replication_test
  SOURCES replication_test.cc
  USES zht_replication)

// Runs a Hive metastore; its settings are system properties.

import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

public class Metastore {
  public static void main(String[] arguments) throws Throwable {
    TxnDbUtil.prepDb(new HiveConf()); // the tables of locks, which commits of Iceberg take
    HiveMetaStore.main(arguments);
  }
}

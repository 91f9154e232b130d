// Commits files that are already written to an Iceberg table with Java's iceberg-core, so that manifests and metadata
// are its own. Arguments: the table's location, and a script of lines with fields between tabs, in this order:
//   create    schema (JSON)  column to partition by, or "-"
//   data      path  format  bytes  rows  partition ("column=value", or "-")
//   position  path  format  bytes  rows  partition          (a delete file)
//   equality  path  format  bytes  rows  partition  ids     (a delete file; field ids between commas)
//   commit    branch                                        (what was named since the last one)
//   tag       name
//   branch    name
// Prints the location of the metadata.

import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Table;
import org.apache.iceberg.hadoop.HadoopTables;

public class Commit {
  private final String location;
  private Table table;
  private RowDelta delta;

  Commit(String location) {
    this.location = location;
  }

  public static void main(String[] arguments) throws Exception {
    Commit commit = new Commit(arguments[0]);
    for (String line : Files.readAllLines(Paths.get(arguments[1]))) {
      commit.run(line.split("\t"));
    }
    System.out.println(((BaseTable) commit.table).operations().current().metadataFileLocation());
  }

  private void run(String[] field) {
    switch (field[0]) {
      case "create" -> create(SchemaParser.fromJson(field[1]), field[2]);
      case "data" -> delta.addRows(data(field));
      case "position", "equality" -> delta.addDeletes(deletes(field));
      case "commit" -> {
        delta.toBranch(field[1]).commit();
        delta = table.newRowDelta();
      }
      case "tag" -> table.manageSnapshots().createTag(field[1], table.currentSnapshot().snapshotId()).commit();
      case "branch" -> table.manageSnapshots().createBranch(field[1], table.currentSnapshot().snapshotId()).commit();
      default -> throw new IllegalArgumentException("what is " + field[0] + "?");
    }
  }

  private void create(Schema schema, String column) {
    PartitionSpec.Builder spec = PartitionSpec.builderFor(schema);
    PartitionSpec chosen = column.equals("-") ? PartitionSpec.unpartitioned() : spec.identity(column).build();
    table = new HadoopTables(new Configuration()).create(schema, chosen, Map.of("format-version", "2"), location);
    delta = table.newRowDelta();
  }

  private org.apache.iceberg.DataFile data(String[] field) {
    DataFiles.Builder builder = DataFiles.builder(table.spec())
        .withPath(field[1]).withFormat(FileFormat.fromString(field[2]))
        .withFileSizeInBytes(Long.parseLong(field[3])).withRecordCount(Long.parseLong(field[4]));
    return (field[5].equals("-") ? builder : builder.withPartitionPath(field[5])).build();
  }

  private org.apache.iceberg.DeleteFile deletes(String[] field) {
    FileMetadata.Builder builder = FileMetadata.deleteFileBuilder(table.spec())
        .withPath(field[1]).withFormat(FileFormat.fromString(field[2]))
        .withFileSizeInBytes(Long.parseLong(field[3])).withRecordCount(Long.parseLong(field[4]));
    builder = field[5].equals("-") ? builder : builder.withPartitionPath(field[5]);
    if (field[0].equals("position")) {
      return builder.ofPositionDeletes().build();
    }
    return builder.ofEqualityDeletes(Arrays.stream(field[6].split(",")).mapToInt(Integer::parseInt).toArray()).build();
  }
}

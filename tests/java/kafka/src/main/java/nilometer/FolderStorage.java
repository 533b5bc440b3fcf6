package nilometer;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** Apache Kafka's remote storage in a folder, which the setting {@code dir} names: each segment is a folder of files. */
public final class FolderStorage implements RemoteStorageManager {
    private static final String LOG = "LOG";
    private Path folder;

    @Override
    public void configure(Map<String, ?> settings) {
        folder = Path.of((String) settings.get("dir"));
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData files)
            throws RemoteStorageException {
        try {
            Files.createDirectories(folderOf(segment));
            Files.copy(files.logSegment(), file(segment, LOG));
            Files.copy(files.offsetIndex(), file(segment, IndexType.OFFSET.name()));
            Files.copy(files.timeIndex(), file(segment, IndexType.TIMESTAMP.name()));
            Files.copy(files.producerSnapshotIndex(), file(segment, IndexType.PRODUCER_SNAPSHOT.name()));
            if (files.transactionIndex().isPresent()) {
                Files.copy(files.transactionIndex().get(), file(segment, IndexType.TRANSACTION.name()));
            }
            var epochs = files.leaderEpochIndex().duplicate();
            var bytes = new byte[epochs.remaining()];
            epochs.get(bytes);
            Files.write(file(segment, IndexType.LEADER_EPOCH.name()), bytes);
            return Optional.empty();
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int last)
            throws RemoteStorageException {
        var bytes = read(file(segment, LOG));
        var end = (int) Math.min(bytes.length, last + 1L);
        return new ByteArrayInputStream(Arrays.copyOfRange(bytes, start, Math.max(start, end)));
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        return new ByteArrayInputStream(read(file(segment, type.name())));
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        try (Stream<Path> found = Files.walk(folderOf(segment))) {
            for (Path path : found.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        } catch (NoSuchFileException gone) {
            return; // Kafka deletes again what it may have deleted before
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public void close() {}

    private Path folderOf(RemoteLogSegmentMetadata segment) {
        var partition = segment.topicIdPartition();
        return folder.resolve(partition.topicId() + "-" + partition.partition())
                .resolve(segment.remoteLogSegmentId().id().toString());
    }

    private Path file(RemoteLogSegmentMetadata segment, String kind) {
        return folderOf(segment).resolve(kind);
    }

    private static byte[] read(Path path) throws RemoteStorageException {
        try {
            return Files.readAllBytes(path);
        } catch (NoSuchFileException absent) {
            throw new RemoteResourceNotFoundException(absent);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }
}

package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** The AdminClient, one command a call; every request carries {@code config}. */
final class Admin {
    private Admin() {}

    private static org.apache.kafka.clients.admin.Admin admin(JsonNode request) {
        return org.apache.kafka.clients.admin.Admin.create(Request.clientConfig(request));
    }

    /** {@code {topics: [{name, partitions, replication_factor, configs}]}} answers with the ids. */
    static JsonNode createTopics(JsonNode request) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode each : request.path("topics")) {
            NewTopic topic = new NewTopic(
                    each.get("name").asText(), each.path("partitions").asInt(1), (short) each.path("replication_factor").asInt(1));
            topics.add(topic.configs(Request.map(each.path("configs"))));
        }
        ObjectNode ids = Driver.JSON.createObjectNode();
        try (var admin = admin(request)) {
            var created = admin.createTopics(topics);
            for (NewTopic topic : topics) {
                ids.put(topic.name(), created.topicId(topic.name()).get().toString());
            }
        }
        return ids;
    }

    static JsonNode deleteTopics(JsonNode request) throws Exception {
        try (var admin = admin(request)) {
            admin.deleteTopics(Request.strings(request.path("topics"))).all().get();
        }
        return Driver.JSON.nullNode();
    }

    static JsonNode describeTopics(JsonNode request) throws Exception {
        ObjectNode described = Driver.JSON.createObjectNode();
        try (var admin = admin(request)) {
            var topics = admin.describeTopics(Request.strings(request.path("topics"))).allTopicNames().get();
            for (TopicDescription topic : topics.values()) {
                ObjectNode each = described.putObject(topic.name());
                each.put("id", topic.topicId().toString()).put("internal", topic.isInternal());
                ArrayNode partitions = each.putArray("partitions");
                topic.partitions().forEach(partition -> describe(partition, partitions.addObject()));
            }
        }
        return described;
    }

    private static void describe(TopicPartitionInfo partition, ObjectNode into) {
        into.put("partition", partition.partition());
        into.put("leader", partition.leader() == null ? -1 : partition.leader().id());
        ArrayNode replicas = into.putArray("replicas");
        partition.replicas().forEach(node -> replicas.add(node.id()));
        ArrayNode inSync = into.putArray("isr");
        partition.isr().forEach(node -> inSync.add(node.id()));
    }

    static JsonNode listTopics(JsonNode request) throws Exception {
        ArrayNode names = Driver.JSON.createArrayNode();
        try (var admin = admin(request)) {
            admin.listTopics().names().get().stream().sorted().forEach(names::add);
        }
        return names;
    }

    static JsonNode createPartitions(JsonNode request) throws Exception {
        try (var admin = admin(request)) {
            NewPartitions count = NewPartitions.increaseTo(request.get("count").asInt());
            admin.createPartitions(Map.of(request.get("topic").asText(), count)).all().get();
        }
        return Driver.JSON.nullNode();
    }

    static JsonNode describeCluster(JsonNode request) throws Exception {
        ObjectNode described = Driver.JSON.createObjectNode();
        try (var admin = admin(request)) {
            DescribeClusterResult cluster = admin.describeCluster();
            described.put("cluster_id", cluster.clusterId().get());
            described.put("controller", cluster.controller().get().id());
            ArrayNode nodes = described.putArray("nodes");
            for (Node node : cluster.nodes().get()) {
                nodes.addObject().put("id", node.id()).put("host", node.host()).put("port", node.port());
            }
        }
        return described;
    }

    private static ConfigResource resource(JsonNode request) {
        ConfigResource.Type type = ConfigResource.Type.valueOf(request.path("type").asText("TOPIC"));
        return new ConfigResource(type, request.get("name").asText());
    }

    static JsonNode describeConfigs(JsonNode request) throws Exception {
        ConfigResource resource = resource(request);
        ObjectNode described = Driver.JSON.createObjectNode();
        try (var admin = admin(request)) {
            for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                ObjectNode each = described.putObject(entry.name());
                each.put("value", entry.value()).put("source", entry.source().name()).put("default", entry.isDefault());
            }
        }
        return described;
    }

    /** {@code {type?, name, set: {key: value}, delete: [key]}}. */
    static JsonNode alterConfigs(JsonNode request) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        Request.map(request.path("set"))
                .forEach((key, value) -> operations.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
        Request.strings(request.path("delete"))
                .forEach(key -> operations.add(new AlterConfigOp(new ConfigEntry(key, null), AlterConfigOp.OpType.DELETE)));
        try (var admin = admin(request)) {
            admin.incrementalAlterConfigs(Map.of(resource(request), operations)).all().get();
        }
        return Driver.JSON.nullNode();
    }

    /** {@code {topic, partition, spec: "earliest" | "latest" | "max_timestamp" | milliseconds}}. */
    static JsonNode listOffsets(JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(request.get("topic").asText(), request.path("partition").asInt(0));
        JsonNode asked = request.get("spec");
        OffsetSpec spec = switch (asked.asText()) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            default -> OffsetSpec.forTimestamp(asked.asLong());
        };
        try (var admin = admin(request)) {
            ListOffsetsResultInfo found = admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
            ObjectNode answer = Driver.JSON.createObjectNode();
            answer.put("offset", found.offset()).put("timestamp", found.timestamp());
            return answer.put("leader_epoch", found.leaderEpoch().orElse(null));
        }
    }

    /** {@code {topic, partition, before}} answers with the low watermark. */
    static JsonNode deleteRecords(JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(request.get("topic").asText(), request.path("partition").asInt(0));
        RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("before").asLong());
        try (var admin = admin(request)) {
            var deleted = admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get();
            return Driver.JSON.createObjectNode().put("low_watermark", deleted.lowWatermark());
        }
    }

    /** {@code {brokers: [id]}} answers, for each broker and folder, with the sizes of its replicas. */
    static JsonNode describeLogDirs(JsonNode request) throws Exception {
        List<Integer> brokers = new ArrayList<>();
        request.path("brokers").forEach(broker -> brokers.add(broker.asInt()));
        ObjectNode described = Driver.JSON.createObjectNode();
        try (var admin = admin(request)) {
            Map<Integer, Map<String, LogDirDescription>> answers = new HashMap<>(admin.describeLogDirs(brokers).allDescriptions().get());
            new TreeMap<>(answers).forEach((broker, folders) -> {
                ObjectNode sizes = described.putObject(broker.toString());
                folders.forEach((folder, description) -> {
                    ObjectNode replicas = sizes.putObject(folder);
                    description.replicaInfos().forEach((partition, info) -> replicas.put(partition.toString(), info.size()));
                });
            });
        }
        return described;
    }
}

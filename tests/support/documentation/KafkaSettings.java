import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.utils.internals.AppInfoParser;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.QuotaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints the settings that Kafka's own classes define, as JSON. */
public final class KafkaSettings {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        ObjectNode all = JSON.createObjectNode();
        all.put("version", AppInfoParser.getVersion());
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        ConfigDef broker = AbstractKafkaConfig.CONFIG_DEF;
        ObjectNode ofBrokers = keys(broker, modes);
        ofBrokers.setAll(keys(QuotaConfig.brokerQuotaConfigs(), null)); // only while a broker runs
        // The authorizer reads these itself: they are in no definition.
        ofBrokers.putObject(StandardAuthorizer.SUPER_USERS_CONFIG).put("default", "").put("dynamic", false);
        ofBrokers.putObject(StandardAuthorizer.ALLOW_EVERYONE_IF_NO_ACL_IS_FOUND_CONFIG)
                .put("default", "false").put("dynamic", false);
        all.set("broker", ofBrokers);
        all.set("topic", keys(LogConfig.configDefCopy(), null));
        all.set("group", keys(ofGroups(), null));
        all.set("producer", keys(ProducerConfig.configDef(), Map.of()));
        all.set("consumer", keys(ConsumerConfig.configDef(), Map.of()));
        all.set("admin", keys(AdminClientConfig.configDef(), Map.of()));
        System.out.println(JSON.writeValueAsString(all));
    }

    /** The definition of the settings of groups, which is not public. */
    private static ConfigDef ofGroups() throws ReflectiveOperationException {
        Field definition = GroupConfig.class.getDeclaredField("CONFIG_DEF");
        definition.setAccessible(true);
        return (ConfigDef) definition.get(null);
    }

    /** The keys of a definition; `modes` has those that can change while a broker runs, null: all can. */
    private static ObjectNode keys(ConfigDef definition, Map<String, String> modes) {
        ObjectNode keys = JSON.createObjectNode();
        definition.configKeys().forEach((name, key) -> {
            ObjectNode one = keys.putObject(name);
            one.put("default", text(key));
            one.put("dynamic", modes == null || modes.containsKey(name));
        });
        return keys;
    }

    private static String text(ConfigDef.ConfigKey key) {
        if (!key.hasDefault() || key.defaultValue == null) {
            return null;
        }
        if (key.defaultValue instanceof List<?> list) {
            return String.join(",", list.stream().map(KafkaSettings::nameOf).toList());
        }
        return nameOf(key.defaultValue);
    }

    private static String nameOf(Object value) {
        return value instanceof Class<?> type ? type.getName() : String.valueOf(value);
    }
}

package nilometer;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** What every command reads from its request. */
final class Request {
    private Request() {}

    static Properties clientConfig(JsonNode request) {
        Properties config = new Properties();
        request.path("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        return config;
    }

    static byte[] bytes(JsonNode encoded) throws java.io.IOException {
        return encoded == null || encoded.isNull() || encoded.isMissingNode() ? null : encoded.binaryValue();
    }

    static List<String> strings(JsonNode array) {
        List<String> strings = new ArrayList<>();
        array.forEach(each -> strings.add(each.asText()));
        return strings;
    }

    static Map<String, String> map(JsonNode object) {
        Map<String, String> map = new HashMap<>();
        object.fields().forEachRemaining(entry -> map.put(entry.getKey(), entry.getValue().asText()));
        return map;
    }
}

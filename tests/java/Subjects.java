import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;

/** Prints for each name in DER (a line of hexadecimal digits) the text that Java has for it, in UTF-8 and in such digits. */
public class Subjects {
    public static void main(String[] arguments) throws Exception {
        HexFormat hex = HexFormat.of();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String name = new X500Principal(hex.parseHex(line)).getName();
            System.out.println(hex.formatHex(name.getBytes(StandardCharsets.UTF_8)));
        }
    }
}

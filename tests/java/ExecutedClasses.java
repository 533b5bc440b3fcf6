import com.sun.jdi.Bootstrap;
import com.sun.jdi.ReferenceType;
import com.sun.jdi.VMDisconnectedException;
import com.sun.jdi.VirtualMachine;
import com.sun.jdi.connect.AttachingConnector;
import com.sun.jdi.event.Event;
import com.sun.jdi.event.EventSet;
import com.sun.jdi.event.MethodEntryEvent;
import com.sun.jdi.request.EventRequest;
import com.sun.jdi.request.MethodEntryRequest;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/**
 * Notes which of Apache Kafka's classes a process executes: {@code java --add-modules jdk.jdi ExecutedClasses.java PORT}
 * attaches to its debugger. A line "begin" on standard input starts the notes, "end" prints them as one line.
 */
public final class ExecutedClasses {
    public static void main(String[] arguments) throws Exception {
        AttachingConnector connector = Bootstrap.virtualMachineManager().attachingConnectors().stream()
            .filter(each -> each.name().equals("com.sun.jdi.SocketAttach")).findFirst().orElseThrow();
        var options = connector.defaultArguments();
        options.get("hostname").setValue("127.0.0.1");
        options.get("port").setValue(arguments[0]);
        VirtualMachine machine = connector.attach(options);
        List<MethodEntryRequest> requests = new ArrayList<>();
        for (String filter : List.of("kafka.*", "org.apache.kafka.*")) {
            MethodEntryRequest request = machine.eventRequestManager().createMethodEntryRequest();
            request.addClassFilter(filter);
            request.setSuspendPolicy(EventRequest.SUSPEND_NONE);
            requests.add(request);
        }
        Set<ReferenceType> entered = new HashSet<>();
        Thread reader = new Thread(() -> note(machine, entered));
        reader.setDaemon(true);
        reader.start();
        var commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("attached");
        for (String command; (command = commands.readLine()) != null;) {
            if (command.equals("begin")) {
                synchronized (entered) {
                    entered.clear();
                }
                requests.forEach(EventRequest::enable);
                System.out.println("begun");
            } else {
                requests.forEach(EventRequest::disable);
                Thread.sleep(500);  // events that are under way
                Set<String> names = new TreeSet<>();
                synchronized (entered) {
                    entered.forEach(each -> names.add(each.name()));
                }
                System.out.println(String.join(" ", names));
            }
        }
        machine.dispose();
    }

    private static void note(VirtualMachine machine, Set<ReferenceType> entered) {
        try {
            while (true) {
                EventSet events = machine.eventQueue().remove();
                for (Event event : events) {
                    if (event instanceof MethodEntryEvent entry) {
                        synchronized (entered) {
                            entered.add(entry.method().declaringType());
                        }
                    }
                }
            }
        } catch (VMDisconnectedException end) {
            // main() has detached, or the process has ended
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}

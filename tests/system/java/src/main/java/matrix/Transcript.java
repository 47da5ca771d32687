package matrix;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeoutException;

/** What one client met, in the order in which it met it. The form is told in tests/fakes/clients/__init__.py. */
final class Transcript {

    private static final long PATIENCE = 60_000; // milliseconds that any one step may take

    private final List<Map<String, Object>> steps = new ArrayList<>();

    private final List<Map<String, Object>> notifications = new ArrayList<>();

    private final List<Map<String, Object>> questions = new ArrayList<>();

    private final Map<Object, List<List<Object>>> progress = new HashMap<>(); // by the step's number, which is the token

    private final Map<String, Object> answers;

    private Object server;

    Transcript(Map<String, Object> answers) {
        this.answers = new HashMap<>(answers);
    }

    synchronized void connected(Object server) {
        this.server = server;
    }

    /** Notes a notification; progress stands with its step. */
    synchronized void heard(String method, Map<String, Object> params) {
        if (method.equals("notifications/progress")) {
            List<Object> report = new ArrayList<>();
            for (String member : List.of("progress", "total", "message")) {
                report.add(params.get(member));
            }
            progress.computeIfAbsent(params.get("progressToken"), token -> new ArrayList<>()).add(report);
            return;
        }
        notifications.add(params == null ? Map.of("method", method) : Map.of("method", method, "params", params));
        notifyAll();
    }

    synchronized void asked(String method, Object params) {
        questions.add(Map.of("method", method, "params", params == null ? Map.of() : params));
    }

    synchronized Object answer(String method) {
        return answers.get(method);
    }

    synchronized int begin(Map<String, Object> more) {
        answers.putAll(more);
        return notifications.size();
    }

    synchronized void end(int number, Map<String, Object> met) {
        if (progress.containsKey(number)) {
            met.put("progress", progress.get(number));
        }
        steps.add(met);
    }

    /** Returns once a notification of the method has come, from the one at {@code since} on. */
    synchronized void hears(String method, int since) throws InterruptedException, TimeoutException {
        long until = System.currentTimeMillis() + PATIENCE;
        while (notifications.stream().skip(since).noneMatch(one -> one.get("method").equals(method))) {
            long left = until - System.currentTimeMillis();
            if (left <= 0) {
                throw new TimeoutException();
            }
            wait(left);
        }
    }

    synchronized Map<String, Object> dump() {
        Map<String, Object> whole = new LinkedHashMap<>();
        whole.put("server", server);
        whole.put("steps", steps);
        whole.put("notifications", notifications);
        whole.put("questions", questions);
        return whole;
    }

}

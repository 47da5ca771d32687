package matrix;

/**
 * The official Java SDK: {@code play} is a client that plays scripts, {@code serve TRANSPORT [PORT]} a server over
 * {@code stdio}, Streamable HTTP ({@code http}) or HTTP+SSE ({@code sse}). It knows the handshake era alone.
 */
public final class Main {

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("play")) {
            Player.playAll();
        }
        else if (arguments[1].equals("stdio")) {
            Matrix.serveStdio();
        }
        else {
            Matrix.serveHttp(arguments[1], Integer.parseInt(arguments[2]));
        }
    }

}

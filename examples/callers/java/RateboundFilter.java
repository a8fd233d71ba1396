package com.example.ratebound;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.http.MediaType;
import org.springframework.http.client.JdkClientHttpRequestFactory;
import org.springframework.stereotype.Component;
import org.springframework.web.client.RestClient;
import org.springframework.web.client.RestClientException;
import org.springframework.web.client.RestClientResponseException;
import org.springframework.web.filter.OncePerRequestFilter;

/**
 * Asks the Ratebound service before each request. For Spring Boot 3.2 or newer.
 *
 * <pre>
 * ratebound.url=http://127.0.0.1:4290
 * ratebound.token=${RATEBOUND_TOKEN:}
 * # Without an answer: open lets requests pass, closed answers 503, share counts in this process.
 * ratebound.when-away=share
 * # The request headers that the policy needs. No others are sent.
 * ratebound.headers=X-Api-Key
 * </pre>
 *
 * It runs after Spring Security, so that the policy can count by user.
 */
@Component
public class RateboundFilter extends OncePerRequestFilter {

    private static final Logger log = LoggerFactory.getLogger(RateboundFilter.class);
    private static final Duration PAUSE = Duration.ofSeconds(1); // after a failure, in which the service is not asked

    // The request cannot be decided, and the service is well: other clients stay limited.
    private static final Set<Integer> REFUSED = Set.of(400, 413, 422);

    enum WhenAway { OPEN, CLOSED, SHARE }

    record Question(String method, String path, String query, String host, String scheme, String address, String user,
                    Map<String, String> headers) {}

    record Decision(double delay) {}

    record Answer(boolean allowed, int status, Map<String, String> headers, String body, Decision decision) {}

    private final RestClient service;
    private final WhenAway whenAway;
    private final List<String> headers;
    private final LocalShare share;
    private volatile long awayUntil = System.nanoTime();

    public RateboundFilter(
            @Value("${ratebound.url}") String url,
            @Value("${ratebound.token:}") String token,
            @Value("${ratebound.timeout:100ms}") Duration timeout,
            @Value("${ratebound.when-away:open}") WhenAway whenAway,
            @Value("${ratebound.share:20}") int share,
            @Value("${ratebound.headers:}") List<String> headers) {
        // HttpClient keeps connections open and uses them again.
        var requests = new JdkClientHttpRequestFactory(HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(timeout)
                .build());
        requests.setReadTimeout(timeout);
        this.service = RestClient.builder()
                .baseUrl(url)
                .requestFactory(requests)
                .defaultHeaders(sent -> {
                    if (!token.isBlank()) {
                        sent.setBearerAuth(token);
                    }
                })
                .build();
        this.whenAway = whenAway;
        this.headers = headers;
        this.share = new LocalShare(share);
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws ServletException, IOException {
        var answer = decide(request);
        if (answer == null) {
            if (allowsAlone(request.getRemoteAddr())) {
                chain.doFilter(request, response);
            } else {
                response.setHeader("Retry-After", "1");
                write(response, HttpServletResponse.SC_SERVICE_UNAVAILABLE, "Try again in a second.\n");
            }
            return;
        }
        answer.headers().forEach(response::setHeader);
        if (!answer.allowed()) {
            write(response, answer.status(), answer.body());
            return;
        }
        if (answer.decision() != null && answer.decision().delay() > 0 && !sleep(answer.decision().delay())) {
            return;
        }
        chain.doFilter(request, response);
    }

    /** Returns the service's answer, or null if there is none. After a failure it is not asked again for a while. */
    private Answer decide(HttpServletRequest request) {
        if (System.nanoTime() - awayUntil < 0) {
            return null;
        }
        var sent = new HashMap<String, String>();
        for (var name : headers) {
            var value = request.getHeader(name);
            if (value != null) {
                sent.put(name, value);
            }
        }
        var query = request.getQueryString();
        var user = request.getUserPrincipal();
        var host = request.getHeader("Host");
        // Behind a proxy, server.forward-headers-strategy=native makes getRemoteAddr() the client's address.
        var question = new Question(request.getMethod(), request.getRequestURI(), query == null ? "" : query,
                host == null ? "" : host, request.getScheme(), request.getRemoteAddr(),
                user == null ? null : user.getName(), sent);
        try {
            return service.post().uri("/v1/decide").contentType(MediaType.APPLICATION_JSON).body(question)
                    .retrieve().body(Answer.class);
        } catch (RestClientException error) {
            if (error instanceof RestClientResponseException refusal
                    && REFUSED.contains(refusal.getStatusCode().value())) {
                log.warn("Ratebound refuses a request: {}", refusal.getMessage());
                return new Answer(false, 400, Map.of("Content-Type", "text/plain"), "Bad request.\n", null);
            }
            awayUntil = System.nanoTime() + PAUSE.toNanos();
            log.warn("Ratebound gave no decision: {}", error.getMessage());
            return null;
        }
    }

    private boolean allowsAlone(String client) {
        return switch (whenAway) {
            case OPEN -> true;
            case CLOSED -> false;
            case SHARE -> share.allows(client);
        };
    }

    private static void write(HttpServletResponse response, int status, String body) throws IOException {
        response.setStatus(status);
        response.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
    }

    /** Returns false if the thread was interrupted. */
    private static boolean sleep(double seconds) {
        try {
            Thread.sleep(Math.round(seconds * 1000));
            return true;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** Counts the requests of each client in windows of one second. */
    private static final class LocalShare {

        private static final int MAX_CLIENTS = 10_000;

        private final int limit;
        private volatile Window window = new Window(0, new ConcurrentHashMap<>());

        private record Window(long second, ConcurrentHashMap<String, AtomicInteger> counts) {}

        LocalShare(int limit) {
            this.limit = limit;
        }

        boolean allows(String client) {
            var now = System.currentTimeMillis() / 1000;
            var current = window;
            if (current.second() != now || current.counts().size() >= MAX_CLIENTS) {
                window = current = new Window(now, new ConcurrentHashMap<>());
            }
            return current.counts().computeIfAbsent(client, key -> new AtomicInteger()).incrementAndGet() <= limit;
        }
    }
}

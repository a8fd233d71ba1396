// Package ratebound limits an Echo application by asking the Ratebound service before each request.
//
//	e := echo.New()
//	e.IPExtractor = echo.ExtractIPDirect() // no proxy in front; behind one: echo.ExtractIPFromXFFHeader(…)
//	e.Use(ratebound.Middleware(ratebound.Config{
//		URL:      "http://127.0.0.1:4290",
//		Token:    os.Getenv("RATEBOUND_TOKEN"),
//		WhenAway: ratebound.Share,
//		Headers:  []string{"X-Api-Key"},
//	}))
package ratebound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v5"
)

// WhenAway says what happens to requests while the service does not answer.
type WhenAway int

const (
	Open   WhenAway = iota // requests pass
	Closed                 // requests get a 503
	Share                  // each client may make Config.ShareLimit requests a second, counted in this process
)

const (
	pause      = time.Second // after a failure, in which the service is not asked
	maxClients = 10_000      // that are counted in this process
)

// Config has the options of Middleware. Only URL is required.
type Config struct {
	URL        string
	Token      string                     // the service's bearer token
	Timeout    time.Duration              // for one answer; 100 ms by default
	WhenAway   WhenAway                   // Open by default
	ShareLimit int                        // for Share; 20 by default
	Headers    []string                   // request headers that the policy needs; no others are sent
	User       func(*echo.Context) string // returns the id of the authenticated user, or ""
}

type question struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Query   string            `json:"query"`
	Host    string            `json:"host"`
	Scheme  string            `json:"scheme"`
	Address string            `json:"address"`
	User    string            `json:"user,omitempty"`
	Headers map[string]string `json:"headers"`
}

type answer struct {
	Allowed  bool              `json:"allowed"`
	Status   int               `json:"status"`
	Headers  map[string]string `json:"headers"`
	Body     string            `json:"body"`
	Decision *struct {
		Delay float64 `json:"delay"` // seconds
	} `json:"decision"`
}

type limiter struct {
	Config
	client    *http.Client
	share     share
	awayUntil atomic.Int64 // Unix time in nanoseconds
}

// Middleware returns Echo middleware that lets the service decide about each request.
func Middleware(config Config) echo.MiddlewareFunc {
	if config.Timeout == 0 {
		config.Timeout = 100 * time.Millisecond
	}
	if config.ShareLimit == 0 {
		config.ShareLimit = 20
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100 // keep connections to the service open under load
	l := &limiter{Config: config, client: &http.Client{Transport: transport}}

	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			found, err := l.decide(c)
			if err != nil {
				if l.allowsAlone(c.RealIP()) {
					return next(c)
				}
				c.Response().Header().Set(echo.HeaderRetryAfter, "1")
				return c.String(http.StatusServiceUnavailable, "Try again in a second.\n")
			}
			header := c.Response().Header()
			for name, value := range found.Headers {
				header.Set(name, value)
			}
			if !found.Allowed {
				return c.Blob(found.Status, header.Get(echo.HeaderContentType), []byte(found.Body))
			}
			if found.Decision != nil && found.Decision.Delay > 0 {
				select {
				case <-time.After(time.Duration(found.Decision.Delay * float64(time.Second))):
				case <-c.Request().Context().Done():
					return c.Request().Context().Err()
				}
			}
			return next(c)
		}
	}
}

var errAway = errors.New("the service did not answer a moment ago")

// decide asks the service. After a failure it does not ask again for a while.
func (l *limiter) decide(c *echo.Context) (*answer, error) {
	if time.Now().UnixNano() < l.awayUntil.Load() {
		return nil, errAway
	}
	found, err := l.ask(c)
	if err != nil && c.Request().Context().Err() == nil { // the client itself did not go away
		l.awayUntil.Store(time.Now().Add(pause).UnixNano())
		slog.Warn("Ratebound gave no decision", "error", err)
	}
	return found, err
}

func (l *limiter) ask(c *echo.Context) (*answer, error) {
	asked := c.Request()
	described := question{
		Method: asked.Method, Path: asked.URL.EscapedPath(), Query: asked.URL.RawQuery, Host: asked.Host,
		Scheme: c.Scheme(), Address: c.RealIP(), Headers: map[string]string{},
	}
	if l.User != nil {
		described.User = l.User(c)
	}
	for _, name := range l.Headers {
		if value := asked.Header.Get(name); value != "" {
			described.Headers[name] = value
		}
	}
	body, err := json.Marshal(described)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(asked.Context(), l.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.URL+"/v1/decide", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if l.Token != "" {
		request.Header.Set("Authorization", "Bearer "+l.Token)
	}
	response, err := l.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	received, err := io.ReadAll(io.LimitReader(response.Body, 1<<20)) // to its end, so that the connection is kept
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		// This request cannot be decided, and the service is well: other clients stay limited.
		slog.Warn("Ratebound refuses a request", "answer", string(received))
		headers := map[string]string{echo.HeaderContentType: "text/plain"}
		return &answer{Status: http.StatusBadRequest, Headers: headers, Body: "Bad request.\n"}, nil
	case http.StatusOK:
	default:
		return nil, fmt.Errorf("%s: %s", response.Status, received)
	}
	found := new(answer)
	return found, json.Unmarshal(received, found)
}

func (l *limiter) allowsAlone(client string) bool {
	switch l.WhenAway {
	case Open:
		return true
	case Share:
		return l.share.take(client) <= l.ShareLimit
	default:
		return false
	}
}

// share counts the requests of each client in windows of one second.
type share struct {
	mutex  sync.Mutex
	window int64
	counts map[string]int
}

func (s *share) take(client string) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if now := time.Now().Unix(); now != s.window || len(s.counts) >= maxClients {
		s.window, s.counts = now, make(map[string]int)
	}
	s.counts[client]++
	return s.counts[client]
}

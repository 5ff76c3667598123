// Package api is the HTTP interface of the event center: agents and others send events to it, and consumers read from
// it. Text from a sender is stored and shown as data: it never becomes HTML, SQL, a log line or a file name.
package api

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/share"
)

// AliveHeader is in every 2xx answer to POST /v1/events: the number of seconds without an event after which the agent
// sends a sign of life.
const AliveHeader = "Nodeagent-Alive-Seconds"

// Config is the configuration of the interface.
type Config struct {
	Journal journal.Journal
	Model   *model.Model
	Log     *slog.Logger
	Now     func() time.Time      // nil: time.Now
	Health  func() journal.Health // nil: unknown
	Reports Reports               // nil: there are none
	Problem func() string         // other problems, beside reading and writing; nil or empty: none
	Ready   func() error          // why this replica must get no requests; nil: always ready

	// RecordAlive records an agent's sign of life. Nil: only the model records it.
	RecordAlive func(key model.Key, agent event.Agent, sentAt, at time.Time)

	Stopping <-chan struct{} // closed to end streams; may be nil

	// Authenticate identifies the sender of a request. An error that wraps a *web.Refusal determines the answer.
	Authenticate func(*http.Request) (web.Identity, error)
	Authorizer   web.Authorizer // nil: only identities with Reads may read
	// Loopback demands that the Host header names this machine: otherwise a page in a browser could reach the center by
	// a name that its server resolves to this machine.
	Loopback bool

	Pages  func(*Server) http.Handler // returns the handler of all other paths; nil: there is none
	SignIn func(context.Context, web.Person) (web.SignInCode, error)

	Deliveries *Deliveries // nil: this center delivers no events

	Alive  time.Duration // after which agents send a sign of life; 0: one minute
	Limits Limits
}

// Limits apply to senders and readers. Zero values are the defaults.
type Limits struct {
	SourceRate  float64 // events per second of one source; 100
	SourceBurst int     // 5000
	Rate        float64 // events per second in total; 20,000
	Burst       int     // 40,000
	Bytes       int64   // of bodies of nodes' requests being read, decoded and stored, and as many of others; 24 MiB
	Streams     int     // subscribers at the same time; 1000
	OwnStreams  int     // per subscriber; 20

	NodeRequests      float64 // requests per second of one node; 20
	NodeRequestsBurst int     // 200
}

// Server is the interface.
type Server struct {
	Config
	mux     *http.ServeMux
	shares  *shares
	avoid   avoidCache
	metrics *metrics
	started time.Time
}

// New returns the interface.
func New(c Config) *Server {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Health == nil {
		c.Health = func() journal.Health { return journal.Health{} }
	}
	if c.RecordAlive == nil {
		c.RecordAlive = c.Model.RecordAlive
	}
	c.Alive = cmp.Or(c.Alive, time.Minute)
	c.Limits = Limits{
		SourceRate: cmp.Or(c.Limits.SourceRate, 100), SourceBurst: cmp.Or(c.Limits.SourceBurst, 5000),
		Rate: cmp.Or(c.Limits.Rate, 20_000), Burst: cmp.Or(c.Limits.Burst, 40_000),
		Bytes: cmp.Or(c.Limits.Bytes, 24<<20), Streams: cmp.Or(c.Limits.Streams, 1000),
		OwnStreams:   cmp.Or(c.Limits.OwnStreams, 20),
		NodeRequests: cmp.Or(c.Limits.NodeRequests, 20), NodeRequestsBurst: cmp.Or(c.Limits.NodeRequestsBurst, 200),
	}
	s := &Server{Config: c, mux: http.NewServeMux(), shares: newShares(c.Limits), started: time.Now()}
	if c.Pages != nil {
		s.mux.Handle("/", c.Pages(s))
	}
	s.metrics = newMetrics(s)
	s.mux.Handle(unrouted, s.metrics.counted(unrouted, http.HandlerFunc(s.refuseUnrouted)))
	for pattern, r := range s.routes() {
		s.mux.Handle(pattern, s.metrics.counted(pattern, s.guarded(pattern, r)))
	}
	return s
}

// unrouted is the pattern of the paths below /v1/ and the methods that no route has. The pages do not answer these.
const unrouted = "/v1/"

func (s *Server) refuseUnrouted(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{"DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"} {
		other := r.WithContext(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != unrouted {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		s.fail(w, r, refused(http.StatusNotFound, "there is no such path"))
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	s.fail(w, r, refused(http.StatusMethodNotAllowed, "this path has no "+r.Method))
}

type handler func(http.ResponseWriter, *http.Request, web.Identity)

// route describes how a request is answered. An open one needs no identity. Reading needs a right, and so does changing
// more than the journal; to the journal, everybody may append for their own source.
type route struct {
	answer handler
	open   bool
	right  bool
}

func (s *Server) routes() map[string]route {
	all := map[string]route{
		"POST /v1/events":                {answer: s.intake},
		"OPTIONS /v1/events":             {answer: s.handshake, open: true},
		"GET /v1/events":                 {answer: s.events},
		"GET /v1/nodes":                  {answer: s.asked("cluster state pool zone version notversion blind agent", s.nodes)},
		"GET /v1/nodes/{cluster}/{node}": {answer: s.asked("limit before", s.node)},
		"GET /v1/faults":                 {answer: s.asked("cluster node severity check reason detector limit", s.faults)},
		"GET /v1/avoid":                  {answer: s.avoided},
		"POST /v1/sign-in-codes":         {answer: s.asked("name role", s.signInCode)},
		"GET /metrics":                   {answer: s.metrics.serve},
		"GET /healthz":                   {answer: s.healthz, open: true},
		"GET /readyz":                    {answer: s.readyz, open: true},
		"GET /openapi.json":              {answer: s.openAPI, open: true},
		"GET /schemas/{name}":            {answer: s.schema, open: true},
		"GET /v1/reports/{period}":       {answer: s.report},
	}
	for pattern, one := range deliveries() {
		all[pattern] = route{answer: s.delivered(pattern, one.parameter), right: !strings.HasPrefix(pattern, "GET ")}
	}
	return all
}

// Routes returns all routes, as "METHOD /path", sorted.
func (s *Server) Routes() []string { return slices.Sorted(maps.Keys(s.routes())) }

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	share.Body(w, r)
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	if s.Loopback && !web.IsLocal(r.Host) {
		s.fail(w, r, refused(http.StatusMisdirectedRequest, "this center answers to names of this machine only"))
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), arrival{}, s.Now())))
}

// arrival is the key of the time of arrival in the context of a request.
type arrival struct{}

// guarded demands an identity if the route needs one, and the right to read if it reads.
func (s *Server) guarded(pattern string, r route) http.HandlerFunc {
	path := resource(pattern)
	return func(w http.ResponseWriter, req *http.Request) {
		if r.open {
			r.answer(w, req, web.Identity{})
			return
		}
		who, refusal := s.identified(req)
		if refusal == nil && (r.right || req.Method == http.MethodGet || req.Method == http.MethodHead) {
			refusal = web.Permit(req, s.Authorizer, who, path)
		}
		if refusal != nil {
			s.fail(w, req, refusal)
			return
		}
		r.answer(w, req, who)
	}
}

// resource returns the name of a route in rights: its path without parameters.
func resource(pattern string) string {
	_, path, _ := strings.Cut(pattern, " ")
	path, _, _ = strings.Cut(path, "/{")
	return path
}

//go:embed openapi.json
var openAPI []byte

func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request, _ web.Identity) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI)
}

// schema answers the URL in an event's "dataschema".
func (s *Server) schema(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	text := schemas.Of(r.PathValue("name"))
	if text == nil {
		s.fail(w, r, refused(http.StatusNotFound, "there is no such schema"))
		return
	}
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write(text) //nolint:gosec // one of this program's own schemas
}

// handshake answers a sender that asks whether its events are wanted (CloudEvents HTTP 1.1 Web Hooks for Event
// Delivery, section 4). They are, from any origin: the credentials of each request decide who may send.
func (s *Server) handshake(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	w.Header().Set("Allow", "GET, HEAD, OPTIONS, POST")
	if origin := r.Header.Get("WebHook-Request-Origin"); origin != "" {
		w.Header().Set("WebHook-Allowed-Origin", origin)
		if r.Header.Get("WebHook-Request-Rate") != "" {
			w.Header().Set("WebHook-Allowed-Rate", strconv.Itoa(int(60*s.Limits.SourceRate)))
		}
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request, _ web.Identity) {
	respond(w, http.StatusOK, map[string]string{"status": "alive"})
}

// readyz answers 200 even while the disk is full: the stored events can be read. A replica that cannot reach the others
// is not ready, and gives the reason.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request, _ web.Identity) {
	if s.Ready != nil {
		if err := s.Ready(); err != nil {
			respond(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": err.Error()})
			return
		}
	}
	h := s.Health()
	answer := map[string]any{"status": "ready", "gaps": len(h.Gaps)}
	if !h.FullSince.IsZero() {
		answer["takesNothingSince"] = h.FullSince.UTC()
		answer["reason"] = journal.ErrFull.Error()
	}
	if s.Problem != nil && s.Problem() != "" {
		answer["problem"] = s.Problem()
	}
	respond(w, http.StatusOK, answer)
}

// rejected is an invalid event: which one to set aside, and why.
type rejected struct {
	Index  int    `json:"index"` // in the batch, from 0
	ID     string `json:"id,omitempty"`
	Reason string `json:"reason"`
}

// refusedEvents refuses a request because of single events.
func refusedEvents(status int, reason string, events []rejected) error {
	return &web.Refusal{Status: status, Reason: reason, More: map[string]any{"rejected": events}}
}

// refused refuses a request: the same request will be refused again.
func refused(status int, reason string) error { return &web.Refusal{Status: status, Reason: reason} }

// notNow refuses a request that may be accepted within a duration.
func notNow(status int, reason string, within time.Duration) error {
	return &web.Refusal{Status: status, Reason: reason, RetryWithin: within}
}

// isGone reports whether the client has gone, or no longer sends.
func isGone(r *http.Request) bool { return r.Context().Err() != nil }

// fail answers a request that has failed.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	refusal := s.refusalOf(r, err)
	if refusal.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if refusal.RetryWithin > 0 { // each client at a random time
		seconds := 1 + rand.IntN(max(1, int(refusal.RetryWithin/time.Second)))
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	answer := map[string]any{"error": quote(refusal)}
	maps.Copy(answer, refusal.More)
	respond(w, refusal.Status, answer)
}

// refusalOf returns the refusal in an error, or the one that it means. It logs failures of the center.
func (s *Server) refusalOf(r *http.Request, err error) *web.Refusal {
	if _, trimmed := errors.AsType[*journal.TrimmedError](err); trimmed || errors.Is(err, errOtherJournal) {
		bounds := s.Journal.Bounds() // says where to begin
		return &web.Refusal{Status: http.StatusGone, Reason: err.Error(), More: map[string]any{
			"journal": bounds.Journal, "oldest": fmt.Sprint(bounds.Oldest), "newest": fmt.Sprint(bounds.Newest),
			"after": fmt.Sprint(bounds.Oldest - 1), "snapshot": "/v1/nodes"}}
	}
	refusal, expected := refusalOf(err)
	if !expected {
		s.logFailure(r, "answer a request failed", err)
	}
	return refusal
}

// logFailure logs a failure of the center. A client that leaves early is no failure.
func (s *Server) logFailure(r *http.Request, failure string, err error) {
	at, _ := r.Context().Value(arrival{}).(time.Time)
	after := s.Now().Sub(at)
	switch {
	case !isGone(r):
		s.Log.Error(failure, "route", r.Pattern, "err", err)
	case after >= busyWait:
		s.Log.Warn(failure, "route", r.Pattern, "after", after, "err", err)
	}
}

// refusalOf returns the refusal that an error means. An unexpected error is a failure of the center.
func refusalOf(err error) (refusal *web.Refusal, expected bool) {
	refusal, expected = errors.AsType[*web.Refusal](err)
	switch {
	case expected:
		return refusal, true
	case errors.Is(err, deliver.ErrUnknown):
		return &web.Refusal{Status: http.StatusNotFound, Reason: err.Error()}, true
	case errors.Is(err, deliver.ErrRefused):
		return &web.Refusal{Status: http.StatusUnprocessableEntity, Reason: err.Error()}, true
	}
	return &web.Refusal{Status: http.StatusServiceUnavailable, Reason: err.Error(), RetryWithin: 10 * time.Second}, false
}

// asked answers with the JSON of an object, if the request has no other parameters than these, divided by spaces.
func (s *Server) asked(parameters string, ask func(*http.Request, web.Identity) (any, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, who web.Identity) {
		err := Only(r.URL.Query(), strings.Fields(parameters)...)
		var answer any
		if err == nil {
			answer, err = ask(r, who)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		respond(w, http.StatusOK, answer)
	}
}

func respond(w http.ResponseWriter, status int, answer any) {
	data, err := json.Marshal(answer)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// unread returns the refusal for a failed read of the journal.
func (s *Server) unread(r *http.Request, err error) error {
	if _, trimmed := errors.AsType[*journal.TrimmedError](err); trimmed {
		return err
	}
	s.logFailure(r, "read the journal failed", err)
	return notNow(http.StatusServiceUnavailable, "the journal cannot be read now", 10*time.Second)
}

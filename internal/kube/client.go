package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/nodeagent/nodeagent/internal/kube/groups"
)

// The limits of one agent towards the apiserver.
const (
	requestsPerSecond = 1
	requestBurst      = 5
	// claimBurst is enough for a first isolation: count the Nodes, list the claims, ask for a pause, try the policy,
	// claim, list again. The taint must not wait for the limit.
	claimBurst = 8
	// connections are closed and reopened after minSession plus up to as much again, so that load spreads over the
	// apiservers after one of them was down, and so that credentials and CA are read again.
	minSession = 30 * time.Minute
	// maxPatience is the longest Retry-After that a call waits for, once. A longer one is returned to the caller.
	maxPatience = 3 * time.Second
	// maxPause bounds how long the apiserver can silence the agent with one Retry-After.
	maxPause = 5 * time.Minute
)

// Client is a client of the apiserver. It is safe for concurrent use.
type Client struct {
	config  Config
	log     *slog.Logger
	asNode  *Client                              // with kubelet's own credentials; nil in that client itself
	find    func() (*rest.Config, string, error) // credentials, and their source
	limiter flowcontrol.RateLimiter
	urgent  flowcontrol.RateLimiter               // for conditions: they must not wait behind events and lists
	claims  flowcontrol.RateLimiter               // for the fleet budget: a slot or its release must not wait either
	observe func(verb, resource string, code int) // nil: not counted

	daemonSets *cached[[]appsv1.DaemonSet]
	recentPods *cached[[]corev1.Pod]
	revisions  func(ctx context.Context, namespace string) ([]appsv1.ControllerRevision, error)
	changes    *podChanges
	sight      nodeSight
	rounds     rounds

	// mu guards the fields below.
	mu       sync.Mutex
	session  *session
	paused   time.Time // the apiserver asked to wait until then
	answered time.Time // last answer; zero: never
}

// session is one set of credentials and the connections made with them.
type session struct {
	groups  groups.Clients
	pool    *http.Transport
	expires time.Time
	source  string
}

// Observe makes the client count every request, with the status code of its answer (0: no answer). It must be called
// before the first request.
func (c *Client) Observe(requested func(verb, resource string, code int)) {
	c.observe, c.asNode.observe = requested, requested
}

// New returns a client. It reads no credentials and makes no connection yet: credentials may appear later (kubelet's
// are created when the node joins), and each call looks for them until it finds some.
func New(config Config, log *slog.Logger) (*Client, error) {
	if config.Node == "" {
		return nil, errors.New("apiserver client: the node name is not known")
	}
	// It becomes part of field selectors and URLs.
	if problems := validation.IsDNS1123Subdomain(config.Node); len(problems) > 0 {
		return nil, fmt.Errorf("apiserver client: node name %q: %s", clip(config.Node), strings.Join(problems, "; "))
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	c := &Client{
		config: config, log: log, find: config.Credentials, changes: &podChanges{}, rounds: newRounds(),
	}
	c.limit()
	c.asNode = &Client{config: config, log: log, find: config.nodeCredentials, limiter: c.limiter, urgent: c.urgent}
	c.daemonSets, c.recentPods = newCached(c.listDaemonSets), newCached(c.pods)
	c.daemonSets.holds = func(at time.Time, err error) bool { return err == nil && c.still(time.Since(at)) }
	c.recentPods.holds = c.daemonSets.holds
	c.revisions = c.cachedRevisions()
	return c, nil
}

// limit sets the rate limits of this client.
func (c *Client) limit() {
	c.limiter = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestBurst)
	c.urgent = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestBurst)
	c.claims = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, claimBurst)
}

// Close ends the connections that are not in use.
func (c *Client) Close() error {
	c.drop(nil)
	c.asNode.drop(nil)
	return nil
}

// Node returns the name of the Node that the client is for.
func (c *Client) Node() string { return c.config.Node }

// open returns the session, and creates a new one if there is none or it is too old.
func (c *Client) open() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil && time.Now().Before(c.session.expires) {
		return c.session, nil
	}
	next, err := c.connect()
	if err != nil {
		if c.session != nil && !errors.Is(err, ErrNoCredentials) {
			c.log.Warn("reload credentials failed: keeping the old ones", "err", err)
			c.session.expires = time.Now().Add(time.Minute)
			return c.session, nil
		}
		return nil, err
	}
	if c.session != nil {
		c.session.pool.CloseIdleConnections()
	}
	if c.session == nil || c.session.source != next.source {
		c.log.Info("apiserver credentials found", "source", next.source)
	}
	c.session = next
	return next, nil
}

// drop discards a failed session, so that the next call reads the credentials again and dials again.
func (c *Client) drop(failed *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil || (failed != nil && c.session != failed) {
		return
	}
	c.session.pool.CloseIdleConnections()
	c.session.expires = time.Time{}
	if failed == nil {
		c.session = nil
	}
}

func (c *Client) connect() (*session, error) {
	config, source, err := c.find()
	if err != nil {
		return nil, err
	}
	config.UserAgent = c.config.userAgent()
	pool, transport, err := newTransport(config, nil)
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", source, err)
	}
	config.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter() // see try
	config.WarningHandlerWithContext = rest.NoWarnings{}
	clients, _, err := groups.New(config, &http.Client{Transport: transport},
		groups.Group{Version: corev1.SchemeGroupVersion, AddToScheme: corev1.AddToScheme},
		groups.Group{Version: appsv1.SchemeGroupVersion, AddToScheme: appsv1.AddToScheme},
		groups.Group{Version: storagev1.SchemeGroupVersion, AddToScheme: storagev1.AddToScheme},
		groups.Group{Version: coordinationv1.SchemeGroupVersion, AddToScheme: coordinationv1.AddToScheme})
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", source, err)
	}
	return &session{groups: clients, pool: pool, source: source,
		expires: time.Now().Add(minSession + rand.N(minSession))}, nil
}

// userAgent identifies the agent in the apiserver's logs and flow control.
func (c Config) userAgent() string {
	return "nodeagent/" + cmp.Or(c.Version, "unknown") + " (" + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

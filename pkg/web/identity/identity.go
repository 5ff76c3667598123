package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/share"
)

// The limits of requests to an apiserver.
const (
	reviewsPerSecond = 20 // of agents' tokens
	readersPerSecond = 5  // of tokens known only to the apiserver, and of rights
	readersBurst     = 50
	strangersRate    = 1 // of unknown tokens, per network
	strangersBurst   = 10

	awayFor = 5 * time.Second // how long an apiserver that did not answer is not asked again
)

// Apiserver is the part of a cluster's apiserver that the program uses.
type Apiserver interface {
	// Keys returns the JSON Web Key Set of its ServiceAccount tokens.
	Keys(ctx context.Context) ([]byte, error)
	// Review identifies the owner of a token for one of the audiences; without any, for the apiserver's own.
	Review(ctx context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error)
	// Access reports whether a user has a right.
	Access(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (
		authorizationv1.SubjectAccessReviewStatus, error)
}

// Voucher is a cluster that vouches for its nodes and readers.
type Voucher struct {
	Cluster
	Apiserver Apiserver
	// Node returns the UID of a Node, empty if there is none; ok is false while that is unknown.
	Node func(name string) (uid string, ok bool)
}

// Config is the configuration of an Authority.
type Config struct {
	// Program is the first part of the nonResourceURLs that RBAC permits: eventcenter.
	Program string
	// Local is the administrator's token. If clusters are configured, it is accepted only from this machine.
	Local    string
	Dir      string // of the clusters' keys, stored for times when their apiservers are away
	Vouchers []Voucher
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now
}

// Authority identifies the sender of a request, and decides what they may read.
type Authority struct {
	local    [sha256.Size]byte
	program  string
	anywhere bool // the local token is accepted from other machines too
	clusters []*cluster
	now      func() time.Time
}

// cluster is a cluster that vouches.
type cluster struct {
	Voucher
	log         *slog.Logger
	keys        *keys
	authorities authorities
	reviews     *rate.Limiter // of agents' tokens
	asked       *rate.Limiter // for readers with a token accepted before
	unknown     *rate.Limiter // for all others
	strangers   *share.Rates  // per network
	ofNodes     *share.Rates  // reviews of tokens, per node
	reviewed    cache[review]
	rights      cache[right]
	accepted    cache[bool] // readers' tokens

	mu   sync.Mutex // guards away
	away time.Time  // the apiserver is not asked until then
}

// New returns an Authority. Stored keys are used at once.
func New(c Config) (*Authority, error) {
	a := &Authority{program: c.Program, local: sha256.Sum256([]byte(c.Local)), anywhere: len(c.Vouchers) == 0, now: c.Now}
	if c.Local == "" {
		return nil, errors.New("no local token")
	}
	if a.now == nil {
		a.now = time.Now
	}
	for _, v := range c.Vouchers {
		k, err := newKeys(filepath.Join(c.Dir, v.Name+".jwks.json"), v.Apiserver.Keys, a.now)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", v.Name, err)
		}
		one := &cluster{Voucher: v, log: c.Log.With("cluster", v.Name), keys: k,
			authorities: authorities{file: v.ClientCAFile},
			reviews:     rate.NewLimiter(reviewsPerSecond, reviewsPerSecond),
			asked:       rate.NewLimiter(readersPerSecond, readersBurst),
			unknown:     rate.NewLimiter(readersPerSecond, readersBurst),
			strangers:   share.NewRates(strangersRate, strangersBurst), ofNodes: share.NewRates(strangersRate, strangersBurst)}
		if _, err := one.authorities.pool(); err != nil {
			return nil, fmt.Errorf("cluster %s: clientCAFile: %w", v.Name, err)
		}
		a.clusters = append(a.clusters, one)
	}
	return a, nil
}

// Run refreshes the clusters' keys until ctx ends.
func (a *Authority) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, c := range a.clusters {
		all.Go(func() { c.keys.run(ctx, c.log) })
	}
	all.Wait()
	return nil
}

// refuse returns a refusal.
func refuse(status int, format string, args ...any) error {
	return &web.Refusal{Status: status, Reason: fmt.Sprintf(format, args...)}
}

// later returns a refusal that asks the client to retry.
func later(status int, format string, args ...any) error {
	return &web.Refusal{Status: status, Reason: fmt.Sprintf(format, args...), RetryWithin: 10 * time.Second}
}

// Authenticate identifies the sender of a request. A token takes precedence over a certificate.
func (a *Authority) Authenticate(r *http.Request) (web.Identity, error) {
	token, given := web.Bearer(r)
	if !given && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return a.byCertificate(r.TLS.PeerCertificates)
	}
	if !given {
		return web.Identity{}, refuse(http.StatusUnauthorized, "%s", a.wanted())
	}
	sum := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sum[:], a.local[:]) != 1 {
		return a.byToken(r.Context(), token, sum, share.Of(r))
	}
	if !a.anywhere && !fromHere(r.RemoteAddr) {
		return web.Identity{}, refuse(http.StatusForbidden, "the program's own token is accepted from its machine only")
	}
	return web.Identity{Name: "administrator", By: "local token", Reads: true, Any: true}, nil
}

// wanted describes the missing credentials of a request.
func (a *Authority) wanted() string {
	for _, c := range a.clusters {
		if c.ClientCAFile != "" {
			return "a bearer token is needed, or a client certificate of an authority that the TLS handshake has named"
		}
	}
	return "a bearer token is needed"
}

func fromHere(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// exists refuses an unknown node. unreviewed is true if the cluster's nodes are not known yet.
func (c *cluster) exists(node, uid string) (unreviewed bool, err error) {
	have, known := c.Node(node)
	switch {
	case !known:
		return true, nil
	case have == "":
		return false, refuse(http.StatusForbidden, "cluster %s has no Node %.253q", c.Name, node)
	case uid != "" && have != uid:
		return false, refuse(http.StatusForbidden, "this token is of an earlier Node %.253q of cluster %s", node, c.Name)
	}
	return false, nil
}

// isAway reports whether the apiserver failed to answer recently.
func (c *cluster) isAway(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.away)
}

// unanswered records that the apiserver did not answer, or answered with an error.
func (c *cluster) unanswered(ctx context.Context, now time.Time, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the client has gone
	}
	c.mu.Lock()
	c.away = now.Add(awayFor)
	c.mu.Unlock()
	c.log.Warn("ask the apiserver about an identity failed", "err", err)
}

// ClientCAs returns the CAs of all clusters' client certificates, for the TLS handshake; nil: no certificate is
// requested.
func (a *Authority) ClientCAs() *x509.CertPool {
	var files []string
	for _, c := range a.clusters {
		if c.ClientCAFile != "" {
			files = append(files, c.ClientCAFile)
		}
	}
	if len(files) == 0 {
		return nil
	}
	all := x509.NewCertPool()
	for _, c := range a.clusters {
		all.AppendCertsFromPEM(c.authorities.text()) // invalid certificates were reported when the file was read
	}
	return all
}

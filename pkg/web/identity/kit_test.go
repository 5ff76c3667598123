package identity_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/identity"
)

// cluster is an apiserver that accepts tokens signed by its key. cmd/eventcenter tests a real one.
type cluster struct {
	key     *ecdsa.PrivateKey
	id      string // of the key
	away    bool
	refuses bool
	allows  bool
	nodes   map[string]string // nil: not known yet
	user    string            // the user it returns, if another; with a node's name in extra
	extra   map[string]authenticationv1.ExtraValue

	keys, reviews, accesses int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{key: newKey(t), id: "k", nodes: map[string]string{"a": "uid-a"}}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (c *cluster) Keys(context.Context) ([]byte, error) {
	c.keys++
	if c.away {
		return nil, errors.New("away")
	}
	return json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &c.key.PublicKey, KeyID: c.id}}})
}

func (c *cluster) Review(_ context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error) {
	c.reviews++
	user := cmp.Or(c.user, agent)
	if strings.HasPrefix(token, "user-") {
		user = token
	}
	switch {
	case c.away:
		return authenticationv1.TokenReviewStatus{}, errors.New("away")
	case c.refuses || strings.HasPrefix(token, "user-") && len(audiences) > 0:
		return authenticationv1.TokenReviewStatus{Error: "the pod is gone"}, nil
	}
	return authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: audiences,
		User: authenticationv1.UserInfo{Username: user, Extra: c.extra}}, nil
}

func (c *cluster) Access(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (
	authorizationv1.SubjectAccessReviewStatus, error) {
	c.accesses++
	if c.away {
		return authorizationv1.SubjectAccessReviewStatus{}, errors.New("away")
	}
	return authorizationv1.SubjectAccessReviewStatus{Allowed: c.allows &&
		spec.NonResourceAttributes.Path == "/eventcenter/v1/nodes"}, nil
}

func (c *cluster) voucher(name string, readers bool) identity.Voucher {
	return identity.Voucher{Apiserver: c, Cluster: identity.Cluster{Name: name, Audience: "center",
		Agents: []string{"ns/agent"}, Readers: readers},
		Node: func(node string) (string, bool) { return c.nodes[node], c.nodes != nil }}
}

// token is an agent's token, with some claims changed.
func (c *cluster) token(t *testing.T, change map[string]any) string {
	t.Helper()
	claims := map[string]any{"sub": agent, "aud": []string{"center"}, "exp": now().Add(time.Hour).Unix(), "jti": rand.Text(),
		"kubernetes.io": map[string]any{"node": map[string]any{"name": "a", "uid": "uid-a"}}}
	for name, value := range change {
		claims[name] = value
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: c.key, KeyID: c.id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// center is an authority whose clock the test sets.
type center struct {
	from string // the address that requests come from
	*identity.Authority
	t   *testing.T
	now time.Time
}

func newCenter(t *testing.T, dir string, vouchers ...identity.Voucher) *center {
	t.Helper()
	c := &center{t: t, now: now()}
	var err error
	c.Authority, err = identity.New(identity.Config{Program: "eventcenter", Local: local, Dir: dir, Vouchers: vouchers,
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return c.now }})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *center) ask(token string) (web.Identity, error) {
	r := httptest.NewRequest(http.MethodPost, "/v1/events", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if c.from != "" {
		r.RemoteAddr = c.from + ":1"
	}
	return c.Authenticate(r)
}

// status demands an identity for a token, or a refusal that contains a text.
func (c *center) status(token string, want int, say string) web.Identity {
	c.t.Helper()
	who, err := c.ask(token)
	status := http.StatusOK
	if refusal, ok := errors.AsType[*web.Refusal](err); ok {
		status = refusal.Status
	}
	if status != want || !strings.Contains(fmt.Sprint(err), say) {
		c.t.Errorf("%d %v, want %d with %q", status, err, want, say)
	}
	return who
}

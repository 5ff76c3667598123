package identity_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/identity"
)

const (
	local = "0123456789abcdef0123456789abcdef"
	agent = "system:serviceaccount:ns:agent"
)

// The apiserver is asked once for each token, at most ten times at once for one node, and not while it is away: then
// the signature alone counts, and the identity is marked.
func TestReviews(t *testing.T) {
	k := newCluster(t)
	c := newCenter(t, t.TempDir(), k.voucher("prod", false))
	token := k.token(t, nil)
	for range 5 {
		if who := c.status(token, 200, "<nil>"); who.Unreviewed || who.Cluster != "prod" || who.Node != "a" || who.Reads {
			t.Errorf("%+v", who)
		}
	}
	if k.reviews != 1 {
		t.Errorf("%d reviews of one token", k.reviews)
	}
	c.now = c.now.Add(time.Minute)
	unreviewed := 0
	for range 50 {
		if c.status(k.token(t, nil), 200, "<nil>").Unreviewed {
			unreviewed++
		}
	}
	if k.reviews != 11 || unreviewed != 40 {
		t.Errorf("%d reviews in a second, and %d unreviewed", k.reviews-1, unreviewed)
	}
	c.now, k.away = c.now.Add(time.Minute), true
	late := k.token(t, nil)
	for range 3 {
		if who := c.status(late, 200, "<nil>"); !who.Unreviewed {
			t.Errorf("%+v", who)
		}
	}
	if k.reviews != 12 {
		t.Errorf("an apiserver that is away was asked %d times", k.reviews-11)
	}
	k.away, k.refuses, c.now = false, true, c.now.Add(6*time.Second)
	c.status(late, 401, "the pod is gone")
	c.status(token, 200, "<nil>") // reviewed, until it expires
	c.now = now().Add(time.Hour)
	c.status(token, 401, "expired")
	if _, err := c.ask(k.token(t, map[string]any{"exp": c.now.Add(time.Hour).Unix()})); err == nil {
		t.Error("a token that the apiserver refuses is accepted")
	}
}

// The apiserver gets at most twenty reviews per second in total: beyond that the signature alone counts.
func TestReviewsOfAll(t *testing.T) {
	k := newCluster(t)
	c := newCenter(t, t.TempDir(), k.voucher("prod", false))
	unreviewed := 0
	for i := range 100 {
		node := fmt.Sprint("n", i)
		k.nodes[node] = "uid"
		if c.status(k.token(t, ofNode(node, "uid")), 200, "<nil>").Unreviewed {
			unreviewed++
		}
	}
	if k.reviews != 20 || unreviewed != 80 {
		t.Errorf("%d reviews, %d unreviewed", k.reviews, unreviewed)
	}
	c.now = c.now.Add(time.Second)
	for i := range 100 {
		c.status(k.token(t, ofNode(fmt.Sprint("n", i), "uid")), 200, "<nil>")
	}
	if k.reviews != 40 {
		t.Errorf("%d reviews in a second more", k.reviews-20)
	}
}

func ofNode(name, uid string) map[string]any {
	return map[string]any{"kubernetes.io": map[string]any{"node": map[string]any{"name": name, "uid": uid}}}
}

// A detector's ServiceAccount sends only under its name, for the node of its token or, if configured, for all nodes.
func TestDetectorToken(t *testing.T) {
	k := newCluster(t)
	v := k.voucher("prod", false)
	v.Detectors = []identity.Detector{{Name: "gpud", ServiceAccount: "gpu/gpud"}, {Name: "bmc", ServiceAccount: "ops/bmc", EveryNode: true}}
	c := newCenter(t, t.TempDir(), v)
	for user, want := range map[string]web.Identity{"gpu:gpud": {Detector: "gpud"}, "ops:bmc": {Detector: "bmc", EveryNode: true}} {
		k.user = "system:serviceaccount:" + user
		who := c.status(k.token(t, map[string]any{"sub": k.user}), 200, "<nil>")
		if who.Detector != want.Detector || who.EveryNode != want.EveryNode || who.Node != "a" || who.Cluster != "prod" || who.Any || who.Reads {
			t.Errorf("%+v", who)
		}
		c.status(k.token(t, map[string]any{"sub": k.user, "kubernetes.io": nil}), 403, "names no node")
	}
	c.status(k.token(t, map[string]any{"sub": "system:serviceaccount:gpu:other"}), 403, "detectors")
}

// Keys are stored for a start without the apiserver, and read again if a token has an unknown key, at most every 10 s.
func TestKeys(t *testing.T) {
	k, dir := newCluster(t), t.TempDir()
	c := newCenter(t, dir, k.voucher("prod", false))
	token := k.token(t, nil)
	c.status(token, 200, "<nil>")
	k.away = true
	c = newCenter(t, dir, k.voucher("prod", false))
	c.status(token, 200, "<nil>")
	k.key, k.id, k.away = newKey(t), "k2", false
	c.status(k.token(t, nil), 200, "<nil>")
	c.status(token, 401, "signed by no key")
	before := k.keys
	stranger := &cluster{key: newKey(t), id: "k3"}
	for range 10 {
		c.status(stranger.token(t, nil), 401, "signed by no key")
	}
	if k.keys != before {
		t.Errorf("strangers had the keys read %d times", k.keys-before)
	}
	c.now = c.now.Add(11 * time.Second)
	c.status(stranger.token(t, nil), 401, "signed by no key")
	if k.keys != before+1 {
		t.Errorf("the keys were read %d times more", k.keys-before)
	}
	if err := os.WriteFile(filepath.Join(dir, "prod.jwks.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.New(identity.Config{Program: "eventcenter", Local: local, Dir: dir, Vouchers: []identity.Voucher{k.voucher("prod",
		false)}, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "can be removed") {
		t.Errorf("damaged keys: %v", err)
	}
}

// The cluster whose key has signed the token counts; if two clusters share that key, none does.
func TestWhichCluster(t *testing.T) {
	one, two := newCluster(t), newCluster(t)
	two.id = one.id
	c := newCenter(t, t.TempDir(), one.voucher("one", false), two.voucher("two", false))
	for want, k := range map[string]*cluster{"one": one, "two": two} {
		if who := c.status(k.token(t, nil), 200, "<nil>"); who.Cluster != want {
			t.Errorf("%+v, want %s", who, want)
		}
	}
	two.key = one.key
	c = newCenter(t, t.TempDir(), one.voucher("one", false), two.voucher("two", false))
	c.status(one.token(t, nil), 403, "share")
}

func TestRefusals(t *testing.T) {
	k := newCluster(t)
	node := func(uid string) map[string]any {
		return map[string]any{"kubernetes.io": map[string]any{"node": map[string]any{"name": "a", "uid": uid}}}
	}
	unsigned, err := jwt.ParseSigned(k.token(t, nil), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || unsigned == nil {
		t.Fatal(err)
	}
	parts := strings.Split(k.token(t, nil), ".")
	symmetric, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{
		Key: bytes.Repeat([]byte("k"), 32), KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	hs256, err := jwt.Signed(symmetric).Claims(jwt.Claims{Subject: agent}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		token  string
		status int
		say    string
	}{
		"another ServiceAccount": {k.token(t, map[string]any{"sub": "system:serviceaccount:ns:other"}), 403, "is no ServiceAccount of its agents (ns/agent)"},
		"another audience":       {k.token(t, map[string]any{"aud": []string{"x"}}), 401, `need one for "center"`},
		"no audience":            {k.token(t, map[string]any{"aud": []string{}}), 401, `need one for "center"`},
		"another node's UID":     {k.token(t, node("uid-b")), 403, "earlier Node"},
		"no UID":                 {k.token(t, node("")), 403, "names no node"},
		"no signature":           {"eyJhbGciOiJub25lIn0." + parts[1] + ".", 401, "signed by no key"},
		"a changed claim":        {parts[0] + "." + parts[1][:10] + "x" + parts[1][11:] + "." + parts[2], 401, "signed by no key"},
		"a symmetric key":        {hs256, 401, "signed by no key"},
		"too long":               {strings.Repeat("x", 20_000), 401, "bytes"},
		"the empty token":        {"", 401, "signed by no key"},
	} {
		t.Run(name, func(t *testing.T) {
			newCenter(t, t.TempDir(), k.voucher("prod", false)).status(test.token, test.status, test.say)
		})
	}
	k.user = "system:serviceaccount:ns:other"
	newCenter(t, t.TempDir(), k.voucher("prod", false)).status(k.token(t, nil), 401, "of another user")
	k.user, k.extra = "", map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {"b"}}
	newCenter(t, t.TempDir(), k.voucher("prod", false)).status(k.token(t, nil), 401, "of another node")
	k.extra["authentication.kubernetes.io/node-name"] = authenticationv1.ExtraValue{"a"}
	k.nodes = nil // not known yet
	if who := newCenter(t, t.TempDir(), k.voucher("prod", false)).status(k.token(t, nil), 200, "<nil>"); !who.Unreviewed {
		t.Errorf("%+v", who)
	}
}

// The center's own token is the administrator's; if clusters vouch for others, only from this machine.
func TestLocalToken(t *testing.T) {
	k := newCluster(t)
	for name, test := range map[string]struct {
		vouchers []identity.Voucher
		remote   string
		status   int
	}{
		"here": {[]identity.Voucher{k.voucher("c", false)}, "127.0.0.1:1", 200},
		"IPv6": {[]identity.Voucher{k.voucher("c", false)}, "[::1]:1", 200}, "alone": {nil, "10.0.0.1:1", 200},
		"elsewhere": {[]identity.Voucher{k.voucher("c", false)}, "10.0.0.1:1", 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = test.remote
		r.Header.Set("Authorization", "Bearer "+local)
		who, err := newCenter(t, t.TempDir(), test.vouchers...).Authenticate(r)
		if refusal, ok := errors.AsType[*web.Refusal](err); ok && refusal.Status != test.status || (err == nil) != (test.
			status == 200) || err == nil && (!who.Any || !who.Reads) {
			t.Errorf("%s: %+v %v", name, who, err)
		}
	}
}

// An answer about RBAC is cached briefly. A user's token is never sent to a cluster that does not decide about readers.
func TestReaders(t *testing.T) {
	home, other := newCluster(t), newCluster(t)
	home.allows = true
	c := newCenter(t, t.TempDir(), other.voucher("other", false), home.voucher("home", true))
	who := c.status("user-1", 200, "<nil>")
	if who.Name != "user-1" || who.Node != "" || who.Reads || who.Any || other.reviews > 0 {
		t.Errorf("%+v, %d reviews elsewhere", who, other.reviews)
	}
	for range 3 {
		if err := c.Authorize(t.Context(), who, "get", "/v1/nodes"); err != nil {
			t.Error(err)
		}
		if err := c.Authorize(t.Context(), who, "get", "/v1/events"); err == nil ||
			!strings.Contains(err.Error(), "may not get the nonResourceURL /eventcenter/v1/events") {
			t.Error(err)
		}
	}
	if home.accesses != 2 {
		t.Errorf("%d questions", home.accesses)
	}
	page := web.Identity{Name: "page", Reads: true} // signed in
	if c.Authorize(t.Context(), page, "get", "/v1/nodes") != nil || c.Authorize(t.Context(), page, "post", "/v1/subscriptions") == nil {
		t.Error("who may read all may change subscriptions")
	}
	stranger := who
	if stranger.Cluster = "other"; c.Authorize(t.Context(), stranger, "get", "/v1/nodes") == nil {
		t.Error("a user of another cluster, with the same name, reads")
	}
	home.allows, c.now = false, c.now.Add(31*time.Second)
	if err := c.Authorize(t.Context(), who, "get", "/v1/nodes"); err == nil {
		t.Error("a right that was taken is used for over 30 s")
	}
	sender := c.status(other.token(t, nil), 200, "<nil>")
	if err := c.Authorize(t.Context(), sender, "get", "/v1/nodes"); err == nil {
		t.Error("a node reads")
	}
	home.away = true
	c.status("user-2", 503, "cannot be asked")
	home.away, c.now = false, c.now.Add(time.Minute)
	limited := 0
	for i := range 100 {
		if _, err := c.ask(fmt.Sprint("user-", i)); err != nil {
			limited++
		}
	}
	if limited != 89 { // all but ten, and user-1 with a token accepted before
		t.Errorf("%d of 100 strangers of one network at once are limited", limited)
	}
	c.now, limited = c.now.Add(2*time.Minute), 0
	for i := range 100 {
		c.from = fmt.Sprintf("10.0.%d.1", i)
		if _, err := c.ask(fmt.Sprint("user-stranger-", i)); err != nil {
			limited++
		}
	}
	if limited != 50 {
		t.Errorf("%d of 100 strangers of as many networks at once are limited", limited)
	}
	c.status("user-1", 200, "<nil>") // strangers do not affect it
}

// The CA certificates are read again when their file changes; if it is incomplete, the previous ones stay.
func TestCertificate(t *testing.T) {
	k, file := newCluster(t), filepath.Join(t.TempDir(), "ca.crt")
	sign := func(parent *x509.Certificate, signer *ecdsa.PrivateKey, ca bool) (*x509.Certificate, *ecdsa.PrivateKey) {
		key := newKey(t)
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:a",
			Organization: []string{"system:nodes"}}, NotBefore: now().Add(-time.Hour), NotAfter: now().Add(time.Hour), IsCA: ca,
			BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if parent == nil {
			parent, signer = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	put := func(text []byte, at int64) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, time.Time{}, time.Unix(at, 0))); err != nil {
			t.Fatal(err)
		}
	}
	ca, key := sign(nil, nil, true)
	leaf, _ := sign(ca, key, false)
	newCA, newKey := sign(nil, nil, true)
	newLeaf, _ := sign(newCA, newKey, false)
	put(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 1)
	v := k.voucher("prod", false)
	v.ClientCAFile = file
	c := newCenter(t, t.TempDir(), v)
	knows := func(cert *x509.Certificate, want bool) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/v1/events", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		who, err := c.Authenticate(r)
		if (err == nil) != want || want && (who.Node != "a" || who.Cluster != "prod") {
			t.Errorf("%+v %v, want %v", who, err, want)
		}
	}
	knows(leaf, true)
	knows(newLeaf, false)
	put([]byte("half"), 2)
	knows(leaf, true)
	put(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: newCA.Raw}), 3)
	knows(leaf, false)
	knows(newLeaf, true)
	if c.ClientCAs() == nil || newCenter(t, t.TempDir(), k.voucher("prod", false)).ClientCAs() != nil {
		t.Error("clients are asked for a certificate where one is of use, and only there")
	}
}

func TestSettings(t *testing.T) {
	good := "clusters:\n  - name: prod\n    audience: center\n    agents: [nodeagent/nodeagent]\n    readers: true\n"
	for name, test := range map[string]struct{ text, say string }{
		"good":              {good, "<nil>"},
		"an unknown key":    {good + "    audence: x\n", "audence"},
		"none":              {"clusters: []\n", "want 1 to 100"},
		"twice":             {good + strings.TrimPrefix(good, "clusters:\n"), "is given twice"},
		"a path as a name":  {"clusters: [{name: ../x}]\n", "want letters"},
		"no agents":         {"clusters: [{name: x, audience: y}]\n", "belong together"},
		"no audience":       {"clusters: [{name: x, agents: [a/b]}]\n", "belong together"},
		"no ServiceAccount": {"clusters: [{name: x, audience: y, agents: ['system:admin']}]\n", "NAMESPACE/NAME"},
		"a relative file":   {"clusters: [{name: x, clientCAFile: ca.crt}]\n", "no absolute path"},
		"a detector":        {good + "    detectors: [{name: gpud, serviceAccount: gpu/gpud, everyNode: true}]\n", "<nil>"},
		"a detector's name": {good + "    detectors: [{name: a/b, serviceAccount: gpu/gpud}]\n", "want letters"},
		"a user":            {good + "    detectors: [{name: gpud, serviceAccount: admin}]\n", "NAMESPACE/NAME"},
		"the agents'":       {good + "    detectors: [{name: gpud, serviceAccount: nodeagent/nodeagent}]\n", "agents' ServiceAccount"},
		"one account twice": {good + "    detectors: [{name: a, serviceAccount: g/g}, {name: b, serviceAccount: g/g}]\n", "two ServiceAccounts"},
		"without audience":  {"clusters: [{name: x, detectors: [{name: gpud, serviceAccount: g/g}]}]\n", "without an audience"},
		"two documents":     {good + "---\n" + good, "more than one document"},
		"nothing":           {"", "EOF"},
	} {
		if _, err := identity.Read(strings.NewReader(test.text)); !strings.Contains(fmt.Sprint(err), test.say) {
			t.Errorf("%s: %v, want %q", name, err, test.say)
		}
	}
}

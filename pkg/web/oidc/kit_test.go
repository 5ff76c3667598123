package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nodeagent/nodeagent/pkg/web"
)

// issuer is an identity provider that can misbehave. test/browser tests a real one with a real browser.
type issuer struct {
	testing.TB
	*httptest.Server
	key       *ecdsa.PrivateKey
	published *ecdsa.PublicKey
	keyID     string
	requests  atomic.Int64
	down      atomic.Bool

	sent   url.Values           // of the latest request for a code
	change func(map[string]any) // of the claims of a token
	secret string
	info   map[string]any // the response of its userinfo endpoint
}

func newIssuer(t testing.TB) *issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{TB: t, key: key, published: &key.PublicKey, keyID: "one", secret: "s3cret", info: map[string]any{"sub": "42"}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.answer(w, map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize",
			"token_endpoint": i.URL + "/token", "jwks_uri": i.URL + "/keys",
			"userinfo_endpoint":                     i.URL + "/userinfo",
			"id_token_signing_alg_values_supported": []string{"ES256", "HS256", "none"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.published, KeyID: i.keyID, Use: "sig"}}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		i.sent = r.URL.Query()
		http.Redirect(w, r, i.sent.Get("redirect_uri")+"?"+url.Values{"code": {"c0de"},
			"state": {i.sent.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", i.token)
	mux.HandleFunc("GET /userinfo", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer a" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		i.answer(w, i.info)
	})
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requests.Add(1)
		if i.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		i.Error(err)
	}
}

// token exchanges a code for an ID token, given the secret and the verifier (RFC 7636, section 4.6).
func (i *issuer) token(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := r.BasicAuth()
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if id != "center" || secret != i.secret || r.PostFormValue("code") != "c0de" ||
		base64.RawURLEncoding.EncodeToString(sum[:]) != i.sent.Get("code_challenge") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		i.answer(w, map[string]string{"error": "invalid_grant", "error_description": "<b>no</b>"})
		return
	}
	claims := i.claims()
	claims["nonce"] = i.sent.Get("nonce")
	if i.change != nil {
		i.change(claims)
	}
	i.answer(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": i.sign(claims)})
}

func (i *issuer) claims() map[string]any {
	return map[string]any{"iss": i.URL, "aud": "center", "sub": "42", "exp": time.Now().Add(time.Hour).Unix(),
		"iat": time.Now().Unix(), "email": "ada@example.com", "email_verified": true, "groups": []string{"sre", "x"}}
}

func (i *issuer) sign(claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key},
		(&jose.SignerOptions{}).WithHeader("kid", i.keyID))
	if err != nil {
		i.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		i.Fatal(err)
	}
	return text
}

// center is a center's sign-in, and a browser that uses it.
type center struct {
	testing.TB
	*Provider
	*issuer
	browser *http.Client
	url     string
	now     time.Time

	name, next string // the last person to return
	operator   bool
	err        error
}

func newCenter(t testing.TB, change func(*Settings)) *center {
	c := &center{TB: t, issuer: newIssuer(t), now: time.Now()}
	mux := http.NewServeMux()
	mux.HandleFunc("/login/start", func(w http.ResponseWriter, r *http.Request) {
		if c.err = c.Start(w, r, r.URL.Query().Get("next")); c.err != nil {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	mux.HandleFunc("/login/callback", func(w http.ResponseWriter, r *http.Request) {
		c.name, c.operator, c.next, c.err = c.Finish(w, r)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.url = server.URL
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(c.issuer.secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Settings{Issuer: c.URL, ClientID: "center", ClientSecretFile: secret, Address: server.URL, NameClaim: "email",
		GroupsClaim: "groups", Groups: []string{"sre"}}
	if change != nil {
		change(&s)
	}
	var err error
	if c.Provider, err = New("center", s, func() time.Time { return c.now }); err != nil {
		t.Fatal(err)
	}
	c.browser = newBrowser(t)
	return c
}

// newLazyBrowser returns a client that follows no redirections.
func newLazyBrowser(t testing.TB) *http.Client {
	b := newBrowser(t)
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return b
}

func newBrowser(t testing.TB) *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

// open opens an address, and returns the Location that a browser without redirections was sent to.
func (c *center) open(browser *http.Client, address string) (location string) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		c.Fatal(err)
	}
	response, err := browser.Do(r)
	if err != nil {
		c.Fatal(err)
	}
	_ = response.Body.Close()
	return response.Header.Get("Location")
}

// enter signs in, and returns the reason for a failure.
func (c *center) enter() string {
	c.Helper()
	c.name, c.next, c.err = "", "", errors.New("the browser never came back")
	c.open(c.browser, c.url+"/login/start?next=/faults")
	if c.err != nil {
		return c.err.Error()
	}
	return ""
}

// ask sends a request with a token, and returns the identity.
func (c *center) ask(token string) (web.Identity, error) {
	r := httptest.NewRequestWithContext(c.Context(), http.MethodGet, "/v1/nodes", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	return c.Authenticate(func(*http.Request) (web.Identity, error) {
		return web.Identity{Name: "somebody else"}, nil
	})(r)
}

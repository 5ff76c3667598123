package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web"
)

// A person signs in through a group or by name, and gets to the page that they wanted.
func TestSignIn(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"group":  nil,
		"person": func(s *Settings) { s.Groups, s.People = nil, []string{"ada@example.com"} },
		"claim":  func(s *Settings) { s.Groups, s.People, s.NameClaim = nil, []string{"42"}, "sub" },
	} {
		c := newCenter(t, change)
		if notice := c.enter(); notice != "" || c.next != "/faults" || c.name == "" {
			t.Errorf("%s: %q to %q: %s", name, c.name, c.next, notice)
		}
		if got := c.sent.Get("redirect_uri"); got != c.url+"/login/callback" || c.sent.Get("nonce") == "" ||
			c.sent.Get("code_challenge_method") != "S256" {
			t.Errorf("%s: the provider was asked with %q", name, c.sent)
		}
	}
}

// A second list names the operators: its members may read too, and people only in the first list only read.
func TestOperators(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*Settings)
		operator bool
	}{
		"a reader":          {nil, false},
		"another group":     {func(s *Settings) { s.OperatorGroups = []string{"oncall"} }, false},
		"both lists":        {func(s *Settings) { s.OperatorGroups = []string{"x"} }, true},
		"the second alone":  {func(s *Settings) { s.Groups, s.OperatorGroups = nil, []string{"x"} }, true},
		"by name":           {func(s *Settings) { s.OperatorPeople = []string{"ada@example.com"} }, true},
		"by name, no group": {func(s *Settings) { s.Groups, s.OperatorPeople = nil, []string{"ada@example.com"} }, true},
		"another name":      {func(s *Settings) { s.OperatorPeople = []string{"eve@example.com"} }, false},
	} {
		c := newCenter(t, test.change)
		if notice := c.enter(); notice != "" || c.operator != test.operator {
			t.Errorf("%s: operator %t, %s", name, c.operator, notice)
		}
		who, err := c.ask(c.sign(c.claims()))
		if err != nil || !who.Reads || who.Any || who.User != nil {
			t.Errorf("%s: a token: %+v %v", name, who, err)
		}
	}
	c := newCenter(t, func(s *Settings) { s.Groups, s.OperatorGroups = nil, []string{"oncall"} })
	if notice := c.enter(); !strings.Contains(notice, "may not read") {
		t.Error(notice)
	}
}

// No one else can sign in, and each learns the reason.
func TestNotSignedIn(t *testing.T) {
	claim := func(name string, value any) func(*center) {
		return func(c *center) { c.change = func(claims map[string]any) { claims[name] = value } }
	}
	without := func(name string) func(*center) {
		return func(c *center) { c.change = func(claims map[string]any) { delete(claims, name) } }
	}
	for want, change := range map[string]func(*center){
		"neither named nor a member of a group": claim("groups", []string{"sales"}),
		"has no claim \"groups\"":               without("groups"),
		"no claim \"email\"":                    claim("email", 7),
		"has not verified the address":          claim("email_verified", false),
		"not verified the address ada":          claim("email_verified", "false"),
		"has not verified the address ada@":     claim("email_verified", "no"),
		"no name of at most 128 bytes":          claim("email", "ada\nroot@example.com"),
		"token is of another sign-in":           claim("nonce", "another"),
		"expected audience":                     claim("aud", "another"),
		"token is expired":                      claim("exp", time.Now().Add(-time.Hour).Unix()),
		"different provider":                    claim("iss", "https://evil.example"),
		"failed to verify signature": func(c *center) {
			c.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // and publishes the old one
		},
		"does not accept the code: invalid_grant <b>no</b>": func(c *center) { c.issuer.secret = "another" },
	} {
		c := newCenter(t, nil)
		change(c)
		if notice := c.enter(); !strings.Contains(notice, want) || c.name != "" {
			t.Errorf("want %q: %q came in, %s", want, c.name, notice)
		}
	}
}

// Claims missing from the ID token come from the userinfo endpoint, for the same person; they do not replace claims in
// the token.
func TestUserInfo(t *testing.T) {
	for want, info := range map[string]map[string]any{
		"":                                      {"sub": "42", "email": "ada@example.com", "groups": []string{"sre"}},
		"tells of somebody else than its token": {"sub": "43", "email": "ada@example.com", "groups": []string{"sre"}},
		"ada@example.com may not read":          {"sub": "42", "email": "ada@example.com"},
		"has not verified the address ada@example.com": {"sub": "42", "email": "ada@example.com", "email_verified": true},
	} {
		c := newCenter(t, nil)
		c.info = info
		c.change = func(claims map[string]any) {
			delete(claims, "groups")
			delete(claims, "email")
			delete(claims, "email_verified")
			if strings.HasPrefix(want, "has not verified") {
				claims["email_verified"] = false
			}
		}
		if notice := c.enter(); !strings.Contains(notice, want) || (notice == "") != (want == "") {
			t.Errorf("want %q, got %q", want, notice)
		}
	}
}

// A return that was not started in this browser, or too long ago, fails.
func TestStolenWayBack(t *testing.T) {
	c := newCenter(t, nil)
	if notice := c.enter(); notice != "" {
		t.Fatal(notice)
	}
	back := c.url + "/login/callback?" + url.Values{"code": {"c0de"}, "state": {c.sent.Get("state")}}.Encode()
	refused := func(what string, browser *http.Client, address string) {
		t.Helper()
		c.name, c.err = "", nil
		if c.open(browser, address); c.name != "" || c.err == nil || c.err.Error() != errState.Error() {
			t.Errorf("%s: %q came in, %v", what, c.name, c.err)
		}
	}
	refused("a link that the attacker has begun", newBrowser(t), back)
	refused("the same way back once more", c.browser, back)

	begin := func(browser *http.Client) (state string) {
		t.Helper()
		to, err := url.Parse(c.open(browser, c.url+"/login/start"))
		if err != nil {
			t.Fatal(err)
		}
		return to.Query().Get("state")
	}
	begun := newLazyBrowser(t)
	begin(begun)
	refused("another state", begun, back)
	late := newLazyBrowser(t)
	state := begin(late)
	c.now = c.now.Add(flowLife)
	refused("after ten minutes", late, c.url+"/login/callback?"+url.Values{"code": {"c0de"}, "state": {state}}.Encode())

	c.err = nil
	begun = newLazyBrowser(t)
	c.open(begun, c.url+"/login/callback?"+url.Values{"error": {"access_denied"}, "state": {begin(begun)},
		"error_description": {strings.Repeat("x", 5000)}}.Encode())
	if c.err == nil || !strings.Contains(c.err.Error(), "access_denied") || len(c.err.Error()) > 700 {
		t.Errorf("the provider's refusal: %v", c.err)
	}
}

// A reader's ID token authenticates the reader; other tokens are left to other authenticators.
func TestReader(t *testing.T) {
	c := newCenter(t, nil)
	if who, err := c.ask(c.sign(c.claims())); err != nil || who.Name != "ada@example.com" || !who.Reads || who.Any {
		t.Errorf("%+v, %v", who, err)
	}
	other := c.claims()
	other["aud"] = "another"
	elsewhere := c.claims()
	elsewhere["iss"] = "https://kubernetes.default.svc"
	for _, token := range []string{"opaque", "a.b.c", c.sign(other), c.sign(elsewhere), strings.Repeat("x", 100_000)} {
		if who, err := c.ask(token); err != nil || who.Name != "somebody else" {
			t.Errorf("%.20s: %+v, %v", token, who, err)
		}
	}
	stranger := c.claims()
	stranger["groups"] = "sales"
	late := c.claims()
	late["exp"] = time.Now().Add(-time.Minute).Unix()
	for _, claims := range []map[string]any{stranger, late} {
		who, err := c.ask(c.sign(claims))
		refusal, ok := err.(*web.Refusal) //nolint:errorlint // what the interface wants
		if !ok || refusal.Status != http.StatusUnauthorized || who.Reads {
			t.Errorf("%v: %+v, %v", claims, who, err)
		}
	}
}

// A provider that does not answer is not asked for every request, and causes no permanent refusal. A new key is
// fetched; a thousand tokens with an unknown key do not cause a thousand requests.
func TestProviderAway(t *testing.T) {
	c := newCenter(t, nil)
	c.down.Store(true)
	for range 20 {
		_, err := c.ask(c.sign(c.claims()))
		refusal, ok := err.(*web.Refusal) //nolint:errorlint // what the interface wants
		if !ok || refusal.Status != http.StatusServiceUnavailable || refusal.RetryWithin == 0 {
			t.Fatal(err)
		}
	}
	if n := c.requests.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	c.down.Store(false)
	if notice := c.enter(); notice == "" {
		t.Error("asked again at once")
	}
	c.now = c.now.Add(awayFor)
	if notice := c.enter(); notice != "" {
		t.Error(notice)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.key, c.published, c.keyID = key, &key.PublicKey, "two"
	if who, err := c.ask(c.sign(c.claims())); err != nil || !who.Reads {
		t.Errorf("the provider's new key: %v", err)
	}
	c.keyID = "forged"
	token := c.sign(c.claims())
	c.keyID = "two"
	before, begun := c.requests.Load(), time.Now()
	for range 1000 {
		if _, err := c.ask(token); err == nil {
			t.Fatal("forged")
		}
	}
	if n, took := c.requests.Load()-before, time.Since(begun); n > 6+int64(took.Seconds()) { // 1/s, and five at once
		t.Errorf("asked %d times in %s", n, took)
	}
	c.down.Store(true)
	c.keyID, c.now = "three", c.now.Add(time.Minute)
	if _, err := c.ask(c.sign(c.claims())); err.(*web.Refusal).Status != http.StatusServiceUnavailable { //nolint:errorlint // as above
		t.Errorf("keys cannot be fetched: %v", err)
	}
}

// The number of returns is limited per network: each asks the provider. Networks do not affect each other.
func TestManyWaysBack(t *testing.T) {
	now := time.Now()
	f, err := newFlows("center", [keyBytes]byte{}, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	back := func(network string) bool {
		t.Helper()
		one, cookie, err := f.begin("/", false)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/login/callback?state="+one.State, http.NoBody)
		r.RemoteAddr = network + ":1"
		r.AddCookie(cookie)
		_, ok := f.end(httptest.NewRecorder(), r, false)
		return ok
	}
	through := 0
	for range 100 {
		if back("192.0.2.1") {
			through++
		}
	}
	if through != 20 || !back("192.0.2.2") {
		t.Errorf("%d of 100 at once came through, or another network did not", through)
	}
	if now = now.Add(time.Second); !back("192.0.2.1") || back("192.0.2.1") {
		t.Error("want one a second")
	}
}

func TestSettings(t *testing.T) {
	good := "issuer: https://id.example.com\nclientID: center\naddress: https://events.example.com\ngroups: [sre]\n"
	if s, err := Read(strings.NewReader(good)); err != nil || s.NameClaim != "email" || s.GroupsClaim != "groups" {
		t.Errorf("%+v, %v", s, err)
	}
	for line, want := range map[string]string{
		"issuer: http://id.example.com":       "want https",
		"issuer: https://a:b@id.example.com":  "want https://HOST",
		"address: https://example.com/center": "pages begin at /",
		"clientID: ''":                        "clientID",
		"groups: []":                          "nobody may read",
		"groups: ['']":                        "an empty name",
		"caFile: ca.crt":                      "no absolute path",
		"group: [sre]":                        "not found",
	} {
		key, _, _ := strings.Cut(line, ":")
		var text []string
		for _, other := range strings.Split(good, "\n") {
			if !strings.HasPrefix(other, key+":") {
				text = append(text, other)
			}
		}
		if _, err := Read(strings.NewReader(strings.Join(append(text, line), "\n"))); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if _, err := New("center", Settings{ClientSecretFile: os.DevNull}, time.Now); err == nil {
		t.Error("an empty secret is taken")
	}
}

// The client's secret is not used if its file is readable by others.
func TestSecretOfAll(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, fine := range map[os.FileMode]bool{0o600: true, 0o440: true, 0o644: false, 0o604: false, 0o660: false} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := New("center", Settings{ClientSecretFile: name}, time.Now); (err == nil) != fine {
			t.Errorf("%#o: %v", mode, err)
		}
	}
}
